use crate::team::{Person, Publisher, Team};
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::limits::GRANTS_PER_SUBJECT_MAX;

struct Scene {
    team: Team,
    custodian: Person,
    machine: Publisher,
    session: String,
}

/// A session of a restricted source.
fn scene() -> Scene {
    let team = Team::new();
    let custodian = team.person("Eve", Role::Member);
    let machine = team.publisher_of(&custodian.id, "laptop");
    let begin = json!({ "harness": "codex", "native_id": "n" });
    let capture = team.post(&machine.token, "/captures", begin);
    let capture = format!("/captures/{}", capture.data(201)["id"].as_str().unwrap());
    let part = r#"{"messages":[{"ordinal":0,"role":"user","text":"hi"}]}"#;
    assert_eq!(team.put(&machine.token, &format!("{capture}/parts/0"), part).status, 204);
    let commit = team.post(&machine.token, &format!("{capture}/commit"), json!({ "parts": 1 }));
    let session = format!("/sessions/{}", commit.data(200)["session_id"].as_str().unwrap());
    Scene { team, custodian, machine, session }
}

impl Scene {
    fn to(&self, person: &Person) -> String {
        format!("{}/grants/principal/{}", self.session, person.id)
    }
    fn sees(&self, token: &str) -> bool {
        self.team.get(token, &self.session).status == 200
    }
    fn put(&self, token: &str, address: &str, access: &str) -> u16 {
        self.team.put(token, address, &json!({ "access": access }).to_string()).status
    }
}

