//! Reading the event log, its current events and the presence log.
use crate::capture::{messages, session};
use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::ids::Id;

fn epoch(team: &Team) -> String {
    let epoch = "SELECT epoch FROM teams WHERE name = 'Acme'";
    team.driver.connection().query_row(epoch, [], |row| row.get(0)).unwrap()
}

fn sequences(items: &[Json]) -> Vec<i64> {
    items.iter().map(|event| event["sequence"].as_i64().unwrap()).collect()
}

#[test]
fn the_log_is_read_page_by_page_from_any_position() {
    let team = Team::new();
    for n in 0..5 {
        team.post(&team.owner, "/groups", json!({ "name": format!("g{n}") }));
    }
    let all = team.get(&team.owner, "/events");
    let expected = sequences(all.items());
    assert!(expected.len() > 5);
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let got = team.get(&team.owner, &format!("/events?limit=2{after}"));
        if got.items().is_empty() {
            assert_eq!(got.json["last"], all.json["last"]);
            break;
        }
        seen.extend(sequences(got.items()));
        after = format!("&after={}", got.json["last"].as_str().unwrap());
    }
    assert_eq!(seen, expected);
    let event = &all.items()[0];
    let position = format!("{}.{}", epoch(&team), event["sequence"]);
    assert_eq!(event["position"], json!(position));
    // A bare integer is of the current epoch.
    let newest = expected.last().unwrap();
    let got = team.get(&team.owner, &format!("/events?after={newest}"));
    assert_eq!((got.items().len(), &got.json["last"]), (0, &all.json["last"]));
}

#[test]
fn a_position_that_cannot_be_gone_on_from_is_refused_and_says_where_to_begin() {
    let team = Team::new();
    team.post(&team.owner, "/groups", json!({ "name": "g" }));
    let (t, e) = (&team.id, epoch(&team));
    let newest = team.marks().0;
    let sql = format!("INSERT INTO event_retention (team_id, pruned_through) VALUES ('{t}', 1)");
    team.driver.connection().execute_batch(&sql).unwrap();
    let get = |after: &str| team.get(&team.owner, &format!("/events?after={after}"));
    assert_eq!(get("1").status, 200);
    for after in ["0", "00000000.1", &format!("{e}.0")] {
        let got = get(after);
        assert_eq!(got.refusal().0, 410, "{after}");
        assert_eq!(got.refusal().1, "events_pruned");
        assert_eq!(got.json["error"]["details"]["resume_from"], json!(format!("{e}.1")));
    }
    assert_eq!(get(&newest.to_string()).status, 200);
    for after in ["x", "-1", "1.", "", ".1", "99999999999999999999", &(newest + 1).to_string()] {
        assert_eq!(get(after).refusal().1, "invalid_cursor", "{after}");
    }
    // Without a position: from the oldest that is surely there.
    assert!(sequences(team.get(&team.owner, "/events").items()).iter().all(|n| *n > 1));
}

#[test]
fn a_caller_reads_events_only_of_what_it_may_see() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let secret = session(&team.publish(&machine.token, "n1", &messages(0, 1, "x")));
    let bob = team.person("bob", Role::Viewer);
    let of_session = |token: &str| {
        let got = team.get(token, "/events?limit=200");
        got.items().iter().filter(|e| e["resource_id"] == json!(secret)).count()
    };
    assert_eq!((of_session(&machine.token), of_session(&bob.token)), (1, 0));
    assert_eq!(of_session(&team.owner), 0);
    let path = format!("/sessions/{secret}/grants/principal/{}", bob.id);
    let sql = format!(
        "INSERT INTO session_grants VALUES ('{}', '{secret}', 'principal', '{}', 'read', 0)",
        team.id, bob.id
    );
    team.driver.connection().execute_batch(&sql).unwrap();
    assert_eq!(team.get(&bob.token, &path).status, 200);
    assert_eq!(of_session(&bob.token), 1);
    // `last` moves over what is not seen, so that a reader comes to the end.
    let got = team.get(&team.owner, "/events?limit=200");
    assert_eq!(got.json["last"], json!(format!("{}.{}", epoch(&team), team.marks().0)));
    let app = team.app("app", &["sessions:read"]);
    assert_eq!(team.get(&app.token, "/events").refusal().0, 403);
    let app = team.app("listener", &["events:read"]);
    assert_eq!(team.get(&app.token, "/events").status, 200);
}

#[test]
fn current_events_page_over_every_resource_and_name_the_position_before_the_first_page() {
    let team = Team::new();
    for n in 0..7 {
        team.post(&team.owner, "/groups", json!({ "name": format!("g{n}") }));
    }
    let first = team.get(&team.owner, "/events/current?limit=3");
    let last = first.json["last"].clone();
    let (mut count, mut next) = (first.items().len(), first.json["next_cursor"].clone());
    team.post(&team.owner, "/groups", json!({ "name": "later" }));
    while let Some(cursor) = next.as_str() {
        let got = team.get(&team.owner, &format!("/events/current?limit=3&cursor={cursor}"));
        assert_eq!(got.json["last"], last);
        count += got.items().len();
        next = got.json["next_cursor"].clone();
    }
    assert!(count >= 8, "{count}");
    let after = last.as_str().unwrap();
    let got = team.get(&team.owner, &format!("/events?after={after}"));
    assert!(got.items().iter().any(|event| event["data"]["name"] == "later"));
    assert_eq!(team.get(&team.owner, "/events/current?cursor=x").refusal().1, "invalid_cursor");
}

#[test]
fn the_presence_log_is_read_like_the_event_log() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let (t, m) = (team.id.as_str(), machine.machine_id.as_str());
    let sql = format!(
        "INSERT INTO machine_presence_events (team_id, machine_id, linked, created_at)
         VALUES ('{t}', '{m}', 1, 5), ('{t}', '{m}', 0, 6)"
    );
    team.driver.connection().execute_batch(&sql).unwrap();
    let got = team.get(&team.owner, "/machines/events?limit=1");
    assert_eq!(got.items()[0]["type"], "machine.online");
    assert_eq!(got.json["last"], json!(format!("{}.1", epoch(&team))));
    let got = team.get(&team.owner, "/machines/events?after=1");
    assert_eq!(got.items()[0]["type"], "machine.unlinked");
    assert_eq!(team.get(&team.owner, "/machines/events?after=3").refusal().1, "invalid_cursor");
}

#[test]
fn a_sessions_messages_are_exported_as_they_were_sent_one_a_line() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let id = session(&team.publish(&machine.token, "n1", &messages(0, 450, "word")));
    let got = team.get(&machine.token, &format!("/sessions/{id}/export"));
    let text = String::from_utf8(got.bytes.clone()).unwrap();
    let lines: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((got.status, lines), (200, messages(0, 450, "word")));
    assert_eq!(team.get(&team.owner, &format!("/sessions/{id}/export")).refusal().0, 404);
}
