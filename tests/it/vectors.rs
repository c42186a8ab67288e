//! Runs the conversations of tests/vectors against the core. tests/workerd/vectors.test.mjs runs
//! the same ones against the Worker, and describes their format.
use crate::team::{Got, START_MS, Team};
use serde_json::Value as Json;
use std::collections::HashMap;
use teamplane::api::HEADERS;

/// What steps refer to by name: the team's id, tokens, saved values.
pub type Known = HashMap<String, String>;

/// A request as a step sends it.
#[derive(Debug, Clone)]
pub struct Sent {
    pub method: String,
    pub path: String,
    pub token: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<Vec<u8>>,
}

impl Sent {
    pub fn send(&self, team: &Team) -> Got {
        let headers: Vec<(&'static str, &str)> =
            self.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        team.send_to(&self.path, &self.token, &self.method, &headers, self.body.as_deref())
    }
}

#[test]
fn every_vector_is_answered_as_it_says() {
    let all = conversations();
    assert!(!all.is_empty());
    for conversation in &all {
        converse(&Team::new(), conversation);
    }
}

/// All conversations, in the order of their files' names.
pub fn conversations() -> Vec<Json> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors");
    let entries = std::fs::read_dir(folder).expect("there are vectors");
    let mut paths: Vec<_> =
        entries.map(|entry| entry.expect("the folder is read").path()).collect();
    paths.sort();
    paths
        .iter()
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).expect("a vector is text");
            serde_json::from_str::<Vec<Json>>(&text).expect("a vector is a JSON list")
        })
        .collect()
}

/// Has a conversation; answers what its steps saved, and what they sent.
pub fn converse(team: &Team, conversation: &Json) -> (Known, Vec<Sent>) {
    println!("{}", conversation["title"]);
    let mut known = Known::new();
    let mut all = Vec::new();
    known.insert("team".into(), team.id.to_string());
    known.insert("owner".into(), team.owner.clone());
    for step in conversation["steps"].as_array().expect("a conversation has steps") {
        if let Some(after_ms) = step["after_ms"].as_i64() {
            team.now_ms.set(START_MS + after_ms);
        }
        let sent = sent(step, &known);
        let got = sent.send(team);
        all.push(sent);
        let what = format!("{}: {} answered {}", step["note"], step["send"], got.json);
        let expect = filled(&step["expect"], &known);
        assert_eq!(Json::from(got.status), expect["status"], "{what}");
        for (name, value) in expect["headers"].as_object().into_iter().flatten() {
            // The shell gives every JSON answer its type.
            let found = if name == "content-type" && got.header(name).is_none() {
                Some("application/json")
            } else {
                got.header(name)
            };
            assert_eq!(found, value.as_str(), "{what}, header {name}");
        }
        if let Some(wanted) = expect.get("body") {
            fits(Some(&got.json), wanted, &what);
        }
        for (name, path) in step["save"].as_object().into_iter().flatten() {
            let path = path.as_str().expect("a path is text").replace('.', "/");
            let value = got.json.pointer(&format!("/{path}"));
            let value = value.unwrap_or_else(|| panic!("{what}, nothing at {path}"));
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            known.insert(name.clone(), text);
        }
        for (name, header) in step["save_headers"].as_object().into_iter().flatten() {
            let value = header.as_str().and_then(|header| got.header(header));
            let value = value.unwrap_or_else(|| panic!("{what}, no header {header}"));
            known.insert(name.clone(), value.to_owned());
        }
    }
    (known, all)
}

fn sent(step: &Json, known: &Known) -> Sent {
    let address = filled(&step["send"], known);
    let address = address.as_str().and_then(|text| text.split_once(' '));
    let (method, path) = address.expect("a step sends a method and a path");
    let token = step["as"].as_str().map_or(String::new(), |name| known[name].clone());
    let headers = filled(&step["headers"], known);
    let headers = headers
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| {
            let name = HEADERS.iter().find(|known| *known == name).expect("a known header");
            (*name, value.as_str().expect("a header is text").to_owned())
        })
        .collect();
    let body = step.get("body").map(|body| match filled(body, known) {
        Json::String(text) => text.into_bytes(),
        json => json.to_string().into_bytes(),
    });
    Sent { method: method.to_owned(), path: path.to_owned(), token, headers, body }
}

/// `value` with every `{name}` in its texts replaced.
fn filled(value: &Json, known: &Known) -> Json {
    match value {
        Json::String(text) => known
            .iter()
            .fold(text.clone(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
            .into(),
        Json::Array(items) => items.iter().map(|item| filled(item, known)).collect(),
        Json::Object(fields) => {
            fields.iter().map(|(name, field)| (name.clone(), filled(field, known))).collect()
        }
        other => other.clone(),
    }
}

fn fits(value: Option<&Json>, wanted: &Json, what: &str) {
    match wanted {
        Json::String(text) if text == "<any>" => {
            assert!(value.is_some_and(|value| !value.is_null()), "{what}");
        }
        Json::String(text) if text == "<absent>" => assert_eq!(value, None, "{what}"),
        Json::Object(fields) => {
            for (name, field) in fields {
                let inner = value.and_then(|value| value.get(name));
                fits(inner, field, &format!("{what}, field {name}"));
            }
        }
        Json::Array(items) => {
            let found = value.and_then(Json::as_array).unwrap_or_else(|| panic!("{what}"));
            assert_eq!(found.len(), items.len(), "{what}");
            for (index, (found, item)) in found.iter().zip(items).enumerate() {
                fits(Some(found), item, &format!("{what}, at {index}"));
            }
        }
        wanted => assert_eq!(value, Some(wanted), "{what}"),
    }
}
