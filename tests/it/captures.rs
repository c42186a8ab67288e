use crate::capture::{messages, session};
use crate::team::{Publisher, Team};
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::limits::{CAPTURE_AGE_MS, DAY_MS, MESSAGE_BYTES_MAX, TITLE_CHARS_MAX};

fn begin(native_id: &str) -> Json {
    json!({ "harness": "claude-code", "native_id": native_id })
}

fn texts(team: &Team, token: &str, path: &str) -> Vec<String> {
    let got = team.get(token, path);
    got.items().iter().map(|m| m["text"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_session_goes_in_and_comes_back_as_it_was_sent() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let committed = team.publish(&laptop.token, "n1", &messages(0, 3, "hello"));
    assert_eq!(committed["revision"], 1);
    assert_eq!(committed["message_count"], 3);
    assert_eq!(committed["unchanged"], false);

    let id = session(&committed);
    let got = team.get(&laptop.token, &format!("/sessions/{id}"));
    assert_eq!(got.data(200)["message_count"], 3);
    assert_eq!(got.data(200)["source_ids"], json!([laptop.source_id]));
    assert_eq!(got.data(200)["activity"], Json::Null);
    assert_eq!(got.header("etag"), Some("\"1-0\""));
    let got = team.get(&laptop.token, &format!("/sessions/{id}/messages"));
    assert_eq!(got.items(), &messages(0, 3, "hello"));
    assert_eq!(got.json["last"], 2);
}

#[test]
fn the_same_capture_again_makes_no_version() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let titled = json!({
        "harness": "claude-code", "native_id": "n1", "title": "T", "projection": { "a": 1.10 }
    });
    team.publish_with(&laptop.token, titled.clone(), &messages(0, 3, "a"));
    let again = team.publish_with(&laptop.token, titled, &messages(0, 3, "a"));
    assert_eq!((&again["revision"], &again["unchanged"]), (&json!(1), &json!(true)));
    let other = json!({ "harness": "claude-code", "native_id": "n1", "title": "U" });
    let other = team.publish_with(&laptop.token, other, &messages(0, 3, "a"));
    assert_eq!((&other["revision"], &other["unchanged"]), (&json!(2), &json!(false)));
    assert_eq!(team.count("SELECT count(*) FROM messages"), 3);
}

#[test]
fn messages_are_carried_and_every_version_reads_as_it_was() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n1", &messages(0, 5, "a")));
    let mut second = messages(0, 7, "a");
    second[2] = json!({ "ordinal": 2, "role": "user", "text": "rewritten" });
    team.publish(&laptop.token, "n1", &second);
    assert_eq!(team.count("SELECT count(*) FROM messages"), 5 + 1 + 2);
    team.publish(&laptop.token, "n1", &messages(0, 2, "a"));
    assert_eq!(team.count("SELECT count(*) FROM messages"), 8);
    assert_eq!(team.count("SELECT count(*) FROM messages WHERE until_revision < 1000"), 1 + 5);
    // What no current version holds is not found.
    assert_eq!(
        team.count("SELECT count(*) FROM message_search WHERE message_search MATCH 'rewritten'"),
        0
    );
    assert_eq!(team.count("SELECT count(*) FROM message_search WHERE message_search MATCH 'a'"), 2);

    let read = |revision| {
        texts(&team, &laptop.token, &format!("/sessions/{id}/messages?revision={revision}"))
    };
    let want = |all: &[Json]| {
        all.iter().map(|m| m["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(read(1), want(&messages(0, 5, "a")));
    assert_eq!(read(2), want(&second));
    assert_eq!(read(3), want(&messages(0, 2, "a")));
    let versions = team.get(&laptop.token, &format!("/sessions/{id}/versions"));
    let current: Vec<_> =
        versions.items().iter().map(|v| (&v["revision"], &v["current"])).collect();
    assert_eq!(json!(current), json!([[3, true], [2, false], [1, false]]));
}

#[test]
fn a_base_carries_what_it_keeps() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n1", &messages(0, 600, "a")));
    let based = |revision: i64, keep: i64| json!({ "harness": "claude-code", "native_id": "n1", "base": { "revision": revision, "keep": keep } });
    let grown = team.publish_with(&laptop.token, based(1, 600), &messages(600, 603, "b"));
    assert_eq!((&grown["revision"], &grown["message_count"]), (&json!(2), &json!(603)));
    assert_eq!(team.count("SELECT count(*) FROM messages"), 603);
    let got = texts(&team, &laptop.token, &format!("/sessions/{id}/messages?after=598&limit=3"));
    assert_eq!(got, ["a number599", "b number600", "b number601"]);

    // Nothing sent: the session is cut.
    let cut = team.publish_with(&laptop.token, based(2, 100), &[]);
    assert_eq!(cut["message_count"], 100);
    assert_eq!(texts(&team, &laptop.token, &format!("/sessions/{id}/messages?after=97")).len(), 2);
    assert_eq!(
        texts(&team, &laptop.token, &format!("/sessions/{id}/messages?revision=2&after=600")).len(),
        2
    );

    let stale = team.post(&laptop.token, "/captures", based(2, 100));
    assert_eq!(stale.refusal(), (409, "revision_mismatch", ""));
    assert_eq!(stale.json["error"]["details"]["revision"], 3);
    let beyond = team.post(&laptop.token, "/captures", based(3, 101));
    assert_eq!(beyond.refusal(), (400, "invalid_request", "base.keep"));
    let fresh = json!({ "harness": "claude-code", "native_id": "n9", "base": { "revision": 1, "keep": 0 } });
    assert_eq!(team.post(&laptop.token, "/captures", fresh).refusal().1, "revision_mismatch");
}

#[test]
fn of_two_captures_on_one_base_the_second_commit_loses_and_leaves_nothing() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    team.publish(&laptop.token, "n1", &messages(0, 2, "a"));
    let based = json!({ "harness": "claude-code", "native_id": "n1", "base": { "revision": 1, "keep": 2 } });
    let (one, two) = (team.begin(&laptop.token, based.clone()), team.begin(&laptop.token, based));
    team.fill(&laptop.token, &one, &messages(2, 4, "b")).data(200);
    let lost = team.fill(&laptop.token, &two, &messages(2, 5, "c"));
    assert_eq!(lost.refusal(), (409, "revision_mismatch", ""));
    assert_eq!(team.count("SELECT count(*) FROM messages"), 4);
    assert_eq!(team.count("SELECT count(*) FROM session_versions"), 2);
    // A repeated commit answers as the first did.
    let again = team.post(&laptop.token, &format!("/captures/{one}/commit"), json!({ "parts": 1 }));
    assert_eq!(again.data(200)["revision"], 2);
}

#[test]
fn parts_come_in_any_order_and_again() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let capture = team.begin(&laptop.token, begin("n1"));
    let put = |index: usize, messages: &[Json]| {
        let path = format!("/captures/{capture}/parts/{index}");
        team.put(&laptop.token, &path, &json!({ "messages": messages }).to_string())
    };
    assert_eq!(put(2, &messages(4, 5, "a")).status, 204);
    assert_eq!(put(0, &messages(0, 2, "a")).status, 204);
    assert_eq!(put(0, &messages(0, 2, "a")).status, 204);
    assert_eq!(put(0, &messages(0, 2, "b")).refusal(), (409, "conflict", ""));
    let commit = |parts: i64| {
        team.post(&laptop.token, &format!("/captures/{capture}/commit"), json!({ "parts": parts }))
    };
    let got = commit(3);
    assert_eq!(got.refusal(), (409, "capture_incomplete", ""));
    assert_eq!(got.json["error"]["details"]["missing"], json!([1]));
    assert_eq!(commit(1).refusal().1, "capture_incomplete");
    let held = team.get(&laptop.token, &format!("/captures/{capture}"));
    assert_eq!(held.data(200)["parts"], json!([0, 2]));
    assert_eq!(held.data(200)["state"], "staging");
    assert_eq!(put(1, &messages(2, 4, "a")).status, 204);
    assert_eq!(commit(3).data(200)["message_count"], 5);
    assert_eq!(put(1, &messages(2, 4, "a")).status, 204);
    assert_eq!(put(3, &messages(5, 6, "a")).refusal(), (409, "conflict", ""));
    assert_eq!(team.delete(&laptop.token, &format!("/captures/{capture}")).refusal().0, 409);
}

