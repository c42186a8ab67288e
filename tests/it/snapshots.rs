//! Conversations kept under a name: one suite, run over a workspace and over a worktree alike.
use crate::agent::{Agent, event, revision, turn};
use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::auth::Role;

/// Runs a test in the plain namespace and in an instance of a worktree.
fn in_both(test: impl Fn(&Team, &Agent)) {
    for in_worktree in [false, true] {
        println!("in a worktree: {in_worktree}");
        let team = Team::new();
        let agent = Agent::new(&team);
        let agent = if in_worktree { agent.in_worktree("tree", "i1") } else { agent };
        test(&team, &agent);
    }
}

fn messages(text: &str) -> Json {
    json!([{ "role": "user", "content": text }])
}

fn snapshot(text: &str) -> Json {
    json!({ "messages": messages(text), "model": "m", "provider": "p", "turns": 1, "tokens": 7,
            "message_count": 1 })
}

fn projection(text: &str, of: &str) -> Json {
    let mut body = snapshot(text);
    body["session_id"] = json!(of);
    body
}

/// What is read under a name: its first message, or nothing; and whose projection it is.
fn read(agent: &Agent, name: &str) -> (String, Option<String>) {
    let got = agent.get(&format!("/snapshots/{name}"));
    let data = got.data(200);
    let text = data["messages"][0]["content"].as_str().unwrap_or_default().to_owned();
    (text, data["session_id"].as_str().map(str::to_owned))
}

#[allow(clippy::unnecessary_wraps)] // As `read` says it.
fn live(id: &str) -> Option<String> {
    Some(id.into())
}

