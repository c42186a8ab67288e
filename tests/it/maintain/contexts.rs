//! What retention does to contexts, case by case; histories.rs tries all of it at random.
use crate::agent::{Agent, event, payload, turn};
use crate::team::Team;
use serde_json::json;
use teamplane::limits::{BATCH_UNITS_MAX, DAY_MS, HOUR_MS};

fn checkpoints(team: &Team) -> Vec<String> {
    team.lines("SELECT durable_revision FROM context_checkpoints ORDER BY 1")
}

#[test]
fn of_old_checkpoints_the_active_the_earliest_and_the_newest_three_stay() {
    let team = Team::new();
    let agent = Agent::new(&team);
    team.sql("UPDATE credentials SET expires_at = expires_at * 2");
    agent.ensure("c");
    for n in 0..8 {
        agent.commits("c", &format!("op{n}"), (n, n, 2 * n), "x");
    }
    let third =
        team.lines("SELECT id FROM context_checkpoints WHERE durable_revision = 3")[0].clone();
    let select = json!({ "checkpoint_id": third });
    let head = crate::agent::revision(8, 8, 16);
    agent.advance("c", "a1", head, select).data(200);
    team.advance(30 * DAY_MS - 1);
    team.settle();
    assert_eq!(checkpoints(&team).len(), 8);
    team.advance(1);
    team.settle();
    assert_eq!(checkpoints(&team), ["1", "3", "6", "7", "8"]);
    assert_eq!(agent.load("c")["checkpoint"]["id"], third);
    // The one that was active goes once it is not any more.
    agent.commits("c", "op9", (9, 9, 16), "x");
    team.settle();
    assert_eq!(checkpoints(&team), ["1", "7", "8", "10"]);
    // A commit whose operation is known is answered, though its checkpoint is gone.
    agent.commits("c", "op10", (10, 10, 18), "x");
    team.settle();
    assert_eq!(agent.commit("c", turn("op9", (9, 9, 16), "x")).data(200)["replayed"], true);
}

#[test]
fn a_payload_stays_while_something_names_it_and_a_day_longer() {
    let team = Team::new();
    let agent = Agent::new(&team);
    team.sql("UPDATE credentials SET expires_at = expires_at * 2");
    agent.ensure("c");
    for name in ["unnamed", "working", "source"] {
        agent.send("PUT", &format!("/contexts/c/payloads/{name}"), Some(name.as_bytes()));
    }
    let mut body = turn("op0", (0, 0, 0), "x");
    body["events"][0]["payload_ref"] = json!("source");
    agent.commit("c", body).data(200);
    let mut body = turn("op1", (1, 1, 2), "x");
    body["checkpoint"].as_object_mut().unwrap().remove("active_context");
    body["checkpoint"]["active_context_ref"] = json!("working");
    agent.commit("c", body).data(200);
    let refs = || {
        team.settle();
        team.lines("SELECT ref FROM context_payloads ORDER BY ref")
    };
    team.advance(DAY_MS - 1);
    assert_eq!(refs(), ["source", "unnamed", "working"]);
    team.advance(1);
    assert_eq!(refs(), ["source", "working"]);
    assert_eq!(
        team.count("SELECT count(*) FROM body_chunks WHERE bytes = CAST('unnamed' AS BLOB)"),
        0
    );
    for n in 2..6 {
        agent.commits("c", &format!("op{n}"), (n, n, 2 * n), "x");
    }
    team.advance(30 * DAY_MS);
    assert_eq!(refs(), ["source", "working"], "its checkpoint has gone only now");
    team.advance(DAY_MS);
    assert_eq!(refs(), ["source"]);
}

