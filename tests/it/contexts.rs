//! Contexts: who may use one, what a commit and a move of the head do, and what comes back.
use crate::agent::{Agent, binding, capability, event, payload, revision, sha256, turn};
use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::auth::Role;

fn code(got: &crate::team::Got) -> (u16, &str) {
    let (status, code, _) = got.refusal();
    (status, code)
}

#[test]
fn a_turn_is_committed_and_read_again() {
    let team = Team::new();
    let agent = Agent::new(&team);
    let head = agent.ensure("c").data(200).clone();
    assert_eq!(head["revision"], revision(0, 0, 0));
    assert_eq!((&head["workspace"], &head["worktree"]), (&json!("default"), &Json::Null));
    assert_eq!(agent.load("c")["checkpoint"], Json::Null);

    let mut body = turn("op1", (0, 0, 0), "hello");
    body["events"][0]["payload_ref"] = json!("p1");
    body["payloads"] = json!([payload("p1", b"abc")]);
    body["checkpoint"]["summary_metadata"] = json!({ "kept": [1, 2] });
    let got = agent.commit("c", body);
    let done = got.data(200).clone();
    assert_eq!(done["revision"], revision(1, 1, 2));
    assert!(done["checkpoint_id"].as_str().unwrap().starts_with("ctxc_"));

    let loaded = agent.get("/contexts/c?events=true");
    assert_eq!(loaded.header("etag"), Some("\"1-1-2\""));
    let loaded = loaded.data(200);
    assert_eq!(loaded["revision"], revision(1, 1, 2));
    assert_eq!(loaded["checkpoint"]["id"], done["checkpoint_id"]);
    assert_eq!(
        loaded["checkpoint"]["active_context"],
        json!([{ "role": "user", "content": "hello" }])
    );
    assert_eq!(loaded["checkpoint"]["summary_metadata"], json!({ "kept": [1, 2] }));
    assert_eq!(loaded["checkpoint"]["source_end"], 2);
    assert_eq!(loaded["events"][0]["payload_ref"], "p1");
    assert_eq!(loaded["events"][1]["sequence"], 2);
    let bytes = agent.get("/contexts/c/payloads/p1");
    assert_eq!((bytes.status, bytes.bytes.as_slice()), (200, &b"abc"[..]));
    assert_eq!(bytes.header("etag"), Some(format!("\"{}\"", sha256(b"abc")).as_str()));
}

