use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::auth::Role;
use teamplane::ids::{Id, PrincipalId};
use teamplane::limits::{DAY_MS, MEMBERS_MAX};

const ROLES: [Role; 4] = [Role::Viewer, Role::Member, Role::Admin, Role::Owner];

fn path(id: &PrincipalId) -> String {
    format!("/members/{id}")
}

fn owner_id(team: &Team) -> PrincipalId {
    let me = team.get(&team.owner, "/me");
    PrincipalId::parse(me.data(200)["principal"]["id"].as_str().unwrap()).unwrap()
}

#[test]
fn an_added_member_gets_a_token_that_works_until_it_expires() {
    let team = Team::new();
    let epoch = team.get(&team.owner, "").data(200)["auth_epoch"].as_i64().unwrap();
    let sequence = team.marks().0;
    let body = json!({
        "name": "Bob", "email": "bob@example.com", "role": "member", "expires_in_ms": 60_000
    });
    let got = team.post(&team.owner, "/members", body);
    let (member, credential) = (&got.data(201)["member"], &got.data(201)["credential"]);
    let expected = json!({
        "principal_id": member["principal_id"], "name": "Bob", "email": "bob@example.com",
        "role": "member", "active": true, "revision": 1, "created_at": team.now_ms.get()
    });
    assert_eq!(member, &expected);
    assert_eq!(credential["principal_id"], member["principal_id"]);
    assert_eq!(credential["expires_at"], team.now_ms.get() + 60_000);
    assert_eq!(team.events_since(sequence), ["member.added", "authorization_changed"]);
    assert_eq!(team.get(&team.owner, "").data(200)["auth_epoch"], epoch + 1);
    let journal = team.get(&team.owner, "/journal");
    assert_eq!(journal.items()[0]["action"], "member.added");
    assert_eq!(journal.items()[0]["target_id"], member["principal_id"]);

    let token = credential["token"].as_str().unwrap();
    let listed = team.get(token, "/members");
    assert!(listed.items().contains(member));
    team.advance(59_999);
    assert!(team.is_accepted(token));
    team.advance(1);
    assert_eq!(team.get(token, "/me").refusal(), (401, "unauthenticated", ""));
}

#[test]
fn a_member_without_an_email_or_an_age_gets_null_and_ninety_days() {
    let team = Team::new();
    let body = json!({ "name": "Bob", "role": "viewer", "email": null });
    let got = team.post(&team.owner, "/members", body);
    assert_eq!(got.data(201)["member"]["email"], Json::Null);
    assert_eq!(got.data(201)["credential"]["expires_at"], team.now_ms.get() + 90 * DAY_MS);
}

#[test]
fn a_bad_member_is_refused_by_its_field_and_writes_nothing() {
    let team = Team::new();
    let marks = team.marks();
    let with = |field: &str, value: Json| {
        let mut body = json!({ "name": "Bob", "role": "member" });
        body[field] = value;
        body
    };
    for (body, field) in [
        (json!({ "role": "member" }), "name"),
        (json!({ "name": "Bob" }), "role"),
        (with("admin", true.into()), "admin"),
        (with("name", 1.into()), "name"),
        (with("name", "".into()), "name"),
        (with("name", "x".repeat(129).into()), "name"),
        (with("role", "root".into()), "role"),
        (with("role", Json::Null), "role"),
        (with("email", 1.into()), "email"),
        (with("email", "".into()), "email"),
        (with("email", "x".repeat(255).into()), "email"),
        (with("expires_in_ms", 59_999.into()), "expires_in_ms"),
        (with("expires_in_ms", (400 * DAY_MS + 1).into()), "expires_in_ms"),
        (with("expires_in_ms", 1.5.into()), "expires_in_ms"),
    ] {
        let got = team.post(&team.owner, "/members", body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
    }
    assert_eq!(team.marks(), marks);
    assert_eq!(team.count("SELECT count(*) FROM memberships"), 1);
}

#[test]
fn admins_add_everyone_but_owners_and_owners_everyone() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let app = team.app("bot", &["sessions:read"]);
    for caller in ROLES {
        let token = team.person("caller", caller).token;
        for role in ROLES {
            let got = team.post(&token, "/members", json!({ "name": "new", "role": role }));
            let may = caller >= Role::Admin && caller >= role;
            assert_eq!(got.status, if may { 201 } else { 403 }, "{caller:?} adds {role:?}");
        }
    }
    for token in [&machine.token, &app.token] {
        let got = team.post(token, "/members", json!({ "name": "new", "role": "viewer" }));
        assert_eq!(got.refusal().0, 403);
    }
}