#[test]
fn a_year_after_its_deletion_only_the_tombstone_of_a_context_is_left() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.ensure("c");
    let mut body = turn("op0", (0, 0, 0), "x");
    body["payloads"] = json!([payload("p", b"abc")]);
    body["events"] = json!(vec![event("e"); 3_000]);
    agent.commit("c", body).data(200);
    let gone = agent.delete("/contexts/c").data(200).clone();
    team.advance(365 * DAY_MS - 1);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM context_events"), 3_000);
    assert_eq!(team.count("SELECT count(*) FROM context_payloads"), 1);
    team.advance(1);
    for outcome in team.settle() {
        assert!(outcome.largest_batch <= BATCH_UNITS_MAX * super::ESTIMATE_FACTOR);
    }
    for table in [
        "context_events",
        "context_payloads",
        "context_checkpoints",
        "context_audits",
        "body_chunks",
    ] {
        assert_eq!(team.count(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
    assert_eq!(
        team.lines("SELECT id, audit_id FROM contexts"),
        [format!("c {}", gone["audit_id"].as_str().unwrap())]
    );
}

#[test]
fn what_others_left_under_a_worktree_goes_with_its_instance() {
    let team = Team::new();
    let agent = Agent::new(&team);
    let tree = agent.in_worktree("w", "i");
    let bob =
        Agent { token: team.person("bob", teamplane::auth::Role::Member).token, ..tree.copy() };
    for n in 0..30 {
        bob.put(&format!("/snapshots/s{n}"), json!({ "messages": [n] })).data(200);
        bob.put(&format!("/snapshots/s{n}/admission"), json!({ "names": ["x"] })).data(200);
        bob.ensure(&format!("c{n}")).data(200);
    }
    agent.post("/worktrees/i/begin-deletion", json!({})).data(200);
    agent.post("/worktrees/i/finish-deletion", json!({})).data(200);
    let begun = json!({ "worktree": "v", "instance_id": "never", "path": "/v" });
    agent.post("/worktrees", begun).data(201);
    let active = agent.in_worktree("kept", "i2");
    active.put("/snapshots/s", json!({ "messages": [1] })).data(200);
    team.advance(30 * DAY_MS - 1);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM worktrees"), 3);
    team.advance(1);
    for outcome in team.settle() {
        assert!(outcome.largest_batch <= BATCH_UNITS_MAX * super::ESTIMATE_FACTOR);
    }
    assert_eq!(team.lines("SELECT instance_id FROM worktrees"), ["i2"]);
    assert_eq!(team.lines("SELECT name FROM context_snapshots"), ["s"]);
    assert_eq!(team.count("SELECT count(*) FROM snapshot_admissions"), 0);
    assert_eq!(team.count("SELECT count(*) FROM contexts WHERE deleted_at IS NULL"), 0);
    assert_eq!(team.count("SELECT count(*) FROM context_audits"), 30);
}

#[test]
fn a_team_goes_with_all_that_its_agents_keep() {
    let team = Team::new();
    let agent = Agent::new(&team);
    team.another("Other");
    let tree = agent.in_worktree("w", "i");
    for n in 0..5 {
        let id = format!("c{n}");
        tree.ensure(&id).data(200);
        let mut body = turn("op0", (0, 0, 0), "x");
        body["payloads"] = json!([payload("p", &vec![1; 300_000])]);
        tree.commit(&id, body).data(200);
        tree.put(&format!("/snapshots/{id}"), json!({ "messages": [n] })).data(200);
        tree.put(&format!("/snapshots/{id}/admission"), json!({ "names": ["x"] })).data(200);
        tree.get(&format!("/contexts/{id}/export"));
        let import = json!({ "legacy_id": "l", "operation_key": "k", "events": [event("e")] });
        tree.post(&format!("/contexts/{id}/import"), import).data(200);
    }
    let records = vec![json!({ "kind": "token_usage", "provider": "p", "session_id": "s" }); 300];
    agent.post("/usage", json!({ "records": records })).data(201);
    team.advance(HOUR_MS);
    let confirm = json!({ "confirm": "Acme" }).to_string();
    let got = team.send(&team.owner, "DELETE", "", &[], Some(confirm.as_bytes()));
    assert_eq!(got.status, 202);
    for outcome in team.settle() {
        assert!(outcome.largest_batch <= BATCH_UNITS_MAX * super::ESTIMATE_FACTOR, "{outcome:?}");
    }
    let tables = team.lines(
        "SELECT name FROM sqlite_schema
          WHERE type = 'table' AND sql LIKE '%team_id%' AND name NOT LIKE '%search%'",
    );
    assert!(tables.len() > 50, "{tables:?}");
    for table in tables {
        let of_team = format!("SELECT count(*) FROM {table} WHERE team_id = '{}'", team.id);
        assert_eq!(team.count(&of_team), 0, "{table}");
    }
    assert_eq!(team.count("SELECT count(*) FROM teams"), 1, "the other one stays");
}