#[test]
fn what_was_sent_comes_back_byte_for_byte() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    let sent = r#"[ {"role":"user", "content":"\ud800 \u0000 12345678901234567890.0"},1e400 ]"#;
    let body = turn("op", (0, 0, 0), "x").to_string();
    let body = body.replace(r#"[{"content":"x","role":"user"}]"#, sent);
    let got = agent.send("POST", "/contexts/c/commit", Some(body.as_bytes()));
    assert_eq!(got.status, 200, "{}", got.json);
    let loaded = agent.get("/contexts/c").bytes;
    assert!(String::from_utf8(loaded).unwrap().contains(&format!(r#""active_context":{sent}}}"#)));
    // A large one comes in pieces.
    let large = format!("[\"{}\"]", "ä".repeat(700_000));
    let body = turn("op2", (1, 1, 2), "x").to_string();
    let body = body.replace(r#"[{"content":"x","role":"user"}]"#, &large);
    assert_eq!(agent.send("POST", "/contexts/c/commit", Some(body.as_bytes())).status, 200);
    let got = agent.get("/contexts/c");
    assert_eq!(got.header("content-type"), Some("application/json"));
    assert_eq!(
        got.json["data"]["checkpoint"]["active_context"],
        serde_json::from_str::<Json>(&large).unwrap()
    );
}

#[test]
fn a_context_is_there_once_and_its_own() {
    let team = Team::new();
    let agent = Agent::new(&team);
    let first = agent.ensure("c").data(200).clone();
    team.advance(5);
    let body = json!({ "binding": binding("m"), "dir": "/later", "title": "Later" });
    assert_eq!(agent.put("/contexts/c", body).data(200), &first, "nothing is refreshed");
    let other = json!({ "binding": binding("other") });
    let got = agent.put("/contexts/c", other.clone());
    assert_eq!(code(&got), (409, "stale_binding"));
    assert_eq!(got.json["error"]["details"]["binding"], binding("m"));
    // Whose it is comes first.
    let process = agent.with_capability(2);
    assert_eq!(code(&process.put("/contexts/c", other)), (403, "principal_mismatch"));
    let workspace = agent.with_scope("workspace=w");
    assert_eq!(code(&workspace.ensure("c")), (403, "principal_mismatch"), "the id is taken");
    let bob = team.person("bob", Role::Member);
    let bob = Agent { token: bob.token, ..agent.copy() };
    assert_eq!(code(&bob.ensure("c")), (403, "principal_mismatch"));
    assert_eq!(agent.ensure("é / b").status, 404, "an id with a slash has to be encoded");
    assert_eq!(agent.ensure("%C3%A9%20%2F%20b").data(200)["id"], "é / b");
    assert_eq!(agent.ensure(&"x".repeat(129)).refusal().2, "context");
    assert_eq!(agent.ensure("%20").refusal().2, "context");
}

#[test]
fn without_its_capability_nobody_uses_a_context() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    agent.commits("c", "op", (0, 0, 0), "hello");
    let import = json!({ "legacy_id": "l", "operation_key": "k", "events": [event("e")] });
    let advance = json!({ "operation_id": "a", "expected": revision(1, 1, 2),
                          "binding": binding("m"), "reason": "r" });
    let calls = |agent: &Agent, id: &str| {
        vec![
            agent.get(&format!("/contexts/{id}")),
            agent.get(&format!("/contexts/{id}/source")),
            agent.get(&format!("/contexts/{id}/payloads/p")),
            agent.get(&format!("/contexts/{id}/export")),
            agent.delete(&format!("/contexts/{id}")),
            agent.commit(id, turn("op2", (1, 1, 2), "x")),
            agent.post(&format!("/contexts/{id}/advance"), advance.clone()),
            agent.post(&format!("/contexts/{id}/import"), import.clone()),
        ]
    };
    let before = team.lines("SELECT * FROM contexts");
    for other in [
        agent.with_capability(2),
        agent.with_capability(0),
        Agent { capability: String::new(), ..agent.copy() },
        agent.with_scope("workspace=w"),
    ] {
        for got in calls(&other, "c") {
            assert_eq!(code(&got), (403, "principal_mismatch"), "{}", got.json);
        }
    }
    let bad = Agent { capability: "short".into(), ..agent.copy() };
    for got in calls(&bad, "c") {
        assert_eq!(got.refusal(), (400, "invalid_request", "X-Context-Capability"));
    }
    let unknown = calls(&agent, "none");
    for got in &unknown[..7] {
        assert_eq!(code(got), (404, "not_found"));
    }
    assert_eq!(unknown[7].status, 200, "an import makes its context");
    assert_eq!(team.lines("SELECT * FROM contexts WHERE id = 'c'"), before);
    assert_eq!(team.count("SELECT count(*) FROM contexts WHERE capability_hash = x'01'"), 0);
}

#[test]
fn a_commit_that_is_sent_again_changes_nothing_even_later() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    let body = turn("op1", (0, 0, 0), "one");
    let first = agent.commit("c", body.clone()).data(200).clone();
    agent.commits("c", "op2", (1, 1, 2), "two");
    let before = team.lines("SELECT * FROM contexts");
    team.advance(1_000);
    let again = agent.commit("c", body.clone()).data(200).clone();
    assert_eq!(again["revision"], first["revision"]);
    assert_eq!(again["checkpoint_id"], first["checkpoint_id"]);
    assert_eq!(again["replayed"], true);
    // Also written otherwise.
    let spaced = serde_json::to_string_pretty(&body).unwrap();
    let again = agent.send("POST", "/contexts/c/commit", Some(spaced.as_bytes()));
    assert_eq!(again.data(200)["replayed"], true);
    assert_eq!(team.lines("SELECT * FROM contexts"), before);
    assert_eq!(team.count("SELECT count(*) FROM context_checkpoints"), 2);
    // Under the same id nothing else.
    let other = agent.commit("c", turn("op1", (0, 0, 0), "other"));
    assert_eq!(other.refusal(), (409, "checkpoint_conflict", "operation_id"));
    let advance = agent.advance("c", "op1", revision(2, 2, 4), json!({}));
    assert_eq!(code(&advance), (409, "checkpoint_conflict"));
}

#[test]
fn a_commit_compares_the_head_first_the_revision_then_the_binding() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    agent.commits("c", "op1", (0, 0, 0), "one");
    let tables = [
        "contexts",
        "context_events",
        "context_payloads",
        "context_checkpoints",
        "context_operations",
        "body_chunks",
    ];
    let all = || tables.map(|table| team.lines(&format!("SELECT * FROM {table}")));
    let before = all();
    for stale in [(0, 1, 2), (1, 0, 2), (1, 1, 1), (2, 2, 2)] {
        let mut body = turn("op2", stale, "two");
        body["checkpoint"]["source_start"] = json!(0);
        body["binding"] = binding("other");
        let got = agent.commit("c", body);
        assert_eq!(code(&got), (409, "stale_revision"), "{stale:?}");
        assert_eq!(got.json["error"]["details"]["revision"], revision(1, 1, 2));
    }
    let mut body = turn("op2", (1, 1, 2), "two");
    body["binding"] = binding("other");
    assert_eq!(code(&agent.commit("c", body)), (409, "stale_binding"));
    // The last thing that can go wrong undoes the first.
    let mut body = turn("op2", (1, 1, 2), "two");
    body["payloads"] = json!([payload("p9", b"x")]);
    body["checkpoint"]["active_context"] = Json::Null;
    body["checkpoint"]["active_context_ref"] = json!("nowhere");
    assert_eq!(code(&agent.commit("c", body)), (404, "payload_not_found"));
    assert_eq!(all(), before);
    let mut body = turn("op2", (1, 1, 2), "two");
    body["new_binding"] = binding("next");
    assert_eq!(agent.commit("c", body).status, 200);
    assert_eq!(agent.load("c")["binding"], binding("next"));
}

#[test]
fn a_commit_says_which_field_is_wrong() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    let wrong = |change: &dyn Fn(&mut Json)| {
        let mut body = turn("op", (0, 0, 0), "x");
        change(&mut body);
        let got = agent.commit("c", body);
        assert_eq!(got.status, 400, "{}", got.json);
        got.refusal().2.to_owned()
    };
    assert_eq!(wrong(&|b| b["operation_id"] = json!(" ")), "operation_id");
    assert_eq!(wrong(&|b| b["expected"]["source"] = json!(-1)), "expected.source");
    assert_eq!(wrong(&|b| b["binding"]["generation"] = json!(0)), "binding.generation");
    assert_eq!(
        wrong(&|b| b["new_binding"] = json!({"provider": "", "model": "m", "generation": 1})),
        "new_binding.provider"
    );
    assert_eq!(wrong(&|b| b["events"][1]["kind"] = json!("")), "events[1].kind");
    assert_eq!(wrong(&|b| b["events"][1]["size"] = json!(-1)), "events[1].size");
    assert_eq!(wrong(&|b| b["events"][1]["role"] = json!("r".repeat(257))), "events[1].role");
    assert_eq!(wrong(&|b| b["events"][0]["sequence"] = json!(1)), "events[0].sequence");
    assert_eq!(wrong(&|b| b["checkpoint"]["turn_id"] = json!(0)), "checkpoint.turn_id");
    assert_eq!(
        wrong(&|b| b["checkpoint"]["algorithm"] = json!("a".repeat(65))),
        "checkpoint.algorithm"
    );
    assert_eq!(wrong(&|b| b["checkpoint"]["source_start"] = json!(2)), "checkpoint.source_start");
    assert_eq!(
        wrong(&|b| b["checkpoint"]["active_context"] = Json::Null),
        "checkpoint.active_context"
    );
    assert_eq!(
        wrong(&|b| b["checkpoint"]["active_context"] = json!("")),
        "checkpoint.active_context"
    );
    assert_eq!(
        wrong(&|b| b["checkpoint"]["active_context_ref"] = json!("r")),
        "checkpoint.active_context"
    );
    assert_eq!(
        wrong(&|b| b["checkpoint"]["summary_metadata"] = json!("s".repeat(13_000))),
        "checkpoint.summary_metadata"
    );
    assert_eq!(wrong(&|b| b["digest"] = json!("d")), "digest");
    let listed = |change: &dyn Fn(&mut Json)| {
        wrong(&|b| {
            b["payloads"] = json!([payload("p", b"abc"), payload("q", b"abc")]);
            change(&mut b["payloads"]);
        })
    };
    assert_eq!(listed(&|p| p[1]["size"] = json!(4)), "payloads[1].size");
    assert_eq!(listed(&|p| p[1]["sha256"] = json!("0".repeat(64))), "payloads[1].sha256");
    assert_eq!(listed(&|p| p[1]["sha256"] = json!("0")), "payloads[1].sha256");
    assert_eq!(listed(&|p| p[1]["bytes"] = json!("?")), "payloads[1].bytes");
    assert_eq!(listed(&|p| p[1]["retention"] = json!("")), "payloads[1].retention");
    assert_eq!(
        listed(&|p| {
            p[1]["ref"] = json!("p");
            p[1]["retention"] = json!("compliance");
        }),
        "payloads[1].ref"
    );
    assert_eq!(agent.load("c")["revision"], revision(0, 0, 0));
}