#[test]
fn admins_change_everyone_but_owners_and_owners_everyone() {
    for caller in ROLES {
        for before in ROLES {
            for after in ROLES {
                let team = Team::new();
                let token = team.person("caller", caller).token;
                let target = team.person("target", before);
                let marks = team.marks();
                let got = team.patch(&token, &path(&target.id), json!({ "role": after }));
                let may = caller >= Role::Admin && caller >= before && caller >= after;
                let case = format!("{caller:?} makes {before:?} {after:?}");
                assert_eq!(got.status, if may { 200 } else { 403 }, "{case}");
                assert_eq!(team.marks() != marks, may && before != after, "{case}");
                if may {
                    assert_eq!(got.data(200)["role"], json!(after));
                    let now = team.get(&target.token, "/me");
                    assert_eq!(now.data(200)["role"], json!(after));
                }
            }
        }
    }
}

#[test]
fn admins_remove_everyone_but_owners_and_owners_everyone() {
    for caller in ROLES {
        for role in ROLES {
            let team = Team::new();
            let token = team.person("caller", caller).token;
            let target = team.person("target", role);
            let may = caller >= Role::Admin && caller >= role;
            let got = team.delete(&token, &path(&target.id));
            assert_eq!(got.status, if may { 204 } else { 403 }, "{caller:?} removes {role:?}");
            assert_eq!(team.is_accepted(&target.token), !may);
        }
    }
}

#[test]
fn anyone_but_the_last_owner_may_leave() {
    let team = Team::new();
    for role in ROLES {
        let person = team.person("leaver", role);
        assert_eq!(team.delete(&person.token, &path(&person.id)).status, 204, "{role:?}");
        assert!(!team.is_accepted(&person.token));
    }
    let last = owner_id(&team);
    assert_eq!(team.delete(&team.owner, &path(&last)).refusal(), (409, "conflict", ""));
    assert!(team.is_accepted(&team.owner));
}

#[test]
fn a_machine_does_not_leave_for_its_custodian() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let got = team.delete(&machine.token, &path(&machine.custodian_id));
    assert_eq!(got.refusal(), (403, "forbidden", ""));
}

#[test]
fn the_last_active_owner_cannot_be_demoted_stopped_or_removed() {
    let team = Team::new();
    let last = owner_id(&team);
    // An owner who is not active does not count.
    let idle = team.person("idle", Role::Owner);
    assert_eq!(team.patch(&team.owner, &path(&idle.id), json!({ "active": false })).status, 200);
    let marks = team.marks();
    for body in [
        json!({ "role": "admin" }),
        json!({ "active": false }),
        json!({ "role": "viewer", "active": false }),
    ] {
        let got = team.patch(&team.owner, &path(&last), body);
        assert_eq!(got.refusal(), (409, "conflict", ""));
    }
    assert_eq!(team.delete(&team.owner, &path(&last)).refusal(), (409, "conflict", ""));
    assert_eq!(team.marks(), marks);
    // An idle owner may go: the team keeps an active one.
    assert_eq!(team.delete(&team.owner, &path(&idle.id)).status, 204);
}

#[test]
fn of_two_owners_who_demote_each_other_the_second_is_refused() {
    let team = Team::new();
    let (first, second) = (owner_id(&team), team.person("second", Role::Owner));
    let demote = json!({ "role": "member" });
    assert_eq!(team.patch(&team.owner, &path(&second.id), demote.clone()).status, 200);
    let got = team.patch(&second.token, &path(&first), demote);
    assert_eq!(got.refusal(), (403, "forbidden", ""));
    assert_eq!(team.count("SELECT count(*) FROM memberships WHERE role = 'owner'"), 1);
}