fn names(agent: &Agent) -> Vec<String> {
    let got = agent.get("/contexts");
    got.items().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_snapshot_is_kept_replaced_and_removed() {
    in_both(|team, agent| {
        let made = agent.put("/snapshots/s", snapshot("one")).data(200).clone();
        assert_eq!(
            (&made["turns"], &made["tokens"], &made["model"]),
            (&json!(1), &json!(7), &json!("m"))
        );
        assert_eq!(read(agent, "s"), ("one".into(), None));
        team.advance(5);
        let mut other = snapshot("two");
        other["dir"] = json!("/src");
        let again = agent.put("/snapshots/s", other).data(200).clone();
        assert_eq!(again["created_at"], made["created_at"]);
        assert_ne!(again["updated_at"], made["updated_at"]);
        assert_eq!(again["dir"], "/src");
        assert_eq!(read(agent, "s"), ("two".into(), None));
        assert_eq!(agent.delete("/snapshots/s").status, 204);
        assert_eq!(agent.get("/snapshots/s").status, 404);
        assert_eq!(agent.delete("/snapshots/s").status, 404);
        team.settle();
        assert_eq!(team.count("SELECT count(*) FROM body_chunks"), 0);
    });
}

#[test]
fn messages_come_back_as_they_were_sent() {
    in_both(|_, agent| {
        let sent = format!(r#"[ "\ud800",1.0e2,"{}" ]"#, "ä".repeat(1_000_000));
        let body = format!(r#"{{"messages":{sent},"turns":0,"tokens":0,"message_count":3}}"#);
        let got = agent.send("PUT", "/snapshots/s", Some(body.as_bytes()));
        assert_eq!(got.status, 200, "{}", got.json);
        let got = agent.get("/snapshots/s");
        assert!(
            String::from_utf8(got.bytes).unwrap().ends_with(&format!(r#""messages":{sent}}}}}"#))
        );
    });
}

#[test]
fn names_and_fields_are_checked() {
    in_both(|_, agent| {
        for name in ["%20", "a%2Fb", "a%5Cb", "a%00b", &"x".repeat(129)] {
            let got = agent.put(&format!("/snapshots/{name}"), snapshot("x"));
            assert_eq!(got.refusal(), (400, "invalid_request", "name"), "{name}");
        }
        let with = |field: &str, value: Json| {
            let mut body = snapshot("x");
            body[field] = value;
            agent.put("/snapshots/s", body).refusal().2.to_owned()
        };
        assert_eq!(with("messages", Json::Null), "messages");
        assert_eq!(with("messages", json!("")), "messages");
        assert_eq!(with("turns", json!(-1)), "turns");
        assert_eq!(with("dir", json!("d".repeat(4_097))), "dir");
        assert_eq!(with("dir", json!("a\0b")), "dir");
        assert_eq!(with("model", json!("m".repeat(129))), "model");
        assert_eq!(with("other", json!(1)), "other");
        assert_eq!(agent.get("/snapshots/s").status, 404);
        // Empty is not nothing.
        let mut body = snapshot("x");
        body["messages"] = json!([]);
        assert_eq!(agent.put("/snapshots/s", body).status, 200);
    });
}

#[test]
fn a_projection_follows_its_live_context() {
    in_both(|team, agent| {
        agent.ensure("c");
        let saved = agent.put("/snapshots/c", projection("first turn", "c")).data(200).clone();
        assert_eq!(saved["session_id"], "c");
        assert_eq!(saved["session_revision"], 0);
        // The only copy of a turn whose commit failed.
        assert_eq!(read(agent, "c"), ("first turn".into(), live("c")));
        agent.commits("c", "op1", (0, 0, 0), "committed");
        assert_eq!(read(agent, "c"), ("committed".into(), live("c")));
        agent.put("/snapshots/c", projection("more messages", "c")).data(200);
        assert_eq!(read(agent, "c").0, "committed", "always");
        // Cleared.
        agent.advance("c", "a1", revision(1, 1, 2), json!({ "clear": true })).data(200);
        assert_eq!(read(agent, "c"), (String::new(), live("c")));
        // Bound otherwise it is as empty as before, and so is what was saved since then.
        agent.advance("c", "a2", revision(2, 2, 2), json!({})).data(200);
        assert_eq!(read(agent, "c").0, "");
        agent.put("/snapshots/c", projection("after clearing", "c")).data(200);
        assert_eq!(read(agent, "c").0, "after clearing");
        agent.advance("c", "a3", revision(3, 3, 2), json!({})).data(200);
        assert_eq!(
            read(agent, "c").0,
            "after clearing",
            "a move that does not clear takes it along"
        );
        // Messages from before the clearing say so.
        let mut old = projection("old", "c");
        old["session_revision"] = json!(1);
        agent.put("/snapshots/c", old).data(200);
        assert_eq!(read(agent, "c").0, "");
        agent.advance("c", "a4", revision(4, 4, 2), json!({})).data(200);
        assert_eq!(read(agent, "c").0, "", "and are not taken along");
        // Gone.
        agent.put("/snapshots/c", projection("last", "c")).data(200);
        agent.delete("/contexts/c").data(200);
        assert_eq!(read(agent, "c"), ("last".into(), None));
        agent.put("/snapshots/c", projection("x", "c")).data(200);
        assert_eq!(read(agent, "c").1, None, "nothing to project");
        assert_eq!(team.count("SELECT count(*) FROM context_snapshots"), 1);
    });
}

#[test]
fn only_what_says_so_is_a_projection() {
    in_both(|_, agent| {
        agent.ensure("c");
        agent.commits("c", "op1", (0, 0, 0), "committed");
        agent.put("/snapshots/c", snapshot("plain")).data(200);
        assert_eq!(read(agent, "c"), ("plain".into(), None), "its name alone is nothing");
        agent.put("/snapshots/other", projection("x", "c")).data(200);
        assert_eq!(read(agent, "other"), ("x".into(), None), "under another name");
        agent.put("/snapshots/c", projection("x", "c")).data(200);
        assert_eq!(read(agent, "c"), ("committed".into(), live("c")));
        agent.put("/snapshots/c", snapshot("plain")).data(200);
        assert_eq!(read(agent, "c"), ("plain".into(), None), "saved again without");
    });
}

#[test]
fn a_live_context_without_a_snapshot_is_read_by_its_id() {
    in_both(|_, agent| {
        agent.ensure("c");
        assert_eq!(read(agent, "c"), (String::new(), live("c")));
        agent.commits("c", "op1", (0, 0, 0), "committed");
        let got = agent.get("/snapshots/c").data(200).clone();
        assert_eq!((&got["turns"], &got["provider"]), (&json!(2), &json!("anthropic")));
        assert_eq!(got["messages"][0]["content"], "committed");
        agent.delete("/contexts/c").data(200);
        assert_eq!(agent.get("/snapshots/c").status, 404);
    });
}

#[test]
fn a_deletion_takes_everything_of_that_name_or_nothing() {
    in_both(|team, agent| {
        let admission = json!({ "agent": "a", "digest": "d", "names": ["read"] });
        for name in ["c", "d", "plain", "orphan"] {
            agent.put(&format!("/snapshots/{name}/admission"), admission.clone()).data(200);
        }
        for id in ["c", "d", "plain"] {
            agent.ensure(id);
        }
        agent.put("/snapshots/c", projection("x", "c")).data(200);
        agent.put("/snapshots/plain", snapshot("x")).data(200);
        let admissions = || team.lines("SELECT name FROM snapshot_admissions ORDER BY name");
        // A projection with the live context behind it.
        assert_eq!(agent.delete("/snapshots/c").status, 204);
        assert_eq!(agent.get("/contexts/c").refusal().1, "tombstoned");
        assert_eq!(admissions(), ["d", "orphan", "plain"]);
        // A live context by its id.
        assert_eq!(agent.delete("/snapshots/d").status, 204);
        assert_eq!(agent.get("/contexts/d").refusal().1, "tombstoned");
        // A plain one of the same name leaves the live one alone.
        assert_eq!(agent.delete("/snapshots/plain").status, 204);
        assert_eq!(agent.get("/contexts/plain").status, 200);
        assert_eq!(admissions(), ["orphan"]);
        assert_eq!(agent.delete("/snapshots/orphan").status, 404);
        assert_eq!(admissions(), [""; 0], "swept all the same");
        assert_eq!(team.count("SELECT count(*) FROM context_audits"), 2);
    });
}

#[test]
fn pruning_takes_those_that_are_there_all_or_none() {
    in_both(|team, agent| {
        agent.ensure("live");
        agent.put("/snapshots/live/admission", json!({ "names": ["x"] })).data(200);
        for name in ["a", "b", "c"] {
            agent.put(&format!("/snapshots/{name}"), snapshot(name)).data(200);
        }
        let prune = |names: Json| agent.post("/snapshots/prune", json!({ "names": names }));
        assert_eq!(prune(json!(["a", "x/y"])).refusal(), (400, "invalid_request", "names[1]"));
        assert_eq!(team.count("SELECT count(*) FROM context_snapshots"), 3);
        assert_eq!(prune(json!([])).data(200)["deleted"], 0);
        assert_eq!(prune(json!(["a", "none", "a", "live", "c"])).data(200)["deleted"], 2);
        assert_eq!(team.lines("SELECT name FROM context_snapshots"), ["b"]);
        assert_eq!(team.count("SELECT count(*) FROM snapshot_admissions"), 1);
        assert_eq!(agent.get("/contexts/live").status, 200);
    });
}

#[test]
fn admissions_are_kept_under_a_name() {
    in_both(|team, agent| {
        let none = json!({ "agent": "", "digest": "", "names": [] });
        assert_eq!(agent.get("/snapshots/s/admission").data(200), &none);
        let some = json!({ "agent": "a", "digest": "d", "names": ["read", "write"] });
        assert_eq!(agent.put("/snapshots/s/admission", some.clone()).data(200), &some);
        assert_eq!(agent.get("/snapshots/s/admission").data(200), &some);
        let got = agent.put("/snapshots/s/admission", json!({ "names": [""] }));
        assert_eq!(got.refusal().2, "names[0]");
        let large = json!({ "names": vec!["n".repeat(256); 1_001] });
        assert_eq!(agent.put("/snapshots/s/admission", large).refusal().2, "names");
        let large = json!({ "names": vec!["\u{1f600}".repeat(64); 1_000] });
        assert_eq!(agent.put("/snapshots/s/admission", large).refusal().1, "");
        let large = json!({ "names": vec!["\\".repeat(256); 1_000] });
        assert_eq!(agent.put("/snapshots/s/admission", large).refusal(), (413, "too_large", ""));
        assert_eq!(agent.put("/snapshots/s/admission", json!({ "names": [] })).data(200), &none);
        assert_eq!(team.count("SELECT count(*) FROM snapshot_admissions"), 0);
    });
}

#[test]
fn the_list_has_the_newest_first_and_each_conversation_once() {
    in_both(|team, agent| {
        agent.ensure("empty");
        agent.ensure("b-live");
        agent.commits("b-live", "op1", (0, 0, 0), "x");
        agent.put("/snapshots/a-snapshot", snapshot("x")).data(200);
        team.advance(1);
        agent.ensure("hidden");
        agent.commits("hidden", "op1", (0, 0, 0), "x");
        agent.put("/snapshots/hidden", snapshot("x")).data(200);
        agent.ensure("shown");
        agent.put("/snapshots/shown", projection("x", "shown")).data(200);
        agent.patch("/contexts/shown", json!({ "title": "T" })).data(200);
        assert_eq!(names(agent), ["hidden", "shown", "a-snapshot", "b-live"]);
        let got = agent.get("/contexts");
        let items = got.items();
        assert_eq!((&items[0]["session_id"], &items[0]["kind"]), (&Json::Null, &json!("snapshot")));
        assert_eq!((&items[1]["session_id"], &items[1]["title"]), (&json!("shown"), &json!("T")));
        assert_eq!(
            (&items[3]["kind"], &items[3]["turns"], &items[3]["tokens"]),
            (&json!("context"), &json!(2), &json!(0))
        );
        // Page by page it is the same.
        for limit in 1..5 {
            let (mut all, mut cursor) = (Vec::new(), String::new());
            loop {
                let got = agent.get(&format!("/contexts?limit={limit}{cursor}"));
                all.extend(got.items().iter().map(|i| i["name"].as_str().unwrap().to_owned()));
                let Some(next) = got.json["next_cursor"].as_str() else { break };
                cursor = format!("&cursor={next}");
            }
            assert_eq!(all, names(agent), "by {limit}");
        }
        agent.delete("/contexts/shown").data(200);
        let got = agent.get("/contexts");
        assert_eq!(
            (&got.items()[1]["session_id"], &got.items()[1]["title"]),
            (&Json::Null, &Json::Null)
        );
        agent.delete("/snapshots/hidden");
        assert_eq!(names(agent), ["hidden", "shown", "a-snapshot", "b-live"], "the live one shows");
        assert_eq!(agent.get("/contexts").items()[0]["kind"], "context");
    });
}

#[test]
fn what_is_kept_is_its_principals_and_its_places() {
    in_both(|team, agent| {
        agent.put("/snapshots/s", snapshot("mine")).data(200);
        agent.put("/snapshots/s/admission", json!({ "names": ["n"] })).data(200);
        let bob = Agent { token: team.person("bob", Role::Member).token, ..agent.copy() };
        let elsewhere = agent.with_scope("workspace=w");
        let other_tree = agent.in_worktree("other", "i9");
        for other in [&bob, &elsewhere, &other_tree] {
            assert_eq!(other.get("/snapshots/s").status, 404);
            assert_eq!(other.delete("/snapshots/s").status, 404);
            assert_eq!(other.get("/snapshots/s/admission").data(200)["names"], json!([]));
            assert_eq!(
                other.post("/snapshots/prune", json!({ "names": ["s"] })).data(200)["deleted"],
                0
            );
            assert!(!names(other).contains(&"s".to_owned()));
            other.put("/snapshots/s", snapshot("other")).data(200);
        }
        assert_eq!(read(agent, "s").0, "mine");
    });
}

#[test]
fn routes_are_listed_where_nothing_was_begun() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.put("/worktree-routes/old", json!({ "dir": "/old" })).data(200);
    team.advance(1);
    let tree = agent.in_worktree("tree", "i1");
    assert_eq!(names(&agent), ["worktree:tree", "worktree:old"]);
    assert_eq!(agent.get("/contexts").items()[0]["route"], true);
    assert_eq!(names(&tree), [""; 0], "not inside of one");
    let mut body = snapshot("x");
    body["dir"] = json!("/old");
    agent.put("/snapshots/s", body).data(200);
    assert_eq!(names(&agent), ["s", "worktree:tree"]);
    agent
        .put("/contexts/c", json!({ "binding": crate::agent::binding("m"), "dir": "/src/tree" }))
        .data(200);
    assert_eq!(names(&agent).len(), 2, "it is not listed yet");
    agent.commits("c", "op1", (0, 0, 0), "x");
    assert_eq!(names(&agent), ["c", "s"]);
    agent.delete("/contexts/c").data(200);
    agent.post("/worktrees/i1/begin-deletion", json!({})).data(200);
    assert_eq!(names(&agent), ["s"], "it leads to no active instance");
}

#[test]
fn an_import_joins_a_conversation_once() {
    in_both(|team, agent| {
        let import = |key: &str, count: usize| {
            let events: Vec<Json> = (0..count).map(|_| event("old")).collect();
            json!({ "legacy_id": "l1", "operation_key": key, "events": events,
                    "payloads": [crate::agent::payload("p", b"abc")] })
        };
        let got = agent.post("/contexts/c/import", import("k1", 3)).data(200).clone();
        assert_eq!((&got["status"], &got["imported"]), (&json!("imported"), &json!(3)));
        assert_eq!((&got["from"], &got["to"]), (&json!(1), &json!(3)));
        assert_eq!(got["revision"], revision(0, 0, 3));
        let head = agent.load("c");
        assert_eq!(
            head["binding"],
            json!({ "provider": "legacy", "model": "legacy", "generation": 1 })
        );
        assert_eq!(head["checkpoint"], Json::Null);
        let again = agent.post("/contexts/c/import", import("k1", 3)).data(200).clone();
        assert_eq!((&again["replayed"], &again["to"]), (&json!(true), &json!(3)));
        let other = agent.post("/contexts/c/import", import("k1", 4));
        assert_eq!(other.refusal(), (409, "checkpoint_conflict", "operation_key"));
        let more = agent.post("/contexts/c/import", import("k2", 2)).data(200).clone();
        assert_eq!((&more["from"], &more["to"]), (&json!(4), &json!(5)));
        assert_eq!(agent.post("/contexts/d/import", import("k1", 0)).refusal().2, "events");
        assert_eq!(
            agent
                .post(
                    "/contexts/d/import",
                    json!({ "legacy_id": "", "operation_key": "k", "events": [] })
                )
                .refusal()
                .2,
            "legacy_id"
        );
        assert_eq!(team.count("SELECT count(*) FROM contexts"), 1);
        assert_eq!(names(agent), ["c"]);
        // What names a payload that is not there leaves no context either.
        let mut bad = import("k1", 1);
        bad["events"][0]["payload_ref"] = json!("none");
        assert_eq!(agent.post("/contexts/d/import", bad).refusal().0, 409);
        assert_eq!(agent.get("/contexts/d").status, 404);
        let mut next = turn("op1", (0, 0, 5), "x");
        next["binding"] = head["binding"].clone();
        assert_eq!(agent.commit("c", next).data(200)["revision"], revision(1, 1, 7));
    });
}

#[test]
fn an_export_has_all_of_it_and_leaves_one_audit() {
    in_both(|team, agent| {
        agent.ensure("c");
        let large = vec![7u8; 700_001];
        let mut body = turn("op1", (0, 0, 0), "x");
        let mut hash_only = crate::agent::payload("p1", b"secret");
        hash_only.as_object_mut().unwrap().remove("bytes");
        body["payloads"] = json!([crate::agent::payload("p2", &large), hash_only]);
        agent.commit("c", body).data(200);
        let got = agent.get("/contexts/c/export");
        assert_eq!(got.header("content-type"), Some("application/jsonl; charset=utf-8"));
        let text = String::from_utf8(got.bytes).unwrap();
        let lines: Vec<Json> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[0]["context"]["revision"], revision(1, 1, 2));
        assert_eq!(lines[1]["event"]["sequence"], 1);
        assert_eq!(
            (&lines[3]["payload"]["ref"], &lines[3]["payload"]["hash_only"]),
            (&json!("p1"), &json!(true))
        );
        assert_eq!(lines[4]["payload"]["ref"], "p2");
        let sent = crate::agent::payload("p2", &large)["bytes"].clone();
        assert!(lines[4]["payload"]["bytes"] == sent);
        assert_eq!(lines[5]["end"], json!({ "events": 2, "payloads": 2 }));
        assert_eq!(
            team.lines("SELECT action, size, revision FROM context_audits"),
            [format!("export {} 1", large.len())]
        );
    });
}