#[test]
fn a_payload_is_known_by_its_ref_within_its_context() {
    let team = Team::new();
    let agent = Agent::new(&team);
    // The same words in two conversations.
    for id in ["c", "d"] {
        agent.ensure(id);
        let mut body = turn("op1", (0, 0, 0), "one");
        body["payloads"] = json!([payload("p", b"abc")]);
        assert_eq!(agent.commit(id, body).status, 200);
    }
    let again = |n: i64, payload: Json| {
        let mut body = turn(&format!("op{n}"), (n - 1, n - 1, 2 * (n - 1)), "x");
        body["payloads"] = json!([payload]);
        agent.commit("c", body)
    };
    assert_eq!(again(2, payload("p", b"abc")).status, 200, "the same again");
    let mut hash_only = payload("p", b"abc");
    hash_only.as_object_mut().unwrap().remove("bytes");
    assert_eq!(again(3, hash_only).status, 200, "and without its bytes");
    let got = again(4, payload("p", b"abd"));
    assert_eq!(got.refusal(), (409, "checkpoint_conflict", "payloads[0].ref"));
    let mut other = payload("p", b"abc");
    other["retention"] = json!("compliance");
    assert_eq!(code(&again(4, other)), (409, "checkpoint_conflict"));
    // Only its digest first, its bytes later.
    let mut hash_only = payload("q", b"later");
    hash_only.as_object_mut().unwrap().remove("bytes");
    assert_eq!(again(4, hash_only).status, 200);
    let got = agent.get("/contexts/c/payloads/q");
    assert_eq!((got.status, got.bytes.len()), (204, 0));
    assert_eq!(again(5, payload("q", b"later")).status, 200);
    assert_eq!(agent.get("/contexts/c/payloads/q").bytes, b"later");
    assert_eq!(code(&agent.get("/contexts/c/payloads/none")), (404, "payload_not_found"));
    let mut body = turn("op6", (5, 5, 10), "x");
    body["events"][0]["payload_ref"] = json!("none");
    assert_eq!(agent.commit("c", body).refusal(), (409, "checkpoint_conflict", "events"));
    assert_eq!(
        team.lines("SELECT payload_count, payload_bytes FROM contexts ORDER BY id"),
        ["2 8", "1 3"]
    );
}