#[test]
fn an_inactive_member_is_refused_until_active_again_and_so_reads_their_machine() {
    let team = Team::new();
    let custodian = team.person("Bob", Role::Member);
    let machine = team.publisher_of(&custodian.id, "laptop");
    let set = |active| team.patch(&team.owner, &path(&custodian.id), json!({ "active": active }));
    assert_eq!(set(false).data(200)["active"], false);
    assert_eq!(team.get(&custodian.token, "/me").refusal(), (401, "unauthenticated", ""));
    assert_eq!(team.get(&machine.token, "/members").refusal(), (403, "forbidden", ""));
    assert_eq!(set(true).data(200)["revision"], 3);
    assert!(team.is_accepted(&custodian.token));
    assert_eq!(team.get(&machine.token, "/members").status, 200);
}

#[test]
fn a_bad_change_of_a_member_is_refused_and_writes_nothing() {
    let team = Team::new();
    let bob = team.person("Bob", Role::Member);
    let marks = team.marks();
    for (body, field) in [
        (json!({ "name": "Rob" }), "name"),
        (json!({ "role": "root" }), "role"),
        (json!({ "role": null }), "role"),
        (json!({ "active": null }), "active"),
        (json!({ "active": 1 }), "active"),
    ] {
        let got = team.patch(&team.owner, &path(&bob.id), body.clone());
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{body}");
    }
    assert_eq!(team.patch(&team.owner, &path(&bob.id), json!({})).data(200)["revision"], 1);
    for id in [format!("principal_{}", "0".repeat(32)), "bob".into(), "%ff".into()] {
        let address = format!("/members/{id}");
        assert_eq!(team.patch(&team.owner, &address, json!({})).refusal().0, 404, "{id}");
        assert_eq!(team.delete(&team.owner, &address).refusal().0, 404, "{id}");
    }
    assert_eq!(team.marks(), marks);
}

#[test]
fn another_teams_member_is_unknown() {
    let team = Team::new();
    let (other_id, other) = team.another("Other");
    let me = team.send_to(&format!("/v1/teams/{other_id}/me"), &other, "GET", &[], None);
    let stranger = me.data(200)["principal"]["id"].as_str().unwrap().to_owned();
    let address = format!("/members/{stranger}");
    assert_eq!(team.patch(&team.owner, &address, json!({ "role": "viewer" })).refusal().0, 404);
    assert_eq!(team.delete(&team.owner, &address).refusal().0, 404);
    let ids: Vec<_> = team
        .get(&team.owner, "/members")
        .items()
        .iter()
        .map(|m| m["principal_id"].clone())
        .collect();
    assert!(!ids.contains(&stranger.into()));
}

#[test]
fn changing_and_removing_another_revision_is_refused() {
    let team = Team::new();
    let bob = team.person("Bob", Role::Member);
    let send = |method: &str, tag: &str| {
        let body = (method == "PATCH").then_some(&b"{\"role\":\"admin\"}"[..]);
        team.send(&team.owner, method, &path(&bob.id), &[("if-match", tag)], body)
    };
    assert_eq!(send("PATCH", "\"2\"").refusal(), (409, "revision_mismatch", ""));
    assert_eq!(send("PATCH", "\"1\"").header("etag"), Some("\"2\""));
    assert_eq!(send("PATCH", "\"1\"").refusal().0, 409);
    assert_eq!(send("DELETE", "\"1\"").refusal().0, 409);
    assert!(team.is_accepted(&bob.token));
    assert_eq!(send("DELETE", "\"2\"").status, 204);
}