#[test]
fn ordinals_must_follow_each_other_without_gap_or_repeat() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    for (name, ordinals) in [("gap", vec![0, 2]), ("late", vec![1, 2]), ("twice", vec![0, 1, 1])] {
        let capture = team.begin(&laptop.token, begin(name));
        for (index, ordinal) in ordinals.iter().enumerate() {
            let part = json!({ "messages": messages(*ordinal, ordinal + 1, "a") }).to_string();
            team.put(&laptop.token, &format!("/captures/{capture}/parts/{index}"), &part);
        }
        let body = json!({ "parts": ordinals.len() });
        let got = team.post(&laptop.token, &format!("/captures/{capture}/commit"), body);
        assert_eq!(got.refusal(), (409, "capture_incomplete", ""), "{name}");
    }
    assert_eq!(team.count("SELECT count(*) FROM sessions"), 0);
}

#[test]
fn what_agents_write_comes_back_byte_for_byte() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let sent = [
        r#"{"ordinal":0,"role":"user","text":"현\ud99c 보 findme","\udc00":1}"#,
        r#"{"ordinal":1,"role":"tool","out":"before\u0000after","n":[9007199254740993,18446744073709551615,123456789012345678901234567890,1e400,-0,1.10]}"#,
        r#"{ "role" : "user",
             "ordinal" : 2, "text" : null }"#,
        r#"{"ordinal":3,"role":"assistant","text":"₹ മലയാളം 🧑‍🚀 \u2028"}"#,
    ];
    let deep = format!(
        r#"{{"ordinal":4,"role":"user","deep":{}1{}}}"#,
        "[".repeat(5000),
        "]".repeat(5000)
    );
    let mut all: Vec<&str> = sent.to_vec();
    all.push(&deep);
    let capture =
        team.begin(&laptop.token, json!({ "harness": "codex", "native_id": "odd", "title": "x" }));
    let part = format!(r#"{{"messages":[{}]}}"#, all.join(","));
    let got = team.put(&laptop.token, &format!("/captures/{capture}/parts/0"), &part);
    assert_eq!(got.status, 204, "{}", got.json);
    let got =
        team.post(&laptop.token, &format!("/captures/{capture}/commit"), json!({ "parts": 1 }));
    let id = session(got.data(200));
    let got = team.get(&laptop.token, &format!("/sessions/{id}/messages"));
    let body = String::from_utf8(got.bytes).unwrap();
    for message in all {
        assert!(body.contains(message), "{message}\n{body}");
    }
    for word in ["findme", "after", "മലയാളം"] {
        let found = team.get(&laptop.token, &format!("/sessions?q={word}"));
        assert_eq!(found.items().len(), 1, "{word}");
    }
}