#[test]
fn a_cleared_context_never_comes_back() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    agent.commits("c", "op1", (0, 0, 0), "one");
    agent.commits("c", "op2", (1, 1, 2), "two");
    let first =
        team.lines("SELECT id FROM context_checkpoints ORDER BY durable_revision")[0].clone();
    let clear = |operation: &str, expected| {
        agent.advance("c", operation, expected, json!({ "clear": true }))
    };
    assert_eq!(clear("a1", revision(2, 2, 4)).data(200)["revision"], revision(3, 3, 4));
    assert_eq!(agent.load("c")["checkpoint"], Json::Null);
    assert_eq!(clear("a1", revision(2, 2, 4)).data(200)["replayed"], true);
    assert_eq!(code(&clear("a2", revision(2, 2, 4))), (409, "stale_revision"));
    // Bound otherwise it stays cleared.
    let got = agent.advance("c", "a3", revision(3, 3, 4), json!({ "new_binding": binding("n") }));
    assert_eq!(got.data(200)["revision"], revision(4, 4, 4));
    assert_eq!(agent.load("c")["checkpoint"], Json::Null);
    // Unless a checkpoint is asked for.
    let back = json!({ "checkpoint_id": first, "binding": binding("n") });
    agent.advance("c", "a4", revision(4, 4, 4), back).data(200);
    assert_eq!(agent.load("c")["checkpoint"]["active_context"][0]["content"], "one");
    let none = json!({ "checkpoint_id": "ctxc_none", "binding": binding("n") });
    let got = agent.advance("c", "a5", revision(5, 5, 4), none);
    assert_eq!(got.refusal(), (409, "checkpoint_conflict", "checkpoint_id"));
    let both = json!({ "checkpoint_id": first, "clear": true, "binding": binding("n") });
    assert_eq!(agent.advance("c", "a5", revision(5, 5, 4), both).refusal().2, "checkpoint_id");
    let no_reason = json!({ "reason": "" });
    assert_eq!(agent.advance("c", "a5", revision(5, 5, 4), no_reason).refusal().2, "reason");
}