#[test]
fn a_removed_member_takes_along_all_they_reached_the_team_by() {
    let team = Team::new();
    let bob = team.person("Bob", Role::Member);
    let own = team.publisher_of(&bob.id, "bobs");
    let others = team.publisher("others");
    let sql = |text: &str| team.driver.connection().execute_batch(text).unwrap();
    let (t, b) = (&team.id, &bob.id);
    sql(&format!(
        "INSERT INTO groups_table (team_id, id, name) VALUES ('{t}', 'group_1', 'g');
         INSERT INTO group_members VALUES ('{t}', 'group_1', '{b}');
         INSERT INTO session_grants VALUES
             ('{t}', 'session_1', 'principal', '{b}', 'read', 0),
             ('{t}', 'session_1', 'principal', 'principal_x', 'read', 0);
         INSERT INTO sync_rules (team_id, id, machine_id, source_id, value_json, state)
             VALUES ('{t}', 'rule_1', '{own}', '{source}', '{{}}', 'active');
         INSERT INTO attachments
             (team_id, id, session_id, machine_id, binding_id, principal_id, state, created_at)
             VALUES ('{t}', 'attachment_1', 's', '{own}', 'b', 'principal_x', 'active', 0),
                    ('{t}', 'attachment_2', 's', '{others}', 'b', '{b}', 'pending', 0),
                    ('{t}', 'attachment_3', 's', '{others}', 'b', 'principal_x', 'active', 0);
         INSERT INTO operations
             (team_id, id, session_id, principal_id, kind, state, input_json, created_at,
              updated_at)
             VALUES ('{t}', 'operation_1', NULL, 'principal_x', 'message', 'running', '{{}}', 0, 0),
                    ('{t}', 'operation_2', NULL, 'principal_x', 'message', 'succeeded', '{{}}', 0, 0);
         INSERT INTO native_effects
             (team_id, id, operation_id, machine_id, state, request_json, created_at)
             VALUES ('{t}', 'effect_1', 'operation_1', '{own}', 'pending', '{{}}', 0),
                    ('{t}', 'effect_2', 'operation_2', '{own}', 'succeeded', '{{}}', 0);
         INSERT INTO machine_presence VALUES ('{t}', '{own}', 1, NULL, 0);
         INSERT INTO machine_presence_cursors (team_id, pruned_through, linked) VALUES ('{t}', 0, 1)",
        own = own.machine_id,
        others = others.machine_id,
        source = own.source_id,
    ));
    let sequence = team.marks().0;

    assert_eq!(team.delete(&team.owner, &path(&bob.id)).status, 204);

    for token in [&bob.token, &own.token] {
        assert_eq!(team.get(token, "/me").refusal(), (401, "unauthenticated", ""));
    }
    assert!(team.is_accepted(&others.token));
    let one = |sql: &str| team.count(sql);
    assert_eq!(one("SELECT count(*) FROM sources WHERE state = 'revoked'"), 1);
    assert_eq!(one("SELECT count(*) FROM machines WHERE revoked_at IS NOT NULL"), 1);
    assert_eq!(one("SELECT count(*) FROM sync_rules"), 0);
    assert_eq!(one("SELECT count(*) FROM session_grants"), 1);
    assert_eq!(one("SELECT count(*) FROM group_members"), 0);
    assert_eq!(one("SELECT revision FROM groups_table"), 2);
    let revoked = "SELECT count(*) FROM attachments
                    WHERE state = 'revoked' AND settled_at IS NOT NULL AND id <> 'attachment_3'";
    assert_eq!(one(revoked), 2);
    assert_eq!(one("SELECT count(*) FROM attachments WHERE state = 'active'"), 1);
    assert_eq!(one("SELECT count(*) FROM native_effects WHERE state = 'unknown'"), 1);
    let lost = "SELECT count(*) FROM operations
                 WHERE state = 'unknown' AND settled_at IS NOT NULL AND id = 'operation_1'";
    assert_eq!(one(lost), 1);
    assert_eq!(one("SELECT count(*) FROM operations WHERE state = 'succeeded'"), 1);
    assert_eq!(one("SELECT count(*) FROM machine_presence"), 0);
    assert_eq!(one("SELECT linked FROM machine_presence_cursors"), 0);
    assert_eq!(one("SELECT count(*) FROM machine_presence_events WHERE linked = 0"), 1);
    assert_eq!(
        team.events_since(sequence),
        [
            "source.changed",
            "operation.changed",
            "machine.revoked",
            "group.changed",
            "member.removed",
            "authorization_changed"
        ]
    );
    let ended = "SELECT count(*) FROM event_resources
                  WHERE resource_kind IN ('member', 'machine', 'operation')";
    assert_eq!(one(ended), 0);
    assert_eq!(team.delete(&team.owner, &path(&bob.id)).refusal().0, 404);
}

