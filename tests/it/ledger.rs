//! The run ledger natively: what its vectors cannot show. `ledger_model.rs` tries any sequence.
use crate::maintain::numbers;
use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::limits::{APPENDED_EVENTS_MAX, CLAIM_HISTORY_AGE_MS, RUN_PAYLOAD_BYTES_MAX};
use teamplane::params;

fn event(id: &str, sequence: u64) -> Json {
    json!({ "id": id, "sequence": sequence, "kind": "step", "payload": { "n": sequence } })
}

/// Appends events as JSON text.
fn append(team: &Team, run: &str, events: &str) -> crate::team::Got {
    let body = format!(r#"{{"events":[{events}]}}"#);
    team.send(&team.owner, "POST", &format!("/runs/{run}/events"), &[], Some(body.as_bytes()))
}

fn claim(team: &Team, run: &str, holder: &str, mode: &str) -> Json {
    let body = json!({ "holder": holder, "mode": mode });
    team.post(&team.owner, &format!("/runs/{run}/claim"), body).data(200).clone()
}

#[test]
fn payloads_are_kept_byte_for_byte() {
    let team = Team::new();
    let payloads = [
        r#"{"b" : 1.10, "a":9007199254740993,"a":1e400}"#,
        r#""\u0000 \ud800 \uD83D\ude00 \/ é""#,
        "-0",
        "[ 1 ,\n\t2 ]",
        "false",
        r#""""#,
    ];
    for (n, payload) in payloads.iter().enumerate() {
        let sent = format!(r#"{{"id":"e{n}","sequence":{n},"kind":"k","payload":{payload} }}"#);
        for duplicate in [false, true] {
            let got = append(&team, "r", &sent);
            assert_eq!(got.data(200)["events"][0]["duplicate"], json!(duplicate));
        }
        // What means the same is another payload all the same.
        let spaced = format!(r#"{{"id":"e{n}","sequence":{n},"kind":"k","payload":[{payload}]}}"#);
        assert_eq!(append(&team, "r", &spaced).refusal().1, "duplicate_event");
    }
    let text = String::from_utf8(team.get(&team.owner, "/runs/r/events").bytes).unwrap();
    for payload in payloads {
        assert!(text.contains(&format!(r#""payload":{payload},"#)), "{payload} in {text}");
    }
}

#[test]
fn a_payload_may_be_so_large_and_a_page_holds_what_fits() {
    let team = Team::new();
    let sent = |n: usize, length: usize| {
        let payload = "\\u0000".repeat(length / 6) + &"x".repeat(length % 6);
        format!(r#"{{"id":"e{n}","sequence":{n},"kind":"k","payload":"{payload}"}}"#)
    };
    let refused = append(&team, "r", &sent(0, RUN_PAYLOAD_BYTES_MAX - 1));
    assert_eq!(refused.refusal(), (413, "too_large", "events[0].payload"));
    for n in 0..12 {
        assert_eq!(append(&team, "r", &sent(n, RUN_PAYLOAD_BYTES_MAX - 2)).status, 200);
    }
    let (mut after, mut seen, mut pages) = (String::new(), 0, 0);
    while seen < 12 {
        let got = team.get(&team.owner, &format!("/runs/r/events{after}"));
        assert!(!got.items().is_empty());
        seen += got.items().len();
        pages += 1;
        after = format!("?after={}", got.json["last"]);
    }
    assert_eq!((seen, pages), (12, 2));
}

#[test]
fn an_append_of_500_events_is_a_few_statements() {
    let team = Team::new();
    let events: Vec<Json> =
        (0..APPENDED_EVENTS_MAX as u64).map(|n| event(&format!("e{n}"), n)).collect();
    let before = team.db().cost();
    let got = team.post(&team.owner, "/runs/r/events", json!({ "events": events }));
    let cost = team.db().cost() - before;
    assert_eq!(got.data(200)["events"].as_array().unwrap().len(), APPENDED_EVENTS_MAX);
    assert!(cost.statements <= 12, "{cost:?}");
    let rows: Vec<i64> = got.data(200)["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["row_id"].as_i64().unwrap())
        .collect();
    assert!(rows.is_sorted_by(|a, b| a < b), "in the order in which they were sent");
    let again = team.post(&team.owner, "/runs/r/events", json!({ "events": events }));
    assert!(again.data(200)["events"].as_array().unwrap().iter().all(|e| e["duplicate"] == true));
    let mut more = events;
    more.push(event("one more", 1_000));
    let refused = team.post(&team.owner, "/runs/r/events", json!({ "events": more }));
    assert_eq!(refused.refusal(), (400, "invalid_request", "events"));
}

#[test]
fn what_moved_costs_what_it_answers_however_much_is_stored() {
    let team = Team::new();
    let id = team.id.to_string();
    // 1,000,000 events of 1,000 runs.
    team.sql(&format!(
        "{} INSERT INTO run_events (team_id, id, run_id, sequence, kind, created_at, payload_json)
         SELECT '{id}', 'e' || i, 'run' || (i % 1000), i, 'step', 0, '1' FROM n",
        numbers(1_000_000)
    ));
    team.sql(
        "INSERT INTO runs (team_id, run_id, events, tombstones, last_sequence, last_row_id,
                           newest_row_id)
         SELECT team_id, run_id, count(*), 0, max(sequence), max(row_id), max(row_id)
           FROM run_events GROUP BY 1, 2",
    );
    let all = team.get(&team.owner, "/run-changes?limit=200");
    assert_eq!(all.data(200)["runs"].as_object().unwrap().len(), 200);
    for n in 0..10 {
        let events: Vec<Json> =
            (0..100).map(|m| event(&format!("n{n}.{m}"), 2_000_000 + m)).collect();
        let path = format!("/runs/run{n}/events");
        assert_eq!(team.post(&team.owner, &path, json!({ "events": events })).status, 200);
    }
    let before = team.db().cost();
    let moved = team.get(&team.owner, "/run-changes?after=1000000");
    let cost = team.db().cost() - before;
    assert_eq!(moved.data(200)["runs"].as_object().unwrap().len(), 10);
    assert_eq!(moved.data(200)["runs"]["run3"], 2_000_099);
    assert!(cost.rows_read <= 60, "{cost:?}");
}

#[test]
fn content_is_named_by_the_events_that_live() {
    let team = Team::new();
    let (a, b) = ("a".repeat(64), "b".repeat(64));
    let first = json!({ "see": format!("sha256:{a}"), "and": [format!("ref:output:{b}")] });
    let events = json!([
        { "id": "e1", "sequence": 1, "kind": "k", "payload": first },
        { "id": "e2", "sequence": 2, "kind": "k", "payload": format!("sha256:{a}sha256:{a}") },
    ]);
    let opened = team.post(&team.owner, "/runs", json!({ "run_id": "r", "events": events }));
    assert_eq!(opened.status, 201);
    let named = || team.lines("SELECT event_row_id, ref FROM content_refs ORDER BY 1, 2");
    assert_eq!(
        named(),
        [format!("1 ref:output:{b}"), format!("1 sha256:{a}"), format!("2 sha256:{a}")]
    );
    assert_eq!(team.delete(&team.owner, "/runs/r?through=1").status, 204);
    assert_eq!(named(), [format!("2 sha256:{a}")]);
    assert_eq!(team.delete(&team.owner, "/runs/r").status, 204);
    assert_eq!(named(), Vec::<String>::new());
}

#[test]
fn changes_of_runs_are_in_the_teams_log() {
    let team = Team::new();
    let from = team.marks().0;
    let open = json!({ "run_id": "a b", "events": [event("e1", 1)] });
    for _ in 0..2 {
        assert!(team.post(&team.owner, "/runs", open.clone()).status < 300);
    }
    claim(&team, "a%20b", "h", "claim");
    claim(&team, "a%20b", "h", "claim");
    assert_eq!(
        team.last_event().2,
        json!({ "run_id": "a b", "holder": "h", "fence": 1, "displaced": null })
    );
    assert_eq!(team.delete(&team.owner, "/runs/a%20b/claim?holder=h&fence=1").status, 204);
    let tombstone = json!({ "tombstone": { "id": "t", "sequence": 2, "payload": {} } });
    for _ in 0..2 {
        assert_eq!(team.post(&team.owner, "/runs/a%20b/delete", tombstone.clone()).status, 200);
    }
    assert_eq!(
        team.events_since(from),
        ["run.created", "run.claimed", "run.released", "run.deleted"]
    );
    assert_eq!(team.count("SELECT count(*) FROM event_resources WHERE resource_kind = 'run'"), 0);
    // A run that begins anew is created anew, and its id may hold spaces.
    let again = json!({ "run_id": "a b", "events": [event("e1", 3)] });
    assert_eq!(team.post(&team.owner, "/runs", again).status, 201);
    let first = team.get(&team.owner, "/events/current?limit=1");
    let mut next = first.json["next_cursor"].clone();
    while let Some(cursor) = next.as_str() {
        let page = team.get(&team.owner, &format!("/events/current?limit=1&cursor={cursor}"));
        page.items();
        next = page.json["next_cursor"].clone();
    }
}

#[test]
fn a_claim_history_goes_30_days_after_its_run() {
    let team = Team::new();
    let history =
        || team.lines("SELECT fence FROM run_fences UNION ALL SELECT holder FROM fenced_holders");
    claim(&team, "r", "a", "claim");
    claim(&team, "r", "b", "takeover");
    team.advance(CLAIM_HISTORY_AGE_MS);
    team.settle();
    assert_eq!(history(), ["2", "a"], "it is held");
    assert_eq!(team.delete(&team.owner, "/runs/r/claim?holder=b").status, 204);
    team.advance(CLAIM_HISTORY_AGE_MS - 1);
    team.settle();
    assert_eq!(history(), ["2", "a"], "a millisecond before");
    // An event keeps it; once that is gone, the time begins anew.
    assert_eq!(append(&team, "r", &event("e1", 1).to_string()).status, 200);
    team.advance(1);
    team.settle();
    assert_eq!(history(), ["2", "a"], "it has an event");
    assert_eq!(team.delete(&team.owner, "/runs/r").status, 204);
    team.advance(CLAIM_HISTORY_AGE_MS - 1);
    let viewer = team.person("viewer", Role::Viewer).token;
    let fenced = || team.get(&viewer, "/runs/r/fenced/a").data(200)["fenced"].clone();
    assert_eq!(fenced(), json!(true));
    team.advance(1);
    team.settle();
    assert_eq!((history(), fenced()), (vec![], json!(false)));
}

#[test]
fn a_history_of_any_length_goes_in_batches() {
    let team = Team::new();
    for n in 0..100 {
        claim(&team, "r", &format!("h{n}"), "takeover");
        claim(&team, &format!("r{n}"), "h", "claim");
        let path = format!("/runs/r{n}/claim?holder=h&fence=1");
        assert_eq!(team.delete(&team.owner, &path).status, 204);
    }
    assert_eq!(team.delete(&team.owner, "/runs/r").status, 204);
    team.advance(CLAIM_HISTORY_AGE_MS);
    let outcomes = team.settle();
    let gone: u64 = outcomes.iter().filter_map(|o| o.removed.get("claim_history")).sum();
    assert_eq!(gone, 101 + 99);
    assert_eq!(team.count("SELECT count(*) FROM run_fences"), 0);
}

#[test]
fn a_wiped_ledger_begins_a_new_epoch_behind_its_last_row() {
    let team = Team::new();
    assert_eq!(append(&team, "r", &event("e1", 1).to_string()).status, 200);
    claim(&team, "r", "a", "claim");
    let last = team.get(&team.owner, "/run-changes").data(200)["last"].clone();
    assert_eq!(team.post(&team.owner, "/wipe", json!({ "confirm": "Acme" })).status, 200);
    team.settle();
    for table in ["run_events", "runs", "run_claims", "run_fences", "run_marks"] {
        assert_eq!(team.count(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
    let path = format!("/run-changes?after={}", last.as_str().unwrap());
    let gone = team.get(&team.owner, &path);
    assert_eq!(gone.refusal().1, "events_pruned");
    let resume = gone.json["error"]["details"]["resume_from"].as_str().unwrap().to_owned();
    let appended = append(&team, "r", &event("e1", 1).to_string());
    assert_eq!(appended.data(200)["events"][0]["row_id"], 2, "a row id is never used again");
    let path = format!("/run-changes?after={resume}");
    assert_eq!(team.get(&team.owner, &path).data(200)["runs"], json!({ "r": 1 }));
}

#[test]
fn an_append_that_fails_anywhere_leaves_nothing() {
    let team = Team::new();
    assert_eq!(append(&team, "r", &event("e0", 0).to_string()).status, 200);
    let tables = || {
        team.lines(
            "SELECT 'e', id, run_id FROM run_events
             UNION ALL SELECT 'r', events, run_id FROM runs
             UNION ALL SELECT 'c', ref, event_row_id FROM content_refs
             UNION ALL SELECT 'l', type, resource_id FROM org_events",
        )
    };
    let before = tables();
    let content = format!("sha256:{}", "c".repeat(64));
    let body = json!({ "events": [
        { "run_id": "r", "id": "e1", "sequence": 1, "kind": "k", "payload": content },
        { "run_id": "s", "id": "e2", "sequence": 1, "kind": "k", "payload": 1 },
    ] });
    let mut failed = 0;
    loop {
        team.driver.fail_after(Some(failed));
        let got = team.post(&team.owner, "/run-events", body.clone());
        team.driver.fail_after(None);
        if got.status == 200 {
            break;
        }
        assert_eq!((got.status, tables()), (500, before.clone()), "after {failed} statements");
        failed += 1;
    }
    assert!(failed > 5, "{failed}");
    assert_ne!(tables(), before);
}

#[test]
fn apps_need_the_scope_and_another_team_sees_nothing() {
    let team = Team::new();
    let reader = team.app("reader", &["runs:read"]).token;
    let writer = team.app("writer", &["runs:write"]).token;
    let open = json!({ "run_id": "r", "events": [event("e1", 1)] });
    assert_eq!(team.post(&reader, "/runs", open.clone()).status, 403);
    assert_eq!(team.post(&writer, "/runs", open.clone()).status, 201);
    assert_eq!(team.get(&writer, "/runs").status, 403);
    assert_eq!(team.get(&reader, "/runs").items().len(), 1);
    let (other, token) = team.another("Other");
    let send = |method: &str, path: &str, body: Option<&[u8]>| {
        team.send_to(&format!("/v1/teams/{other}{path}"), &token, method, &[], body)
    };
    assert_eq!(send("GET", "/runs", None).items().len(), 0);
    // Ids are a team's own.
    let opened = send("POST", "/runs", Some(open.to_string().as_bytes()));
    assert_eq!(opened.data(201)["events"][0]["duplicate"], false);
    assert_eq!(send("GET", "/run-changes", None).data(200)["runs"], json!({ "r": 1 }));
    let rows = team.db().query(
        "SELECT row_id FROM run_events WHERE team_id = ?1",
        params![&other],
        |row| row.get::<i64>(),
    );
    assert_eq!(rows.unwrap(), [2]);
}