#[test]
fn source_events_are_listed_by_range() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    for n in 0..5 {
        agent.commits("c", &format!("op{n}"), (n, n, 2 * n), "x");
    }
    let sequences = |path: &str| {
        let got = agent.get(path);
        got.items().iter().map(|e| e["sequence"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(sequences("/contexts/c/source"), (1..=10).collect::<Vec<_>>());
    assert_eq!(sequences("/contexts/c/source?from=3&to=5"), [3, 4, 5]);
    assert_eq!(sequences("/contexts/c/source?from=10&to=99"), [10]);
    assert_eq!(sequences("/contexts/c/source?from=11"), [0i64; 0]);
    assert_eq!(agent.get("/contexts/c/source?from=3&to=2").refusal().2, "from");
    let page = agent.get("/contexts/c/source?from=2&to=6&limit=3");
    let next = page.json["next_cursor"].as_str().unwrap();
    assert_eq!(sequences(&format!("/contexts/c/source?from=2&to=6&limit=3&cursor={next}")), [5, 6]);
    let page = agent.get("/contexts/c?events=true&limit=8");
    let next = page.data(200)["next_cursor"].as_str().unwrap();
    let rest = agent.get(&format!("/contexts/c?events=true&limit=8&cursor={next}"));
    assert_eq!(rest.data(200)["events"][1]["sequence"], 10);
    assert_eq!(rest.data(200)["next_cursor"], Json::Null);
}

#[test]
fn a_deleted_context_stays_deleted() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    let mut body = turn("op1", (0, 0, 0), "one");
    body["payloads"] = json!([payload("p", b"abc"), payload("q", b"d")]);
    agent.commit("c", body.clone()).data(200);
    assert_eq!(code(&agent.with_capability(2).delete("/contexts/c")), (403, "principal_mismatch"));
    let gone = agent.delete("/contexts/c").data(200).clone();
    assert_eq!(gone["revision"], revision(2, 1, 2));
    assert_eq!(gone["payloads_revoked"], 2);
    team.advance(9);
    assert_eq!(agent.delete("/contexts/c").data(200), &gone, "the same audit");
    assert_eq!(team.count("SELECT count(*) FROM context_audits"), 1);
    for got in [
        agent.get("/contexts/c"),
        agent.get("/contexts/c/payloads/p"),
        agent.get("/contexts/c/source"),
        agent.get("/contexts/c/export"),
        agent.ensure("c"),
        agent.commit("c", body),
        agent.advance("c", "a", revision(2, 1, 2), json!({})),
        agent.patch("/contexts/c", json!({ "title": "T" })),
        agent.with_capability(2).post("/contexts/c/reclaim", json!({})),
        agent.post(
            "/contexts/c/import",
            json!({ "legacy_id": "l", "operation_key": "k", "events": [event("e")] }),
        ),
    ] {
        assert_eq!(code(&got), (409, "tombstoned"), "{}", got.json);
    }
    assert_eq!(agent.put("/contexts/c/lease", json!({})).data(200)["held"], false);
}

#[test]
fn a_process_that_comes_later_takes_over_once_the_lease_has_run_out() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    agent.commits("c", "op1", (0, 0, 0), "one");
    // Who never said that it lives is gone.
    let second = agent.with_capability(2);
    let got = second.post("/contexts/c/reclaim", json!({}));
    assert_eq!(got.data(200)["checkpoint"]["active_context"][0]["content"], "one");
    assert_eq!(code(&agent.commit("c", turn("op2", (1, 1, 2), "x"))), (403, "principal_mismatch"));
    assert_eq!(agent.put("/contexts/c/lease", json!({})).data(200)["held"], false);
    assert_eq!(agent.delete("/contexts/c/lease").status, 204);
    assert_eq!(second.put("/contexts/c/lease", json!({})).data(200)["held"], true);

    let third = agent.with_capability(3);
    team.advance(30_000);
    let got = third.post("/contexts/c/reclaim", json!({}));
    assert_eq!(code(&got), (409, "live_elsewhere"));
    assert_eq!(got.json["error"]["details"]["lease_age_ms"], 30_000);
    assert_eq!(got.header("retry-after"), Some("91"));
    team.advance(90_000);
    assert_eq!(third.post("/contexts/c/reclaim", json!({})).status, 409, "exactly at its end");
    team.advance(1);
    assert_eq!(third.post("/contexts/c/reclaim", json!({})).status, 200);
    // A takeover renews no lease.
    assert_eq!(agent.with_capability(4).post("/contexts/c/reclaim", json!({})).status, 200);
    let fourth = agent.with_capability(4);
    fourth.put("/contexts/c/lease", json!({})).data(200);
    assert_eq!(fourth.post("/contexts/c/reclaim", json!({})).status, 409, "one's own too");
    assert_eq!(fourth.delete("/contexts/c/lease").status, 204);
    assert_eq!(agent.post("/contexts/c/reclaim", json!({})).status, 200, "let go of");
    let bob = Agent { token: team.person("bob", Role::Member).token, ..agent.copy() };
    assert_eq!(code(&bob.post("/contexts/c/reclaim", json!({}))), (403, "principal_mismatch"));
    assert_eq!(code(&agent.post("/contexts/none/reclaim", json!({}))), (404, "not_found"));
    assert_eq!(agent.put("/contexts/none/lease", json!({})).data(200)["held"], false);
}

