use crate::team::Team;
use serde_json::json;
use teamplane::auth::Role;

#[test]
fn the_journal_says_who_changed_what_and_by_which_request() {
    let team = Team::new();
    let admin = team.person("A", Role::Admin);
    team.advance(7);
    let bob = team.post(&admin.token, "/members", json!({ "name": "Bob", "role": "viewer" }));
    let got = team.get(&team.owner, "/journal");
    let line = &got.items()[0];
    assert_eq!(line["principal_id"], admin.id.to_string());
    assert_eq!(line["action"], "member.added");
    assert_eq!(line["target_id"], bob.data(201)["member"]["principal_id"]);
    assert_eq!(line["created_at"], team.now_ms.get());
    assert!(line["request_id"].as_str().unwrap().starts_with("request_"));
    assert!(line["sequence"].is_i64());
}

#[test]
fn only_admins_read_the_journal() {
    let team = Team::new();
    let machine = team.publisher_of(&team.person("A", Role::Admin).id, "laptop");
    let app = team.app("bot", &["sessions:read", "events:read"]);
    for (token, status) in [
        (&team.person("V", Role::Viewer).token, 403),
        (&team.person("M", Role::Member).token, 403),
        (&team.person("A", Role::Admin).token, 200),
        (&team.owner, 200),
        (&machine.token, 403),
        (&app.token, 403),
    ] {
        assert_eq!(team.get(token, "/journal").status, status);
    }
    assert_eq!(team.get(&team.owner, "/journal?action=x").refusal().2, "action");
}

#[test]
fn lines_of_one_millisecond_are_neither_skipped_nor_repeated() {
    let team = Team::new();
    let (other_id, other) = team.another("Other");
    for n in 0..25 {
        let name = json!({ "name": format!("n{n}") });
        team.patch(&team.owner, "", name.clone());
        let body = name.to_string();
        let address = format!("/v1/teams/{other_id}");
        team.send_to(&address, &other, "PATCH", &[], Some(body.as_bytes()));
        if n % 10 == 9 {
            team.advance(1);
        }
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let got = team.get(&team.owner, &format!("/journal?limit=4{cursor}"));
        seen.extend(got.items().iter().map(|line| line["sequence"].as_i64().unwrap()));
        // A line that is added meanwhile is newer than any page.
        team.patch(&team.owner, "", json!({ "name": format!("later {}", seen.len()) }));
        let Some(next) = got.json["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen.len(), 25);
    assert!(seen.is_sorted_by(|a, b| a > b));
}
