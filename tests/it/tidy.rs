//! Reads the source: what the compiler does not enforce of ARCHITECTURE.md.
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use teamplane::api::{ROUTES, find_route};
use teamplane::store::migrate::MIGRATIONS;

const LINES_MAX: usize = 450;

fn files(folder: &str, ending: &str) -> BTreeMap<String, String> {
    fn walk(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("the entry is there").path();
            if path.is_dir() {
                walk(&path, ending, found);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(&root.join(folder), ending, &mut found);
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(root).expect("it is below").display().to_string();
            (name, std::fs::read_to_string(path).expect("the file reads"))
        })
        .collect()
}

#[test]
fn files_are_short_enough_to_read() {
    let long: Vec<_> = files("src", ".rs")
        .into_iter()
        .map(|(name, text)| (name, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .collect();
    assert!(long.is_empty(), "split by area: {long:?}");
}

#[test]
fn only_the_shell_knows_the_platform_and_awaits() {
    for (name, text) in files("src", ".rs") {
        let shell = name.starts_with("src/edge") || name.starts_with("src/object");
        let code: Vec<&str> =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let has = |part: &str| code.iter().any(|line| line.contains(part));
        if !shell {
            assert!(!has("async ") && !has(".await"), "{name} awaits");
        }
        if !shell && name != "src/store/durable.rs" {
            assert!(!has("worker::") && !has("wasm_bindgen"), "{name} knows the platform");
        }
    }
}

#[test]
fn statements_name_their_columns_and_lists_come_as_json() {
    for (name, text) in files("src", ".rs") {
        assert!(!text.contains("SELECT *"), "{name} selects *");
        assert!(!text.contains("INSERT OR REPLACE"), "{name} replaces without triggers");
        assert!(!text.contains("IN (?"), "{name} binds a list");
    }
    for (name, text) in files("migrations", ".sql") {
        assert!(!text.contains("CASCADE"), "{name} cascades");
        assert!(text.trim_end().ends_with(';'), "{name} must end with its last statement");
        let code: Vec<&str> = text.lines().filter_map(|line| line.split("--").next()).collect();
        for table in code.join("\n").split("CREATE TABLE ").skip(1) {
            let end = table.split(';').next().unwrap_or_default();
            assert!(end.contains("STRICT"), "{name}: a table is not STRICT: {end}");
        }
    }
}

#[test]
fn every_migration_is_listed_in_order() {
    let on_disk: Vec<String> = files("migrations", ".sql").into_keys().collect();
    let listed: Vec<String> =
        MIGRATIONS.iter().map(|(name, _)| format!("migrations/{name}.sql")).collect();
    assert_eq!(on_disk, listed);
}

/// What workerd forbids fails only there, and the vectors are what runs there too. A refusal may
/// have come before any statement, so it counts for nothing.
/// A socket is no conversation of requests: these routes are called by tests/workerd/link.test.mjs
/// and follow.test.mjs.
const SOCKETS: &[&str] = &["/machines/{machine}/link", "/sessions/{session}/follow"];

#[test]
fn every_route_is_called_by_a_vector() {
    let mut called = BTreeSet::new();
    for (name, text) in files("tests/vectors", ".json") {
        let conversations: Vec<Json> = serde_json::from_str(&text).expect(&name);
        for step in conversations.iter().filter_map(|c| c["steps"].as_array()).flatten() {
            let sent = step["send"].as_str().and_then(|text| text.split_once(' '));
            let (method, address) = sent.expect("a step sends a method and a path");
            // A `{name}` that is yet to be filled in fits wherever a parameter does.
            let path = address.split('?').next().unwrap_or_default();
            let answered = step["expect"]["status"].as_u64().is_some_and(|status| status < 400);
            if let (true, Ok(matched)) = (answered, find_route(method, path)) {
                called.insert((matched.route.method, matched.route.path));
            }
        }
    }
    let routes = ROUTES.iter().filter(|route| !SOCKETS.contains(&route.path));
    let routes = routes.map(|route| (route.method, route.path));
    let missing: Vec<_> = routes.filter(|route| !called.contains(route)).collect();
    assert!(missing.is_empty(), "no vector is answered by {missing:?}");
}