#[test]
fn titles_are_the_subjects_and_move_nothing() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    let other = agent.with_capability(9);
    let got = other.patch("/contexts/c", json!({ "title": "  Fix it  " }));
    assert_eq!(
        (&got.data(200)["title"], &got.data(200)["revision"]),
        (&json!("Fix it"), &revision(0, 0, 0))
    );
    assert_eq!(other.patch("/contexts/c", json!({})).data(200)["title"], "Fix it");
    assert_eq!(other.patch("/contexts/c", json!({ "title": "a\nb" })).refusal().2, "title");
    assert_eq!(
        other.patch("/contexts/c", json!({ "title": "é".repeat(129) })).refusal().2,
        "title"
    );
    assert_eq!(agent.get("/contexts").items().len(), 1, "one with a title is listed");
    assert_eq!(other.patch("/contexts/c", json!({ "title": " " })).data(200)["title"], Json::Null);
    assert_eq!(agent.get("/contexts").items().len(), 0);
    let bob = Agent { token: team.person("bob", Role::Member).token, ..agent.copy() };
    assert_eq!(
        code(&bob.patch("/contexts/c", json!({ "title": "x" }))),
        (403, "principal_mismatch")
    );
    assert_eq!(bob.patch("/contexts/none", json!({ "title": "x" })).status, 404);
}