#[test]
fn a_removal_that_dies_at_any_statement_leaves_nothing_half_done() {
    let team = Team::new();
    let bob = team.person("Bob", Role::Member);
    let machine = team.publisher_of(&bob.id, "laptop");
    let marks = team.marks();
    // Notes that the token was used, which is no part of the removal.
    team.get(&team.owner, "");
    for cut in 1.. {
        team.driver.fail_after(Some(cut));
        let got = team.delete(&team.owner, &path(&bob.id));
        team.driver.fail_after(None);
        if got.status == 204 {
            assert!(cut > 10, "the removal takes more than {cut} statements");
            break;
        }
        assert_eq!(got.refusal().0, 500);
        assert_eq!(team.marks(), marks);
        assert!(team.is_accepted(&bob.token) && team.is_accepted(&machine.token));
    }
    assert!(!team.is_accepted(&machine.token));
}

#[test]
fn a_full_team_takes_nobody_more() {
    let team = Team::new();
    let fill = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
                INSERT INTO memberships (team_id, principal_id, role, created_at)
                SELECT ?1, 'principal_' || i, 'viewer', 0 FROM n";
    let seats = i64::try_from(MEMBERS_MAX).unwrap() - 2;
    team.driver.connection().execute(fill, (team.id.as_str(), seats)).unwrap();
    let add = || team.post(&team.owner, "/members", json!({ "name": "new", "role": "viewer" }));
    assert_eq!(add().status, 201);
    let marks = team.marks();
    let got = add();
    assert_eq!(got.refusal(), (409, "conflict", ""));
    assert_eq!(got.json["error"]["details"]["limit"], MEMBERS_MAX);
    assert_eq!(team.marks(), marks);
}

#[test]
fn a_repeated_addition_answers_the_same_without_the_token() {
    let team = Team::new();
    let add = |name: &str| {
        let body = json!({ "name": name, "role": "member" }).to_string();
        let headers = [("idempotency-key", "k1")];
        team.send(&team.owner, "POST", "/members", &headers, Some(body.as_bytes()))
    };
    let first = add("Bob");
    let again = add("Bob");
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.data(201)["member"], first.data(201)["member"]);
    assert_eq!(again.data(201)["credential"]["token"], Json::Null);
    assert_eq!(again.data(201)["credential"]["replayed"], true);
    assert_eq!(add("Rob").refusal(), (409, "idempotency_mismatch", ""));
    assert_eq!(team.count("SELECT count(*) FROM memberships"), 2);
}

#[test]
fn the_list_pages_over_every_member_once_also_while_members_come_and_go() {
    let team = Team::new();
    let people: Vec<_> = (0..7).map(|n| team.person(&format!("p{n}"), Role::Viewer)).collect();
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let got = team.get(&people[0].token, &format!("/members?limit=3{cursor}"));
        assert!(got.items().len() <= 3);
        seen.extend(got.items().iter().map(|m| m["principal_id"].as_str().unwrap().to_owned()));
        if seen.len() == 3 {
            let gone = PrincipalId::parse(&seen[0]).unwrap();
            team.delete(&team.owner, &path(&gone));
        }
        let Some(next) = got.json["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let mut sorted = seen.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!((seen.len(), &seen), (8, &sorted));
    for (query, field) in
        [("limit=0", "limit"), ("limit=201", "limit"), ("limit=x", "limit"), ("q=a", "q")]
    {
        let got = team.get(&team.owner, &format!("/members?{query}"));
        assert_eq!(got.refusal(), (400, "invalid_request", field));
    }
    // A cursor belongs to its caller and its list.
    assert_eq!(
        team.get(&team.owner, &format!("/members?{}", &cursor[1..])).refusal().1,
        "invalid_cursor"
    );
    let elsewhere = team.get(&people[0].token, &format!("/sources?{}", &cursor[1..]));
    assert_eq!(elsewhere.refusal().1, "invalid_cursor");
    assert_eq!(team.get(&team.owner, "/members?cursor=x").refusal().1, "invalid_cursor");
}

#[test]
fn apps_read_members_only_with_the_scope_for_reading() {
    let team = Team::new();
    let reader = team.app("reader", &["sessions:read"]);
    let writer = team.app("writer", &["captures:write"]);
    assert_eq!(team.get(&reader.token, "/members").status, 200);
    assert_eq!(team.get(&writer.token, "/members").refusal().0, 403);
}
