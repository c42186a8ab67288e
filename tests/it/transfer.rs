//! Moving a team: its export goes into another team, and comes out of it the same.
use crate::agent::{Agent, binding, payload, turn};
use crate::capture::{messages, session};
use crate::maintain::oracle;
use crate::team::{Got, Publisher, Team};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use teamplane::auth::Role;
use teamplane::domain::transfer::{LEFT_OUT, SECTIONS};
use teamplane::ids::{Id, hex};
use teamplane::limits::{CHUNK_BYTES_MIN, DAY_MS, EXPORT_AGE_MS, TRANSFER_BYTES_MAX};

/// A team and an owner's token of it, perhaps in another object.
struct Place<'a> {
    team: &'a Team,
    id: String,
    owner: String,
}

impl Place<'_> {
    fn send(&self, method: &str, path: &str, body: &[u8]) -> Got {
        let address = format!("/v1/teams/{}{path}", self.id);
        self.team.send_to(&address, &self.owner, method, &[], Some(body))
    }

    fn get(&self, path: &str) -> Got {
        self.send("GET", path, b"")
    }

    /// The pages with the cursors that led to them.
    fn export(&self) -> Vec<(Option<String>, Vec<u8>)> {
        let mut pages = Vec::new();
        let mut cursor = None;
        loop {
            let got = self.get(&with_cursor("/export", cursor.as_deref()));
            assert_eq!(got.status, 200, "{}", got.json);
            assert!(got.bytes.len() <= TRANSFER_BYTES_MAX);
            let next = lines(&got.bytes).last().unwrap()["next_cursor"].clone();
            pages.push((cursor, got.bytes));
            cursor = next.as_str().map(str::to_owned);
            if cursor.is_none() {
                return pages;
            }
        }
    }

    fn import(&self, pages: &[(Option<String>, Vec<u8>)]) {
        for (cursor, page) in pages {
            let got = self.send("POST", &with_cursor("/import", cursor.as_deref()), page);
            assert_eq!(got.status, 200, "{}", got.json);
        }
    }
}

fn with_cursor(path: &str, cursor: Option<&str>) -> String {
    cursor.map_or_else(|| path.to_owned(), |cursor| format!("{path}?cursor={cursor}"))
}

fn lines(page: &[u8]) -> Vec<Json> {
    let text = std::str::from_utf8(page).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every row of an export, without what must differ.
fn rows(pages: &[(Option<String>, Vec<u8>)], team_id: &str) -> Vec<String> {
    let all = pages.iter().flat_map(|(_, page)| lines(page));
    let mut rows: Vec<String> = all
        .filter(|line| line["table"].is_string())
        .map(|mut line| {
            // Places among the appends are the object's, and so are the numbers of records.
            let key = if line["table"] == "usage_records" { "id" } else { "row_id" };
            line["row"].as_object_mut().unwrap().remove(key);
            line.to_string().replace(team_id, "TEAM")
        })
        .collect();
    rows.sort();
    rows
}

fn upload(team: &Team, machine: &Publisher, content: &[u8]) -> String {
    let sha256 = hex(&Sha256::digest(content));
    let body = json!({ "size": content.len(), "sha256": sha256, "media_type": "a/b",
                       "chunk_size": CHUNK_BYTES_MIN });
    let got = team.post(&machine.token, "/uploads", body);
    let id = got.data(201)["id"].as_str().unwrap().to_owned();
    for (index, chunk) in content.chunks(usize::try_from(CHUNK_BYTES_MIN).unwrap()).enumerate() {
        let digest = format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(chunk)));
        let path = format!("/uploads/{id}/chunks/{index}");
        let headers = [("content-digest", digest.as_str())];
        assert_eq!(team.send(&machine.token, "PUT", &path, &headers, Some(chunk)).status, 204);
    }
    assert_eq!(team.post(&machine.token, &format!("/uploads/{id}/commit"), json!({})).status, 200);
    id
}