#[test]
fn the_first_thing_a_user_said_is_found() {
    let team = Team::new();
    let agent = Agent::new(&team);
    let first = |id: &str, context: Json| {
        agent.ensure(id);
        let mut body = turn("op1", (0, 0, 0), "x");
        body["checkpoint"]["active_context"] = context;
        agent.commit(id, body).data(200);
        agent.commits(id, "op2", (1, 1, 2), "later");
        let got = agent.with_capability(7).get(&format!("/contexts/{id}/first-user-message"));
        got.data(200)["text"].as_str().unwrap().to_owned()
    };
    let said = json!([
        { "role": "system", "content": "s" },
        { "role": "user", "name": "core-memory-context", "content": "m" },
        { "role": "user", "content": "<core-memory-context>m" },
        { "role": "user", "content": "" },
        { "role": "user", "content": ["parts"] },
        7,
        { "role": "user", "content": "hello", "extra": 1 },
        { "role": "user", "content": "again" },
    ]);
    assert_eq!(first("a", said.clone()), "hello");
    assert_eq!(first("b", json!(said.to_string())), "hello");
    assert_eq!(first("c", json!({ "not": "a list" })), "");
    assert_eq!(first("d", json!([])), "");
    let long = json!([{ "role": "assistant", "content": "x".repeat(3 << 20) }, { "role": "user", "content": "far" }]);
    assert_eq!(first("e", long), "far");
    agent.ensure("f");
    assert_eq!(agent.get("/contexts/f/first-user-message").data(200)["text"], "");
    agent.delete("/contexts/a").data(200);
    assert_eq!(agent.get("/contexts/a/first-user-message").data(200)["text"], "hello");
    assert_eq!(agent.get("/contexts/none/first-user-message").status, 404);
}

#[test]
fn a_store_that_dies_at_any_statement_has_a_turn_whole_or_not_at_all() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    agent.commits("c", "op1", (0, 0, 0), "one");
    let mut body = turn("op2", (1, 1, 2), "two");
    body["events"][0]["payload_ref"] = json!("p");
    body["payloads"] = json!([payload("p", b"abc")]);
    let before = agent.load("c");
    for statements in 2.. {
        team.driver.fail_after(Some(statements));
        let got = agent.commit("c", body.clone());
        team.driver.fail_after(None);
        if got.status == 200 {
            assert!(statements > 10, "it failed {statements} times");
            break;
        }
        assert_eq!(agent.load("c"), before, "after {statements} statements");
        assert_eq!(team.count("SELECT count(*) FROM context_events"), 2);
        assert_eq!(team.count("SELECT count(*) FROM context_payloads"), 0);
    }
    assert_eq!(agent.load("c")["revision"], revision(2, 2, 4));
    assert_eq!(agent.commit("c", body).data(200)["replayed"], true);
    assert_eq!(capability(1), agent.capability);
}

/// A turn whose working context is a payload.
fn turn_by_ref(operation: &str, expected: (i64, i64, i64), name: &str) -> Json {
    let mut body = turn(operation, expected, "x");
    let checkpoint = body["checkpoint"].as_object_mut().unwrap();
    checkpoint.remove("active_context");
    checkpoint.insert("active_context_ref".into(), json!(name));
    body
}