#[test]
fn a_grant_opens_a_session_until_it_is_taken_back() {
    let scene = scene();
    let team = &scene.team;
    let bob = team.person("Bob", Role::Member);
    assert!(!scene.sees(&bob.token));
    let sequence = team.marks().0;
    let got = team.put(&scene.custodian.token, &scene.to(&bob), r#"{"access":"read"}"#);
    let expected = json!({
        "subject_kind": "principal", "subject_id": bob.id.to_string(), "access": "read",
        "created_at": team.now_ms.get()
    });
    assert_eq!(got.data(200), &expected);
    assert!(scene.sees(&bob.token));
    assert_eq!(team.events_since(sequence), ["session.granted", "authorization_changed"]);
    assert_eq!(team.get(&team.owner, "/journal").items()[0]["action"], "session.granted");
    assert_eq!(team.get(&bob.token, &scene.to(&bob)).data(200), &expected);
    let list = format!("{}/grants", scene.session);
    assert_eq!(team.get(&bob.token, &list).items(), &vec![expected]);

    let marks = team.marks();
    assert_eq!(scene.put(&scene.custodian.token, &scene.to(&bob), "read"), 200);
    assert_eq!(team.marks(), marks, "the same again writes nothing");
    team.advance(5);
    let got = team.put(&scene.custodian.token, &scene.to(&bob), r#"{"access":"continue"}"#);
    assert_eq!(got.data(200)["access"], "continue");
    assert_eq!(got.data(200)["created_at"], team.now_ms.get() - 5);

    assert_eq!(team.delete(&scene.custodian.token, &scene.to(&bob)).status, 204);
    assert!(!scene.sees(&bob.token));
    let marks = team.marks();
    assert_eq!(team.delete(&scene.custodian.token, &scene.to(&bob)).status, 204);
    assert_eq!(team.marks(), marks);
    assert_eq!(team.get(&scene.custodian.token, &scene.to(&bob)).refusal().0, 404);
}

#[test]
fn a_groups_grant_opens_a_session_to_its_members() {
    let scene = scene();
    let team = &scene.team;
    let bob = team.person("Bob", Role::Viewer);
    let group = team.post(&team.owner, "/groups", json!({ "name": "Core" }));
    let group = group.data(201)["id"].as_str().unwrap().to_owned();
    let address = format!("{}/grants/group/{group}", scene.session);
    assert_eq!(scene.put(&scene.custodian.token, &address, "read"), 200);
    assert!(!scene.sees(&bob.token));
    let seat = format!("/groups/{group}/members/{}", bob.id);
    assert_eq!(team.send(&team.owner, "PUT", &seat, &[], None).status, 200);
    assert!(scene.sees(&bob.token));
    let gone =
        team.send(&team.owner, "DELETE", &format!("/groups/{group}"), &[("if-match", "*")], None);
    assert_eq!(gone.status, 204);
    assert!(!scene.sees(&bob.token));
    assert_eq!(scene.put(&scene.custodian.token, &address, "read"), 404);
}

#[test]
fn its_custodian_and_admins_who_see_it_grant_a_session() {
    let scene = scene();
    let team = &scene.team;
    let bob = team.person("Bob", Role::Member);
    let admin = team.person("A", Role::Admin);
    let app = team.app("bot", &["sessions:read"]);
    let target = team.person("T", Role::Viewer);
    for token in [&bob.token, &admin.token, &team.owner] {
        assert_eq!(scene.put(token, &scene.to(&target), "read"), 404, "nobody sees it yet");
    }
    for person in [&bob, &admin, &app] {
        assert_eq!(scene.put(&scene.custodian.token, &scene.to(person), "continue"), 200);
    }
    assert!(scene.sees(&app.token));
    for (token, status) in [
        (&bob.token, 403),
        (&app.token, 403),
        (&scene.machine.token, 403),
        (&admin.token, 200),
        (&scene.custodian.token, 200),
    ] {
        assert_eq!(scene.put(token, &scene.to(&target), "read"), status);
        let removal = team.delete(token, &scene.to(&target)).status;
        assert_eq!(removal, if status == 200 { 204 } else { 403 });
    }
    assert!(!scene.sees(&target.token));
}

#[test]
fn bad_and_unknown_grants_are_refused_and_write_nothing() {
    let scene = scene();
    let team = &scene.team;
    let bob = team.person("Bob", Role::Member);
    let token = &scene.custodian.token;
    let marks = team.marks();
    for (body, field) in [
        (json!({}), "access"),
        (json!({ "access": "write" }), "access"),
        (json!({ "access": null }), "access"),
        (json!({ "access": "read", "until": 1 }), "until"),
    ] {
        let got = team.put(token, &scene.to(&bob), &body.to_string());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
    }
    let zeros = "0".repeat(32);
    for address in [
        format!("{}/grants/principal/principal_{zeros}", scene.session),
        format!("{}/grants/group/group_{zeros}", scene.session),
        format!("{}/grants/group/{}", scene.session, bob.id),
        format!("{}/grants/team/{}", scene.session, bob.id),
        format!("/sessions/session_{zeros}/grants/principal/{}", bob.id),
        format!("/sessions/x/grants/principal/{}", bob.id),
    ] {
        assert_eq!(scene.put(token, &address, "read"), 404, "{address}");
    }
    let stranger = team.another("Other").1;
    assert_eq!(scene.put(&stranger, &scene.to(&bob), "read"), 404);
    assert_eq!(team.marks().1, marks.1);
    assert_eq!(team.count("SELECT count(*) FROM session_grants"), 0);
}

#[test]
fn every_grant_is_listed_once_over_the_pages() {
    let scene = scene();
    let team = &scene.team;
    for n in 0..5 {
        let person = team.person(&format!("p{n}"), Role::Viewer);
        assert_eq!(scene.put(&scene.custodian.token, &scene.to(&person), "read"), 200);
        let group = team.post(&team.owner, "/groups", json!({ "name": "g" }));
        let id = group.data(201)["id"].as_str().unwrap();
        let address = format!("{}/grants/group/{id}", scene.session);
        assert_eq!(scene.put(&scene.custodian.token, &address, "read"), 200);
    }
    for limit in [1, 3, 5, 10] {
        let (mut seen, mut cursor) = (Vec::<Json>::new(), String::new());
        loop {
            let address = format!("{}/grants?limit={limit}{cursor}", scene.session);
            let got = team.get(&scene.custodian.token, &address);
            seen.extend(got.items().iter().map(|grant| grant["subject_id"].clone()));
            let Some(next) = got.json["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(seen.len(), 10);
        seen.sort_by_key(ToString::to_string);
        seen.dedup();
        assert_eq!(seen.len(), 10);
    }
}

#[test]
fn a_subject_has_so_many_grants_as_go_with_it_at_once() {
    let scene = scene();
    let bob = scene.team.person("Bob", Role::Member);
    let fill = |count: usize| {
        scene.team.sql(&format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
             INSERT INTO session_grants SELECT '{}', 's' || i, 'principal', '{}', 'read', 0 FROM n
              WHERE true ON CONFLICT DO NOTHING",
            scene.team.id, bob.id
        ));
    };
    fill(GRANTS_PER_SUBJECT_MAX - 1);
    assert_eq!(scene.put(&scene.custodian.token, &scene.to(&bob), "read"), 200);
    // What is granted already may change.
    assert_eq!(scene.put(&scene.custodian.token, &scene.to(&bob), "continue"), 200);
    scene.team.delete(&scene.custodian.token, &scene.to(&bob));
    fill(GRANTS_PER_SUBJECT_MAX);
    assert_eq!(scene.put(&scene.custodian.token, &scene.to(&bob), "read"), 409);
    scene.team.delete(&scene.team.owner, &format!("/members/{}", bob.id));
    assert_eq!(scene.team.count("SELECT count(*) FROM session_grants"), 0);
}

#[test]
fn a_member_who_leaves_takes_their_grants_along() {
    let scene = scene();
    let bob = scene.team.person("Bob", Role::Member);
    assert_eq!(scene.put(&scene.custodian.token, &scene.to(&bob), "read"), 200);
    scene.team.delete(&scene.team.owner, &format!("/members/{}", bob.id));
    assert_eq!(scene.team.count("SELECT count(*) FROM session_grants"), 0);
}