#[test]
fn titles_are_made_well_formed() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let title_of = |native_id: &str, title: &str| {
        let body = format!(r#"{{"harness":"codex","native_id":"{native_id}","title":"{title}"}}"#);
        let got = team.send(&laptop.token, "POST", "/captures", &[], Some(body.as_bytes()));
        let capture = got.data(201)["id"].as_str().unwrap().to_owned();
        let id = session(team.fill(&laptop.token, &capture, &messages(0, 1, "a")).data(200));
        team.get(&laptop.token, &format!("/sessions/{id}")).data(200)["title"].clone()
    };
    assert_eq!(title_of("a", "ends \\ud83d"), "ends \u{fffd}");
    assert_eq!(title_of("b", "one\\ntwo\\u0000"), "one two");
    assert_eq!(title_of("c", "   "), Json::Null);
    let long = title_of("d", &"😀".repeat(10_000));
    assert_eq!(long.as_str().unwrap().chars().count(), TITLE_CHARS_MAX);
}

#[test]
fn bad_input_names_its_field_and_leaves_nothing() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let long = "x".repeat(257);
    let cases: &[(Json, &str)] = &[
        (json!({ "native_id": "n" }), "harness"),
        (json!({ "harness": 1, "native_id": "n" }), "harness"),
        (json!({ "harness": "h".repeat(65), "native_id": "n" }), "harness"),
        (json!({ "harness": "h", "native_id": long }), "native_id"),
        (json!({ "harness": "h", "native_id": "" }), "native_id"),
        (json!({ "harness": "h", "native_id": "n", "extra": 1 }), "extra"),
        (json!({ "harness": "h", "native_id": "n", "projection": [] }), "projection"),
        (
            json!({ "harness": "h", "native_id": "n", "base": { "revision": 0, "keep": 0 } }),
            "base.revision",
        ),
        (json!({ "harness": "h", "native_id": "n", "base": { "revision": 1 } }), "base.keep"),
        (json!({ "harness": "h", "native_id": "n", "session_id": "session_x" }), "session_id"),
        (
            json!({ "harness": "h", "native_id": "n", "artifacts": [{ "bundle_id": "", "upload_id": format!("upload_{}", "0".repeat(32)), "name": "a" }] }),
            "artifacts[0].bundle_id",
        ),
    ];
    for (body, field) in cases {
        let got = team.post(&laptop.token, "/captures", body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", *field), "{body}");
    }
    assert_eq!(team.count("SELECT count(*) FROM captures"), 0);
    let capture = team.begin(&laptop.token, begin("n1"));
    let parts: &[(&str, u16, &str, &str)] = &[
        ("{", 400, "invalid_json", ""),
        (r#"{"messages":[1]}"#, 400, "invalid_request", "messages[0]"),
        (r#"{"messages":[{"role":"user"}]}"#, 400, "invalid_request", "messages[0].ordinal"),
        (r#"{"messages":[{"ordinal":0}]}"#, 400, "invalid_request", "messages[0].role"),
        (
            r#"{"messages":[{"ordinal":-1,"role":"user"}]}"#,
            400,
            "invalid_request",
            "messages[0].ordinal",
        ),
        (
            r#"{"messages":[{"ordinal":0.5,"role":"user"}]}"#,
            400,
            "invalid_request",
            "messages[0].ordinal",
        ),
        (
            r#"{"messages":[{"ordinal":9007199254740993,"role":"user"}]}"#,
            400,
            "invalid_request",
            "messages[0].ordinal",
        ),
        (
            r#"{"messages":[{"ordinal":0,"role":"u"},{"ordinal":0,"role":"u"}]}"#,
            400,
            "invalid_request",
            "messages[1].ordinal",
        ),
        (r#"{"messages":[],"more":1}"#, 400, "invalid_request", "more"),
        ("{}", 400, "invalid_request", "messages"),
    ];
    for (body, status, code, field) in parts {
        let got = team.put(&laptop.token, &format!("/captures/{capture}/parts/0"), body);
        assert_eq!(got.refusal(), (*status, *code, *field), "{body}");
    }
    let path = format!("/captures/{capture}/parts/2000");
    assert_eq!(team.put(&laptop.token, &path, r#"{"messages":[]}"#).refusal().2, "index");
    let path = format!("/captures/{capture}/parts/x");
    assert_eq!(team.put(&laptop.token, &path, r#"{"messages":[]}"#).status, 404);
    assert_eq!(team.count("SELECT count(*) FROM capture_parts"), 0);
}

#[test]
fn a_message_too_large_is_refused_with_the_limit_and_the_others_stay() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let capture = team.begin(&laptop.token, begin("n1"));
    let part = |bytes: usize| {
        let head = r#"{"ordinal":1,"role":"user","text":""}"#.len();
        let text = "x".repeat(bytes - head);
        format!(r#"{{"messages":[{{"ordinal":1,"role":"user","text":"{text}"}}]}}"#)
    };
    let put = |index: usize, body: &str| {
        team.put(&laptop.token, &format!("/captures/{capture}/parts/{index}"), body)
    };
    assert_eq!(put(0, &json!({ "messages": messages(0, 1, "a") }).to_string()).status, 204);
    for bytes in [MESSAGE_BYTES_MAX + 1, 2_000_001, 2_097_153, 4_194_305] {
        let got = put(1, &part(bytes));
        assert_eq!(got.refusal().0, 413, "{bytes}");
        assert!(got.json["error"]["details"]["limit"].is_number(), "{}", got.json);
    }
    assert_eq!(put(1, &part(MESSAGE_BYTES_MAX)).status, 204);
    let got =
        team.post(&laptop.token, &format!("/captures/{capture}/commit"), json!({ "parts": 2 }));
    assert_eq!(got.data(200)["message_count"], 2);
}

#[test]
fn a_part_of_escapes_only_is_stored_whole() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let capture = team.begin(&laptop.token, begin("n1"));
    let escapes = "\\\"".repeat(250_000);
    let body = format!(
        r#"{{"messages":[{{"ordinal":0,"role":"u","text":"{escapes}"}},{{"ordinal":1,"role":"u","text":"{escapes}"}}]}}"#
    );
    assert_eq!(team.put(&laptop.token, &format!("/captures/{capture}/parts/0"), &body).status, 204);
    let got =
        team.post(&laptop.token, &format!("/captures/{capture}/commit"), json!({ "parts": 1 }));
    let id = session(got.data(200));
    let got = team.get(&laptop.token, &format!("/sessions/{id}/messages"));
    assert_eq!(got.items()[1]["text"].as_str().unwrap().len(), 250_000);
}

#[test]
fn a_capture_belongs_to_its_maker() {
    let team = Team::new();
    let (laptop, other) = (team.publisher("laptop"), team.publisher("other"));
    let capture = team.begin(&laptop.token, begin("n1"));
    let path = format!("/captures/{capture}");
    assert_eq!(team.get(&other.token, &path).status, 404);
    assert_eq!(
        team.put(&other.token, &format!("{path}/parts/0"), r#"{"messages":[]}"#).status,
        404
    );
    assert_eq!(
        team.post(&other.token, &format!("{path}/commit"), json!({ "parts": 0 })).status,
        404
    );
    assert_eq!(team.delete(&other.token, &path).status, 404);
    let admin = team.person("Admin", Role::Admin);
    assert_eq!(team.get(&admin.token, &path).status, 200);
    let viewer = team.person("Viewer", Role::Viewer);
    assert_eq!(team.post(&viewer.token, "/captures", begin("n1")).refusal().2, "source_id");
    let mut named = begin("n1");
    named["source_id"] = json!(laptop.source_id);
    assert_eq!(team.post(&viewer.token, "/captures", named.clone()).status, 403);
    let member = team.person("Member", Role::Member);
    assert_eq!(team.post(&member.token, "/captures", named).status, 404);
    assert_eq!(team.delete(&admin.token, &path).status, 204);
    assert_eq!(team.delete(&laptop.token, &path).status, 204);
    let got = team.post(&laptop.token, &format!("{path}/commit"), json!({ "parts": 0 }));
    assert_eq!(got.refusal(), (409, "conflict", ""));
}

#[test]
fn a_capture_ends_a_day_after_it_began() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let capture = team.begin(&laptop.token, begin("n1"));
    team.advance(CAPTURE_AGE_MS - 1);
    assert_eq!(team.get(&laptop.token, &format!("/captures/{capture}")).status, 200);
    team.advance(1);
    assert_eq!(team.get(&laptop.token, &format!("/captures/{capture}")).refusal().1, "expired");
    let got =
        team.post(&laptop.token, &format!("/captures/{capture}/commit"), json!({ "parts": 0 }));
    assert_eq!(got.refusal(), (410, "expired", ""));
    assert_eq!(team.count("SELECT count(*) FROM sessions"), 0);
}

#[test]
fn a_session_may_have_several_sources() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let desk = team.publisher_of(&laptop.custodian_id, "desk");
    let stranger = team.publisher("stranger");
    let id = session(&team.publish(&laptop.token, "n1", &messages(0, 2, "a")));
    let bound = |token: &str, native_id: &str, session_id: &str| {
        let body = json!({ "harness": "codex", "native_id": native_id, "session_id": session_id });
        team.post(token, "/captures", body)
    };
    assert_eq!(bound(&stranger.token, "x", &id).status, 404);
    let capture = bound(&desk.token, "n2", &id).data(201)["id"].as_str().unwrap().to_owned();
    let committed = team.fill(&desk.token, &capture, &messages(0, 3, "a")).data(200).clone();
    assert_eq!((&committed["session_id"], &committed["revision"]), (&json!(id), &json!(2)));
    let got = team.get(&laptop.token, &format!("/sessions/{id}"));
    let mut sources = [laptop.source_id.to_string(), desk.source_id.to_string()];
    sources.sort();
    assert_eq!(got.data(200)["source_ids"], json!(sources));
    assert_eq!(got.data(200)["harness"], "claude-code");
    // An origin stays with its session.
    let other = session(&team.publish(&laptop.token, "n3", &messages(0, 1, "c")));
    assert_eq!(bound(&desk.token, "n2", &other).refusal(), (409, "conflict", ""));
    // A capture of either source builds on the current version, whoever made it.
    let third = team.publish(&laptop.token, "n1", &messages(0, 3, "a"));
    assert_eq!((&third["revision"], &third["unchanged"]), (&json!(3), &json!(false)));
    assert_eq!(team.count("SELECT count(*) FROM messages"), 3 + 1);
}

#[test]
fn the_origin_of_a_deleted_session_says_so_until_it_is_restored() {
    let team = Team::new();
    let laptop: Publisher = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n1", &messages(0, 2, "a")));
    let begun = team.begin(&laptop.token, begin("n1"));
    team.db()
        .transaction(|tx| teamplane::domain::sessions::mark_deleted(tx, &team.id, &id.parse()?))
        .unwrap();
    assert_eq!(
        team.post(&laptop.token, "/captures", begin("n1")).refusal(),
        (410, "session_deleted", "")
    );
    assert_eq!(
        team.fill(&laptop.token, &begun, &messages(0, 2, "a")).refusal().1,
        "session_deleted"
    );
    let mut restored = begin("n1");
    restored["restore"] = json!(true);
    let again = team.publish_with(&laptop.token, restored, &messages(0, 2, "a"));
    assert_ne!(session(&again), id);
    assert_eq!(again["revision"], 1);
    assert_eq!(team.get(&laptop.token, &format!("/sessions/{id}")).status, 404);
}

#[test]
fn begin_is_repeated_by_its_key() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let body = begin("n1").to_string();
    let send = |key: &str, body: &str| {
        team.send(
            &laptop.token,
            "POST",
            "/captures",
            &[("idempotency-key", key)],
            Some(body.as_bytes()),
        )
    };
    let first = send("k", &body);
    let again = send("k", &body);
    assert_eq!(first.data(201)["id"], again.data(201)["id"]);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(send("k", &begin("n2").to_string()).refusal().1, "idempotency_mismatch");
    assert_eq!(send("", &body).refusal().2, "Idempotency-Key");
    assert_eq!(send("bad", "{}").status, 400);
    assert_eq!(send("bad", &body).status, 201);
    team.advance(DAY_MS);
    assert_ne!(first.data(201)["id"], send("k", &body).data(201)["id"]);
}

#[test]
fn a_change_writes_its_event() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n1", &messages(0, 1, "a")));
    team.publish(&laptop.token, "n1", &messages(0, 2, "a"));
    let of = |name: &str| {
        team.count(&format!(
            "SELECT count(*) FROM org_events WHERE type = '{name}' AND resource_id = '{id}'"
        ))
    };
    assert_eq!((of("session.created"), of("session.updated")), (1, 1));
    assert_eq!(
        team.count("SELECT count(*) FROM event_resources WHERE resource_kind = 'session'"),
        1
    );
}

#[test]
fn a_new_origin_is_bound_even_if_it_brings_nothing_new() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n1", &messages(0, 2, "a")));
    let resumed = json!({ "harness": "claude-code", "native_id": "n2", "session_id": id });
    let bound = team.publish_with(&laptop.token, resumed, &messages(0, 2, "a"));
    assert_eq!((&bound["session_id"], &bound["unchanged"]), (&json!(id), &json!(true)));
    let next = team.publish(&laptop.token, "n2", &messages(0, 3, "a"));
    assert_eq!((&next["session_id"], &next["revision"]), (&json!(id), &json!(2)));
}

#[test]
fn a_body_may_name_only_so_many_uploads() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let naming = |count: usize| {
        let names: Vec<String> = (0..count).map(|n| format!("upload_{n:032x}")).collect();
        json!({ "harness": "codex", "native_id": "n1", "title": names.join(" ") })
    };
    assert_eq!(team.post(&laptop.token, "/captures", naming(50)).status, 201);
    let refused = team.post(&laptop.token, "/captures", naming(51));
    assert_eq!(refused.refusal(), (400, "invalid_request", "upload ids"));
}

#[test]
fn a_paused_source_takes_no_part() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let capture = team.begin(&laptop.token, begin("n1"));
    team.driver.connection().execute("UPDATE sources SET state = 'paused'", []).unwrap();
    let path = format!("/captures/{capture}/parts/0");
    let refused = team.put(&laptop.token, &path, r#"{"messages":[]}"#);
    assert_eq!(refused.refusal(), (409, "conflict", ""));
    assert_eq!(team.count("SELECT count(*) FROM capture_parts"), 0);
}

#[test]
fn machines_of_one_custodian_have_keys_of_their_own() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let desk = team.publisher_of(&laptop.custodian_id, "desk");
    let body = begin("n1").to_string();
    let send = |token: &str| {
        let key = [("idempotency-key", "k")];
        let got = team.send(token, "POST", "/captures", &key, Some(body.as_bytes()));
        (got.data(201)["id"].clone(), got.data(201)["source_id"].clone())
    };
    let (first, second) = (send(&laptop.token), send(&desk.token));
    assert_ne!(first.0, second.0);
    assert_eq!(second.1, json!(desk.source_id));
}

#[test]
fn a_strangers_expired_capture_stays_unknown() {
    let team = Team::new();
    let (laptop, other) = (team.publisher("laptop"), team.publisher("other"));
    let capture = team.begin(&laptop.token, begin("n1"));
    team.advance(CAPTURE_AGE_MS);
    assert_eq!(team.get(&other.token, &format!("/captures/{capture}")).status, 404);
    assert_eq!(team.get(&laptop.token, &format!("/captures/{capture}")).status, 410);
}