#[test]
fn a_large_working_context_goes_ahead_and_is_named() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    let text = json!([{ "role": "user", "content": "far ".repeat(500_000) }]).to_string();
    let upload = |name: &str, bytes: &[u8]| {
        agent.send("PUT", &format!("/contexts/c/payloads/{name}"), Some(bytes))
    };
    assert_eq!(upload("w1", text.as_bytes()).status, 204);
    assert_eq!(upload("w1", text.as_bytes()).status, 204, "the same again");
    let got = upload("w1", b"other");
    assert_eq!(got.refusal(), (409, "checkpoint_conflict", "ref"));
    assert_eq!(team.count("SELECT count(DISTINCT body_id) FROM context_payloads"), 1);
    let done = agent.commit("c", turn_by_ref("op1", (0, 0, 0), "w1"));
    assert_eq!(done.data(200)["revision"], revision(1, 1, 2));
    let loaded = agent.load("c")["checkpoint"].clone();
    assert_eq!(
        (&loaded["active_context"], &loaded["active_context_ref"]),
        (&Json::Null, &json!("w1"))
    );
    assert_eq!(loaded["sha256"], sha256(text.as_bytes()));
    assert_eq!(loaded["size"], text.len());
    assert_eq!(agent.get("/contexts/c/payloads/w1").bytes, text.as_bytes());
    let first = agent.get("/contexts/c/first-user-message");
    assert_eq!(first.data(200)["text"].as_str().unwrap().len(), 2_000_000);
    let got = agent.get("/snapshots/c").data(200).clone();
    assert_eq!((&got["messages"], &got["messages_ref"]), (&Json::Null, &json!("w1")));
    // What has no bytes is no working context.
    assert_eq!(
        code(&agent.commit("c", turn_by_ref("op2", (1, 1, 2), "none"))),
        (404, "payload_not_found")
    );
    let mut body = turn_by_ref("op2", (1, 1, 2), "h");
    let mut hash_only = payload("h", b"abc");
    hash_only.as_object_mut().unwrap().remove("bytes");
    body["payloads"] = json!([hash_only.clone()]);
    assert_eq!(code(&agent.commit("c", body)), (404, "payload_not_found"));
    // A digest that a commit kept gets its bytes by an upload, and no other ones.
    let mut body = turn("op2", (1, 1, 2), "x");
    body["payloads"] = json!([hash_only]);
    agent.commit("c", body).data(200);
    assert_eq!(upload("h", b"abd").status, 409);
    assert_eq!(upload("h", b"abc").status, 204);
    assert_eq!(agent.get("/contexts/c/payloads/h").bytes, b"abc");
    assert_eq!(upload("empty", b"").status, 204);
    assert_eq!(agent.get("/contexts/c/payloads/empty").bytes, b"");
    // Nothing of what was refused is left.
    team.settle();
    let orphans = "SELECT count(*) FROM body_chunks
                    WHERE body_id NOT IN (SELECT body_id FROM context_payloads)
                      AND body_id NOT IN (SELECT body_id FROM context_checkpoints WHERE body_id > '')";
    assert_eq!(team.count(orphans), 0);
    assert_eq!(team.count("SELECT count(*) FROM staged_bodies"), 0);
}

/// The intake of an upload that has sent `before`.
fn begun(agent: &Agent, name: &str, before: &[u8]) -> teamplane::api::Intake {
    use teamplane::api::{Reply, Request, handle};
    let headers = [
        ("authorization", format!("Bearer {}", agent.token)),
        ("x-context-capability", agent.capability.clone()),
    ];
    let path = format!("/v1/teams/{}/contexts/c/payloads/{name}", agent.team.id);
    let request = Request {
        method: "PUT",
        path: &path,
        query: &agent.scope,
        headers: &headers,
        body: Some(&[]),
        request_id: "request_00000000000000000000000000000000",
    };
    match handle(&agent.team.plane(), &request) {
        Reply::Intake(mut intake) => {
            assert!(intake(&agent.team.db(), Some(before)).unwrap().is_none());
            intake
        }
        Reply::Answer(answer) => panic!("refused: {}", answer.status),
        Reply::Job(_) => panic!("it is no job"),
    }
}

#[test]
fn an_upload_on_its_way_ends_with_what_allowed_it() {
    type End = fn(&Agent);
    let half = vec![1u8; 600_000];
    let ends: [(End, &str); 4] = [
        (
            |agent| {
                let outside = agent.with_scope("");
                outside.post("/worktrees/i/begin-deletion", json!({})).data(200);
            },
            "worktree_state",
        ),
        (
            |agent| {
                agent.with_capability(2).post("/contexts/c/reclaim", json!({})).data(200);
            },
            "principal_mismatch",
        ),
        (
            |agent| {
                agent.delete("/contexts/c").data(200);
            },
            "tombstoned",
        ),
        (
            |agent| {
                let member = format!("/members/{}", agent.principal_id);
                let got = agent.team.patch(&agent.team.owner, &member, json!({ "role": "viewer" }));
                assert_eq!(got.status, 200);
            },
            "forbidden",
        ),
    ];
    for (end, code) in ends {
        let team = Team::new();
        let agent = Agent::new(&team).in_worktree("w", "i");
        agent.ensure("c").data(200);
        let mut intake = begun(&agent, "p", &half);
        end(&agent);
        let refused = intake(&team.db(), None).err().expect("it was allowed no more");
        assert_eq!(refused.code.text(), code);
        team.settle();
        assert_eq!(team.count("SELECT count(*) FROM context_payloads"), 0, "{code}");
        assert_eq!(team.count("SELECT count(*) FROM body_chunks"), 0, "{code}");
        assert_eq!(team.count("SELECT count(*) FROM staged_bodies"), 0, "{code}");
    }
}