/// A team with something of everything that an export holds.
fn full() -> (Team, Publisher, Vec<String>) {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let other = team.publisher("desk");
    let show = json!({ "visibility": "team" });
    assert_eq!(
        team.patch(&team.owner, &format!("/sources/{}", laptop.source_id), show).status,
        200
    );
    let group = team.post(&team.owner, "/groups", json!({ "name": "g" })).data(201)["id"].clone();
    let group = group.as_str().unwrap();
    let path = format!("/groups/{group}/members/{}", laptop.custodian_id);
    assert_eq!(team.put(&team.owner, &path, "").status, 200);
    team.app("app", &["sessions:read"]);
    team.person("gone", Role::Viewer);
    let rules = format!("/machines/{}/rules", laptop.machine_id);
    let rule = json!({ "root_id": "r", "harnesses": [], "include": ["*"], "exclude": [] });
    assert_eq!(team.post(&team.owner, &rules, rule).status, 201);

    let kept = upload(&team, &laptop, &vec![7; 100_000]);
    let artifact = json!([{ "bundle_id": "b", "upload_id": kept, "name": "bundle" }]);
    let begin =
        json!({ "harness": "codex", "native_id": "n1", "title": "First", "artifacts": artifact });
    let first = session(&team.publish_with(&laptop.token, begin, &messages(0, 5, "hello")));
    // Rewritten without the artifact, so that the captured version stays beside the current one.
    team.publish_with(
        &laptop.token,
        json!({ "harness": "codex", "native_id": "n1" }),
        &messages(0, 4, "other"),
    );
    let bind = json!({ "harness": "codex", "native_id": "n9", "session_id": first });
    let custodian = token_of(&team, &laptop);
    for subject in [format!("group/{group}"), format!("principal/{}", other.custodian_id)] {
        let path = format!("/sessions/{first}/grants/{subject}");
        assert_eq!(team.put(&custodian, &path, r#"{"access":"continue"}"#).status, 200);
    }
    team.publish_with(&other.token, bind, &messages(0, 6, "both"));
    let raw = r#"{"messages":[{"ordinal":0,"role":"user","text":"\ud800 \u0000 nul","n":9007199254740993}]}"#;
    let capture = team.begin(&laptop.token, json!({ "harness": "codex", "native_id": "n2" }));
    assert_eq!(team.put(&laptop.token, &format!("/captures/{capture}/parts/0"), raw).status, 204);
    let commit =
        team.post(&laptop.token, &format!("/captures/{capture}/commit"), json!({ "parts": 1 }));
    let second = session(commit.data(200));
    let deleted = session(&team.publish(&laptop.token, "n3", &messages(0, 2, "gone")));
    assert_eq!(team.delete(&custodian, &format!("/sessions/{deleted}")).status, 204);
    let retitle = json!({ "title": "By hand" });
    assert_eq!(team.patch(&custodian, &format!("/sessions/{second}"), retitle).status, 200);

    let beat = json!({ "incarnation_id": "i", "sequence": 1,
        "bindings": [{ "id": "b1", "harness": "codex", "native_id": "n1" }],
        "roots": [{ "id": "r", "name": "root", "harnesses": [] }],
        "activity": [{ "harness": "codex", "native_id": "n1", "turn": "busy", "since": 5 }] });
    let path = format!("/machines/{}/heartbeat", laptop.machine_id);
    assert_eq!(team.post(&laptop.token, &path, beat).status, 200);
    let named = upload(&team, &laptop, b"named by a continuation");
    let body = json!({ "machine_id": laptop.machine_id, "prompt": "go on", "uploads": [named] });
    assert_eq!(
        team.post(&laptop.token, &format!("/sessions/{first}/continuations"), body).status,
        201
    );
    let body = json!({ "machine_id": laptop.machine_id, "binding_id": "b1" });
    assert_eq!(team.post(&custodian, &format!("/sessions/{first}/attachments"), body).status, 201);
    let body = json!({ "kind": "message", "input": { "text": "hi" } });
    assert_eq!(
        team.post(&custodian, &format!("/machines/{}/operations", laptop.machine_id), body).status,
        202
    );
    team.begin(&laptop.token, json!({ "harness": "codex", "native_id": "n5" }));
    let staging = team.begin(&laptop.token, json!({ "harness": "codex", "native_id": "n4" }));
    let part = json!({ "messages": messages(0, 2, "staged") }).to_string();
    assert_eq!(team.put(&laptop.token, &format!("/captures/{staging}/parts/0"), &part).status, 204);
    runs(&team);
    keeps(&team);
    team.settle();
    (team, laptop, vec![first, second])
}

/// What an agent keeps: a conversation with a large payload, a snapshot, a worktree, usage.
fn keeps(team: &Team) {
    let agent = Agent::new(team);
    let send = |method: &str, path: &str, body: Json| {
        let capability = [("x-context-capability", agent.capability.as_str())];
        let text = body.to_string();
        let got = team.send(&agent.token, method, path, &capability, Some(text.as_bytes()));
        assert!(got.status < 300, "{method} {path}: {}", got.json);
    };
    send("PUT", "/contexts/c1", json!({ "binding": binding("m"), "title": "T", "dir": "/d" }));
    let mut first = turn("o1", (0, 0, 0), "hello");
    first["payloads"] = json!([payload("p1", &[7; 300_000])]);
    first["events"][0]["payload_ref"] = json!("p1");
    send("POST", "/contexts/c1/commit", first);
    send("POST", "/contexts/c1/commit", turn("o2", (1, 1, 2), "again"));
    send("PUT", "/snapshots/s1", json!({ "messages": [{ "role": "user", "content": "x" }] }));
    send("PUT", "/snapshots/s1/admission", json!({ "agent": "a", "digest": "d", "names": ["n"] }));
    send("POST", "/worktrees", json!({ "worktree": "w", "instance_id": "i1", "path": "/w" }));
    send("POST", "/worktrees/i1/register", json!({ "path": "/w" }));
    let usage = json!({ "kind": "token_usage", "provider": "p", "model": "m", "session_id": "c1",
        "input_tokens": 10, "estimated_tokens": 8 });
    send("POST", "/usage", json!({ "records": [usage, usage] }));
}

const OUTPUT: &[u8] = b"what a run put out";

/// Runs whose appends go back and forth; one is deleted and begins anew, one is taken over.
fn runs(team: &Team) {
    let output = format!("sha256:{}", hex(&Sha256::digest(OUTPUT)));
    let put = team.send(&team.owner, "PUT", &format!("/content/{output}"), &[], Some(OUTPUT));
    assert_eq!(put.status, 204);
    let event = |run: &str, sequence: i64, payload: &str| {
        json!({ "run_id": run, "id": format!("{run}-{sequence}"), "sequence": sequence,
            "kind": "k", "payload": payload })
    };
    let append = |events: Json| {
        let got = team.post(&team.owner, "/run-events", json!({ "events": events }));
        assert_eq!(got.status, 200, "{}", got.json);
    };
    append(json!([event("z", 1, &output), event("a\0b", 1, "x"), event("again", 1, "x")]));
    append(json!([event("z", 7, "x"), event("a\0b", 3, "\0")]));
    let tombstone = json!({ "tombstone": { "id": "t", "sequence": 4, "payload": {} } });
    assert_eq!(team.post(&team.owner, "/runs/again/delete", tombstone).status, 200);
    append(json!([event("again", 5, "x"), event("z", 3, "x")]));
    for holder in ["h1", "h2"] {
        let ask = json!({ "holder": holder, "mode": "takeover" });
        assert_eq!(team.post(&team.owner, "/runs/z/claim", ask).status, 200);
    }
    // A history without events or a claim.
    let ask = json!({ "holder": "h3" });
    assert_eq!(team.post(&team.owner, "/runs/idle/claim", ask).status, 200);
    assert_eq!(team.delete(&team.owner, "/runs/idle/claim?holder=h3").status, 204);
}

/// A token of a machine's custodian.
fn token_of(team: &Team, machine: &Publisher) -> String {
    let body = json!({ "principal_id": machine.custodian_id });
    let got = team.post(&team.owner, "/credentials", body);
    got.data(201)["token"].as_str().unwrap().to_owned()
}

fn here(team: &Team) -> Place<'_> {
    Place { team, id: team.id.to_string(), owner: team.owner.clone() }
}

#[test]
fn every_table_is_exported_or_left_out_for_a_reason() {
    let team = Team::new();
    let shadows = ["message_search_", "title_search_", "sqlite_"];
    let tables = team.lines("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name");
    let own: Vec<_> =
        tables.iter().filter(|table| !shadows.iter().any(|lead| table.starts_with(lead))).collect();
    let listed = SECTIONS.iter().flat_map(|s| std::iter::once(&s.table).chain(s.children));
    let mut known: Vec<&str> = listed.map(|table| table.name).collect();
    known.extend(LEFT_OUT.iter().map(|(table, _)| table));
    known.sort_unstable();
    assert_eq!(own, known.iter().collect::<Vec<_>>());
    // A column that nobody lists would be lost.
    let skipped = [
        "team_id",
        "heartbeat_digests_json",
        "deleted_at",
        "next_at",
        "previous_secret_until",
        "failing_since",
        "throttled",
        "payload_count",
        "payload_bytes",
    ];
    for table in SECTIONS.iter().flat_map(|s| std::iter::once(&s.table).chain(s.children)) {
        let columns = team.lines(&format!("SELECT name FROM pragma_table_info('{}')", table.name));
        for column in columns.iter().filter(|column| !skipped.contains(&column.as_str())) {
            let special = [("messages", "id"), ("event_resources", "sequence")];
            let listed = table.columns.iter().any(|known| known.name == column);
            assert!(listed || special.contains(&(table.name, column)), "{}.{column}", table.name);
        }
    }
}

fn moves_to(from: &Team, to: &Place, laptop: &Publisher, sessions: &[String], renamed: bool) {
    let pages = here(from).export();
    let shared = |text: String| {
        if renamed { without_people(&text) } else { text }
    };
    let expected: Vec<_> = rows(&pages, from.id.as_str()).into_iter().map(shared).collect();
    let epoch = to.team.lines(&format!("SELECT epoch FROM teams WHERE id = '{}'", to.id));
    to.import(&pages);
    // Its own owner, the team's event and what the import itself said are not the other's.
    let found: Vec<_> = rows(&to.export(), &to.id).into_iter().map(shared).collect();
    let without = |all: &[String], other: &[String]| -> Vec<String> {
        let differs =
            |row: &&String| !other.contains(row) && !row.contains(r#""resource_id":"TEAM""#);
        all.iter().filter(differs).cloned().collect()
    };
    assert_eq!(without(&expected, &found), Vec::<String>::new(), "lost");
    let added = without(&found, &expected);
    assert!(added.iter().all(|row| row.contains(r#""name":"Ada""#)), "{added:?}");
    assert!(added.len() <= 1, "{added:?}");
    let after = to.team.lines(&format!("SELECT epoch FROM teams WHERE id = '{}'", to.id));
    assert_ne!(epoch, after);

    for id in sessions {
        for path in [
            format!("/sessions/{id}"),
            format!("/sessions/{id}/messages?limit=200"),
            format!("/sessions/{id}/versions"),
            format!("/sessions/{id}/artifacts"),
            format!("/sessions/{id}/export"),
        ] {
            let mut old = here(from).get(&path);
            let new = to.get(&path);
            assert_eq!((old.status, new.status), (200, 200), "{path}");
            if path.ends_with("export") {
                assert_eq!(old.bytes, new.bytes);
                continue;
            }
            old.json["context"] = new.json["context"].clone();
            assert_eq!(old.json, new.json, "{path}");
        }
    }
    for q in ["both", "nul", "hand"] {
        let path = format!("/sessions?q={q}");
        let hits = |got: Got| got.items().iter().map(|hit| hit["hit"].clone()).collect::<Vec<_>>();
        let (old, new) = (hits(here(from).get(&path)), hits(to.get(&path)));
        assert!(!new.is_empty(), "{q}");
        assert_eq!(old, new, "{q}");
    }
    let runs = |place: &Place| {
        let moved = place.get("/run-changes").data(200)["runs"].to_string();
        let events = ["z", "a%00b", "again"].map(|run| {
            let got = place.get(&format!("/runs/{run}/events"));
            let own = |event: &Json| (event["id"].clone(), event["payload"].clone());
            got.items().iter().map(own).collect::<Vec<_>>()
        });
        let claim = place.get("/runs/z/claim").data(200).clone();
        (moved, events, claim, place.get("/runs").items().clone())
    };
    assert_eq!(runs(&here(from)), runs(to));
    let late = json!({ "events": [{ "id": "late", "sequence": 9, "kind": "k", "payload": 1 }],
        "claim": { "holder": "h1", "fence": 1 } });
    let late = to.send("POST", "/runs/z/events", late.to_string().as_bytes());
    assert_eq!(late.refusal().1, "claim_held", "fences move too");
    assert_eq!(to.get("/runs/z/fenced/h1").data(200)["fenced"], true);

    let artifacts = to.get(&format!("/sessions/{}/artifacts", sessions[0]));
    let upload = artifacts.items()[0]["upload_id"].as_str().unwrap().to_owned();
    assert_eq!(to.get(&format!("/uploads/{upload}/content")).bytes, vec![7; 100_000]);
    let current = to.get("/events/current?limit=200");
    assert!(current.items().iter().any(|event| event["resource_id"] == sessions[1].as_str()));
    let machine = to.get(&format!("/machines/{}", laptop.machine_id));
    assert_eq!(machine.data(200)["name"], "laptop");

    // Nothing of what came goes before its time, and what is due goes as it would have.
    let before = rows(&to.export(), &to.id);
    to.team.settle();
    assert_eq!(rows(&to.export(), &to.id), before);
    oracle::check(to.team);
    to.team.advance(2 * DAY_MS);
    oracle::check(to.team);
    assert_eq!(to.get(&format!("/uploads/{upload}/content")).status, 200);
    let output = format!("/content/sha256:{}", hex(&Sha256::digest(OUTPUT)));
    assert_eq!(to.get(&output).bytes, OUTPUT, "its event names it");
    assert_eq!(to.get(&format!("/sessions/{}/messages", sessions[0])).items().len(), 6);
}

/// Its rows without the ids of people.
fn nameless(place: &Place) -> Vec<String> {
    let rows = rows(&place.export(), &place.id);
    let mut rows: Vec<_> = rows.iter().map(|row| without_people(row)).collect();
    rows.sort();
    rows
}

/// A text with every principal's id replaced.
fn without_people(text: &str) -> String {
    let mut pieces = text.split("principal_");
    let mut out = pieces.next().unwrap().to_owned();
    for piece in pieces {
        let is_id = piece.get(..32).is_some_and(|digits| teamplane::ids::is_hex(digits, 32));
        out.push_str("principal_");
        out.push_str(if is_id { &piece[32..] } else { piece });
    }
    out
}

#[test]
fn a_team_moves_to_another_object_and_stays_what_it_was() {
    let (from, laptop, sessions) = full();
    let object = Team::elsewhere();
    object.now_ms.set(from.now_ms.get());
    let (id, owner) = object.another("New");
    let to = Place { team: &object, id: id.to_string(), owner };
    moves_to(&from, &to, &laptop, &sessions, false);
}

#[test]
fn a_team_moves_within_one_object_and_shares_nobody_with_the_old_one() {
    let (from, laptop, sessions) = full();
    let (id, owner) = from.another("New");
    let to = Place { team: &from, id: id.to_string(), owner };
    moves_to(&from, &to, &laptop, &sessions, true);
    let shared = "SELECT count(*) FROM (SELECT principal_id FROM memberships
                   GROUP BY principal_id HAVING count(*) > 1)";
    assert_eq!(from.count(shared), 0);
}

#[test]
fn an_import_needs_an_empty_team_and_pages_in_order_that_may_come_twice() {
    let (from, ..) = full();
    let pages = here(&from).export();
    let (cursor, page) = &pages[0];
    assert_eq!((cursor, pages.len()), (&None, 1));
    let got = here(&from).send("POST", "/import", page);
    assert_eq!(got.refusal(), (409, "conflict", ""));
    let (id, owner) = from.another("New");
    let to = Place { team: &from, id: id.to_string(), owner };
    // Cut into pages by hand.
    let text: Vec<&str> = std::str::from_utf8(page).unwrap().lines().collect();
    let (first, last) = (text[0], text[text.len() - 1]);
    let half = text.len() / 2;
    let one = [&text[..half], &[r#"{"next_cursor":"c2"}"#]].concat().join("\n");
    let two = [&[first][..], &text[half..text.len() - 1], &[last]].concat().join("\n");
    let send = |cursor: Option<&str>, page: &str| {
        to.send("POST", &with_cursor("/import", cursor), page.as_bytes())
    };
    assert_eq!(send(Some("c2"), &two).refusal(), (409, "conflict", ""));
    let marks = from.marks();
    let broken = one.replace(r#"{"table":"machines""#, r#"{"table":"no""#);
    assert_eq!(send(None, &broken).refusal(), (400, "invalid_request", "table"));
    assert_eq!(from.marks(), marks);
    assert_eq!(from.count("SELECT count(*) FROM teams WHERE import_json IS NOT NULL"), 0);
    assert_eq!(send(None, &one).data(200)["next_cursor"], "c2");
    let counts = |team: &Team| team.lines("SELECT count(*) FROM machines");
    let before = counts(&from);
    assert_eq!(send(None, &one).data(200)["next_cursor"], "c2");
    assert_eq!(counts(&from), before);
    // Until its end nobody makes anything.
    let got = to.send("POST", "/groups", br#"{"name":"x"}"#);
    assert_eq!(got.refusal(), (503, "overloaded", ""));
    assert_eq!(send(Some("c3"), &two).refusal().1, "invalid_cursor");
    let foreign = two.replace(r#""begun_at":"#, r#""begun_at":1"#);
    assert_eq!(send(Some("c2"), &foreign).refusal(), (409, "conflict", ""));
    assert_eq!(send(Some("c2"), &two).data(200)["next_cursor"], Json::Null);
    let marks = from.marks();
    assert_eq!(send(Some("c2"), &two).data(200)["next_cursor"], Json::Null);
    assert_eq!(from.marks(), marks);
    assert_eq!(send(None, &one).refusal(), (409, "conflict", ""));
    assert_eq!(to.send("POST", "/groups", br#"{"name":"x"}"#).status, 201);
    assert_eq!(to.get("/journal").items().last().unwrap()["action"], "team.imported");
}

#[test]
fn an_import_cut_off_anywhere_goes_on_and_comes_to_the_same() {
    let (from, ..) = full();
    let pages = here(&from).export();
    let expected = {
        let (id, owner) = from.another("Whole");
        let to = Place { team: &from, id: id.to_string(), owner };
        to.import(&pages);
        nameless(&to)
    };
    for cut in (3..).step_by(17) {
        let (id, owner) = from.another("Whole");
        let to = Place { team: &from, id: id.to_string(), owner };
        from.driver.fail_after(Some(cut));
        let got = to.send("POST", "/import", &pages[0].1);
        from.driver.fail_after(None);
        if got.status == 200 {
            assert!(cut > 60, "an import of {cut} statements");
            break;
        }
        assert_eq!(got.status, 500);
        from.settle();
        to.import(&pages);
        assert_eq!(nameless(&to), expected, "after {cut}");
    }
}

#[test]
fn what_no_export_wrote_is_refused_by_name() {
    let (from, ..) = full();
    let page = String::from_utf8(here(&from).export().remove(0).1).unwrap();
    let text: Vec<&str> = page.lines().collect();
    let (id, owner) = from.another("New");
    let to = Place { team: &from, id: id.to_string(), owner };
    let of = |table: &str| {
        let lead = format!(r#"{{"table":"{table}""#);
        (*text.iter().find(|line| line.starts_with(&lead)).unwrap()).to_owned()
    };
    let cases = [
        (of("machines").replace(r#""revision":"#, r#""revision":"x","no":"#), "machines.no"),
        (of("machines").replace(r#""revision":"#, r#""revision":"x","name":"#), "name"),
        (of("sources").replace(r#""active""#, r#""odd""#), "sources"),
        (of("captures").replace(r#""begin_json":""#, r#""begin_json":"x"#), "captures.begin_json"),
        (of("sync_rules").replace("root_id", "root"), "sync_rules.value_json"),
        (of("messages"), "session_id"),
        (of("run_events").replace(r#""sequence":"#, r#""sequence":-"#), "row.sequence"),
        (
            of("run_events").replace(r#""payload_json":""#, r#""payload_json":"x"#),
            "run_events.payload_json",
        ),
        (of("artifact_blobs").replace(r#""size":"#, r#""size":1"#), "bytes"),
        (of("memberships").replace("principal_", "p_"), "memberships.no"),
    ];
    let (first, last) = (text[0], text[text.len() - 1]);
    for (line, field) in cases {
        let body = [first, &line, last].join("\n");
        let got = to.send("POST", "/import", body.as_bytes());
        let (status, code, found) = got.refusal();
        assert_eq!((status, code), (400, "invalid_request"), "{line}: {}", got.json);
        assert!(field == found || field.ends_with("no"), "{found} for {line}");
    }
    for body in ["", "{}", "{}\n{}", "{\n}\n"] {
        assert_eq!(to.send("POST", "/import", body.as_bytes()).status, 400, "{body}");
    }
    assert_eq!(from.count("SELECT count(*) FROM teams WHERE import_json IS NOT NULL"), 0);
}

#[test]
fn an_export_goes_by_cursor_and_shows_each_session_as_it_was_begun() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let long = |word: &str| -> Vec<Json> {
        let text = format!("{word} {}", "x".repeat(200_000));
        (0..120).map(|n| json!({ "ordinal": n, "role": "user", "text": text })).collect()
    };
    let capture = team.begin(&laptop.token, json!({ "harness": "h", "native_id": "n" }));
    let publish = |capture: &str, messages: &[Json]| {
        for (index, part) in messages.chunks(4).enumerate() {
            let path = format!("/captures/{capture}/parts/{index}");
            let body = json!({ "messages": part }).to_string();
            assert_eq!(team.put(&laptop.token, &path, &body).status, 204);
        }
        let parts = messages.len().div_ceil(4);
        team.post(&laptop.token, &format!("/captures/{capture}/commit"), json!({ "parts": parts }))
    };
    assert_eq!(publish(&capture, &long("old")).status, 200);
    let first = here(&team).get("/export");
    let next = lines(&first.bytes).last().unwrap()["next_cursor"].as_str().unwrap().to_owned();
    assert!(first.bytes.len() > TRANSFER_BYTES_MAX - (1 << 20));
    let (begin, end) =
        (lines(&first.bytes)[0].clone(), lines(&first.bytes).last().unwrap().clone());
    assert_eq!((&begin["epoch"], &begin["sequence"]), (&end["epoch"], &end["sequence"]));
    // A new version, and the pass that would remove the old one.
    let capture = team.begin(&laptop.token, json!({ "harness": "h", "native_id": "n" }));
    assert_eq!(publish(&capture, &long("new")).status, 200);
    team.settle();
    let path = format!("/export?cursor={next}");
    let second = here(&team).get(&path);
    assert_eq!(
        lines(&second.bytes),
        lines(&here(&team).get(&path).bytes),
        "a cursor is good again"
    );
    let all: Vec<Json> = lines(&first.bytes).into_iter().chain(lines(&second.bytes)).collect();
    let messages: Vec<_> = all.iter().filter(|line| line["table"] == "messages").collect();
    assert_eq!(messages.len(), 120);
    assert!(
        messages.iter().all(|line| line["row"]["value_json"].as_str().unwrap().contains("old "))
    );
    let versions: Vec<_> = all.iter().filter(|line| line["table"] == "session_versions").collect();
    assert_eq!(versions.len(), 1);

    team.advance(EXPORT_AGE_MS);
    assert_eq!(here(&team).get(&path).refusal(), (410, "expired", ""));
    for bad in ["x", "e30"] {
        assert_eq!(here(&team).get(&format!("/export?cursor={bad}")).refusal().1, "invalid_cursor");
    }
    let other = team.person("other", Role::Admin);
    assert_eq!(team.get(&other.token, &path).refusal().1, "invalid_cursor");
    // Deleted while it is read, it is taken back.
    let first = here(&team).get("/export");
    let next = lines(&first.bytes).last().unwrap()["next_cursor"].as_str().unwrap().to_owned();
    let id = team.lines("SELECT id FROM sessions").remove(0);
    assert_eq!(team.delete(&token_of(&team, &laptop), &format!("/sessions/{id}")).status, 204);
    let second = here(&team).get(&format!("/export?cursor={next}"));
    assert_eq!(lines(&second.bytes)[1], json!({ "deleted": id }));
    let actions = here(&team).get("/journal");
    assert!(actions.items().iter().any(|line| line["action"] == "team.exported"));
}

#[test]
fn a_wiped_team_takes_its_own_export_back() {
    let (team, laptop, sessions) = full();
    let pages = here(&team).export();
    let before = rows(&pages, team.id_text());
    assert_eq!(team.post(&team.owner, "/wipe", json!({ "confirm": "Acme" })).status, 200);
    let got = here(&team).send("POST", "/import", &pages[0].1);
    assert_eq!(got.refusal(), (409, "conflict", ""));
    team.settle();
    here(&team).import(&pages);
    // The team's own events went on meanwhile.
    let same = |rows: Vec<String>| -> Vec<String> {
        rows.into_iter().filter(|row| !row.contains(r#""resource_id":"TEAM""#)).collect()
    };
    assert_eq!(same(rows(&here(&team).export(), team.id_text())), same(before));
    team.settle();
    oracle::check(&team);
    // Whoever had a token goes on where it was.
    let more =
        json!({ "harness": "codex", "native_id": "n2", "base": { "revision": 1, "keep": 1 } });
    let grown = team.publish_with(&laptop.token, more, &messages(1, 2, "on"));
    assert_eq!(session(&grown), sessions[1]);
}
