use crate::capture::{messages, session};
use crate::team::Team;
use serde_json::{Value as Json, json};
use std::collections::HashSet;
use teamplane::auth::Role;
use teamplane::limits::{CURSOR_AGE_MS, LAST_USED_STEP_MS};

fn ids(items: &[Json]) -> Vec<String> {
    items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

/// Every item of a list, page by page.
fn all(team: &Team, token: &str, path: &str) -> Vec<Json> {
    let (mut items, mut cursor) = (Vec::new(), String::new());
    for _ in 0..1_000 {
        let got = team.get(token, &format!("{path}{cursor}"));
        items.extend(got.items().clone());
        match got.json["next_cursor"].as_str() {
            None => return items,
            Some(next) => cursor = format!("&cursor={next}"),
        }
    }
    panic!("the list has no end");
}

#[test]
fn pages_of_equal_times_skip_and_repeat_nothing_while_sessions_change() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let made: Vec<String> = (0..250)
        .map(|n| session(&team.publish(&laptop.token, &format!("n{n}"), &messages(0, 1, "a"))))
        .collect();
    let first = team.get(&laptop.token, "/sessions?limit=50");
    let mut seen = first.items().clone();
    let mut next = first.json["next_cursor"].as_str().map(str::to_owned);
    let mut pages = 1;
    while let Some(cursor) = next {
        // One changes, one is made, one is deleted between two pages.
        team.advance(1);
        team.publish(&laptop.token, &format!("n{pages}"), &messages(0, 2, "changed"));
        team.publish(&laptop.token, &format!("new{pages}"), &messages(0, 1, "a"));
        let path = format!("/sessions?limit=50&cursor={cursor}");
        let page = team.get(&laptop.token, &path);
        assert_eq!(team.get(&laptop.token, &path).items(), page.items(), "a token's page is fixed");
        seen.extend(page.items().clone());
        next = page.json["next_cursor"].as_str().map(str::to_owned);
        pages += 1;
    }
    assert_eq!(pages, 5);
    assert_eq!(ids(&seen).iter().collect::<HashSet<_>>(), made.iter().collect::<HashSet<_>>());
    assert_eq!(seen.len(), 250);
    assert!(seen.iter().all(|item| item["revision"] == 1 && item["message_count"] == 1));
}

#[test]
fn a_snapshot_ends_at_500_and_the_next_goes_on_behind_it() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    for n in 0..620 {
        team.advance(i64::from(n % 3 == 0));
        team.publish(&laptop.token, &format!("n{n}"), &messages(0, 1, "a"));
    }
    let items = all(&team, &laptop.token, "/sessions?limit=200");
    assert_eq!(ids(&items).into_iter().collect::<HashSet<_>>().len(), 620);
    assert_eq!(items.len(), 620);
    let times: Vec<i64> = items.iter().map(|item| item["updated_at"].as_i64().unwrap()).collect();
    assert!(times.is_sorted_by(|a, b| a >= b));
    assert_eq!(team.count("SELECT count(*) FROM cursors"), 2);
}

#[test]
fn a_list_that_fits_one_page_stores_nothing() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    for n in 0..3 {
        team.publish(&laptop.token, &format!("n{n}"), &messages(0, 1, "a"));
    }
    let got = team.get(&laptop.token, "/sessions?limit=3");
    assert_eq!((got.items().len(), &got.json["next_cursor"]), (3, &Json::Null));
    assert_eq!(team.count("SELECT count(*) FROM cursors"), 0);
}

#[test]
fn a_cursor_serves_its_own_list_for_a_quarter_of_an_hour() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    for n in 0..3 {
        team.publish(&laptop.token, &format!("n{n}"), &messages(0, 1, "word"));
    }
    let got = team.get(&laptop.token, "/sessions?limit=2");
    let cursor = got.json["next_cursor"].as_str().unwrap();
    let custodian = team.publisher("other");
    for (token, path) in [
        (&laptop.token, format!("/sessions?harness=x&cursor={cursor}")),
        (&laptop.token, format!("/sessions?q=word&cursor={cursor}")),
        (&custodian.token, format!("/sessions?cursor={cursor}")),
        (&laptop.token, "/sessions?cursor=nonsense".into()),
        (&laptop.token, format!("/sessions?cursor={}.499", cursor.split_once('.').unwrap().0)),
    ] {
        assert_eq!(team.get(token, &path).refusal(), (400, "invalid_cursor", ""), "{path}");
    }
    team.advance(CURSOR_AGE_MS - 1);
    assert_eq!(team.get(&laptop.token, &format!("/sessions?cursor={cursor}")).status, 200);
    team.advance(1);
    let late = team.get(&laptop.token, &format!("/sessions?cursor={cursor}"));
    assert_eq!(late.refusal(), (410, "expired", ""));
}

#[test]
fn restricted_sessions_are_their_custodians_alone() {
    let team = Team::new();
    let (mine, yours) = (team.publisher("mine"), team.publisher("yours"));
    let id = session(&team.publish(&mine.token, "n1", &messages(0, 1, "secret")));
    for path in [
        format!("/sessions/{id}"),
        format!("/sessions/{id}/messages"),
        format!("/sessions/{id}/versions"),
        format!("/sessions/{id}/artifacts"),
    ] {
        assert_eq!(team.get(&mine.token, &path).status, 200, "{path}");
        for token in [&yours.token, &team.owner] {
            assert_eq!(team.get(token, &path).refusal(), (404, "not_found", ""), "{path}");
        }
    }
    for path in ["/sessions", "/sessions?q=secret"] {
        assert_eq!(team.get(&mine.token, path).items().len(), 1);
        assert_eq!(team.get(&yours.token, path).items().len(), 0);
    }
    let body = json!({ "title": "x" });
    assert_eq!(team.patch(&team.owner, &format!("/sessions/{id}"), body).status, 404);
    assert_eq!(team.delete(&team.owner, &format!("/sessions/{id}")).status, 404);
    team.driver.connection().execute("UPDATE sources SET visibility = 'team'", []).unwrap();
    assert_eq!(team.get(&yours.token, "/sessions").items().len(), 1);
    assert_eq!(team.get(&yours.token, &format!("/sessions/{id}")).status, 200);
}

#[test]
fn access_is_asked_again_on_every_page() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let viewer = team.person("Viewer", Role::Viewer);
    team.driver.connection().execute("UPDATE sources SET visibility = 'team'", []).unwrap();
    for n in 0..4 {
        team.publish(&laptop.token, &format!("n{n}"), &messages(0, 1, "a"));
    }
    let got = team.get(&viewer.token, "/sessions?limit=2");
    let path = format!("/sessions?limit=2&cursor={}", got.json["next_cursor"].as_str().unwrap());
    assert_eq!(team.get(&viewer.token, &path).items().len(), 2);
    team.driver.connection().execute("UPDATE sources SET visibility = 'restricted'", []).unwrap();
    assert_eq!(team.get(&viewer.token, &path).items().len(), 0);
}

#[test]
fn a_members_title_stays_over_those_of_captures() {
    let team = Team::new();
    let person = team.person("Ada", Role::Member);
    let laptop = team.publisher_of(&person.id, "laptop");
    let titled = |title: &str| json!({ "harness": "codex", "native_id": "n1", "title": title });
    let id = session(&team.publish_with(&laptop.token, titled("captured"), &messages(0, 1, "a")));
    let path = format!("/sessions/{id}");
    let got = team.patch(&person.token, &path, json!({ "title": "mine" }));
    assert_eq!(got.data(200)["title"], "mine");
    assert_eq!(got.header("etag"), Some("\"1-1\""));
    team.publish_with(&laptop.token, titled("later"), &messages(0, 2, "a"));
    assert_eq!(team.get(&person.token, &path).data(200)["title"], "mine");
    assert_eq!(team.get(&person.token, "/sessions?q=mine").items().len(), 1);
    assert_eq!(team.get(&person.token, "/sessions?q=later").items().len(), 0);
    let got = team.patch(&person.token, &path, json!({ "title": null }));
    assert_eq!(got.data(200)["title"], "later");
    assert_eq!(team.get(&person.token, "/sessions?q=later").items().len(), 1);

    let stale = team.send(
        &person.token,
        "PATCH",
        &path,
        &[("if-match", "\"1-1\"")],
        Some(b"{\"title\":\"x\"}"),
    );
    assert_eq!(stale.refusal(), (409, "revision_mismatch", ""));
    for (body, field) in [
        (json!({ "title": 1 }), "title"),
        (json!({ "title": "" }), "title"),
        (json!({ "title": "x".repeat(513) }), "title"),
        (json!({ "name": "x" }), "name"),
    ] {
        assert_eq!(
            team.patch(&person.token, &path, body).refusal(),
            (400, "invalid_request", field)
        );
    }
    assert_eq!(team.patch(&laptop.token, &path, json!({ "title": "x" })).status, 403);
    let viewer = team.person("Viewer", Role::Viewer);
    assert_eq!(team.patch(&viewer.token, &path, json!({ "title": "x" })).status, 403);
}

#[test]
fn a_deleted_session_is_gone_for_everybody_at_once() {
    let team = Team::new();
    let person = team.person("Ada", Role::Member);
    let laptop = team.publisher_of(&person.id, "laptop");
    team.driver.connection().execute("UPDATE sources SET visibility = 'team'", []).unwrap();
    let id = session(&team.publish(&laptop.token, "n1", &messages(0, 1, "word")));
    team.publish(&laptop.token, "n2", &messages(0, 1, "word"));
    team.advance(1);
    let page = team.get(&person.token, "/sessions?limit=1");
    let cursor = page.json["next_cursor"].as_str().unwrap().to_owned();
    let path = format!("/sessions/{id}");
    let member = team.person("Bob", Role::Member);
    assert_eq!(team.delete(&member.token, &path).status, 403);
    let stale = team.send(&person.token, "DELETE", &path, &[("if-match", "\"9-0\"")], None);
    assert_eq!(stale.refusal().1, "revision_mismatch");
    assert_eq!(team.delete(&person.token, &path).status, 204);
    assert_eq!(team.delete(&person.token, &path).status, 404);
    assert_eq!(team.get(&person.token, &path).status, 404);
    assert_eq!(team.get(&person.token, &format!("{path}/messages?revision=1")).status, 404);
    assert_eq!(team.get(&person.token, "/sessions").items().len(), 1);
    assert_eq!(team.get(&person.token, "/sessions?q=word").items().len(), 1);
    let rest = team.get(&person.token, &format!("/sessions?limit=1&cursor={cursor}"));
    assert!(!ids(page.items()).contains(&id) || rest.items().len() == 1);
    assert!(!ids(rest.items()).contains(&id));
    assert_eq!(team.count("SELECT count(*) FROM journal WHERE action = 'session.deleted'"), 1);
    assert_eq!(
        team.count(&format!("SELECT count(*) FROM event_resources WHERE resource_id = '{id}'")),
        0
    );
}

#[test]
fn reading_an_older_revision_pins_it_once() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n1", &messages(0, 1, "a")));
    team.publish(&laptop.token, "n1", &messages(0, 2, "a"));
    let read = |revision: i64| {
        team.get(&laptop.token, &format!("/sessions/{id}/messages?revision={revision}"))
    };
    read(2);
    assert_eq!(team.count("SELECT count(*) FROM cursors"), 0);
    read(1);
    read(1);
    assert_eq!(team.count("SELECT count(*) FROM cursors WHERE kind = 'history'"), 1);
    assert_eq!(read(3).status, 404);
    assert_eq!(read(0).refusal().2, "revision");
}

#[test]
fn pages_of_messages_end_by_bytes_and_hold_at_least_one() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let big: Vec<Json> = (0..6)
        .map(|n| json!({ "ordinal": n, "role": "user", "text": "x".repeat(500_000) }))
        .collect();
    let capture = team.begin(&laptop.token, json!({ "harness": "codex", "native_id": "n1" }));
    for (index, message) in big.iter().enumerate() {
        let body = json!({ "messages": [message] }).to_string();
        team.put(&laptop.token, &format!("/captures/{capture}/parts/{index}"), &body);
    }
    let got =
        team.post(&laptop.token, &format!("/captures/{capture}/commit"), json!({ "parts": 6 }));
    let id = session(got.data(200));
    let first = team.get(&laptop.token, &format!("/sessions/{id}/messages"));
    assert_eq!((first.items().len(), &first.json["last"]), (4, &json!(3)));
    let rest = team.get(&laptop.token, &format!("/sessions/{id}/messages?after=3"));
    assert_eq!((rest.items().len(), &rest.json["last"]), (2, &json!(5)));
    let none = team.get(&laptop.token, &format!("/sessions/{id}/messages?after=5"));
    assert_eq!((none.items().len(), &none.json["last"]), (0, &json!(5)));
}

#[test]
fn lists_filter_by_harness_source_machine_and_time() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let desk = team.publisher_of(&laptop.custodian_id, "desk");
    team.publish(&laptop.token, "n1", &messages(0, 1, "a"));
    team.advance(1000);
    let codex = json!({ "harness": "codex", "native_id": "n2" });
    team.publish_with(&desk.token, codex, &messages(0, 1, "a"));
    let count = |query: &str| team.get(&laptop.token, &format!("/sessions?{query}")).items().len();
    assert_eq!(count("limit=10"), 2);
    assert_eq!(count("harness=codex"), 1);
    assert_eq!(count(&format!("source={}", laptop.source_id)), 1);
    assert_eq!(count(&format!("machine={}", desk.machine_id)), 1);
    assert_eq!(count(&format!("machine={}&harness=claude-code", desk.machine_id)), 0);
    assert_eq!(count(&format!("updated_after={}", team.now_ms.get() - 1)), 1);
    assert_eq!(count(&format!("updated_after={}", team.now_ms.get())), 0);
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=x", "limit"),
        ("x=1", "x"),
        ("source=1", "source"),
        ("syntax=fts", "syntax"),
        ("q=a&syntax=sql", "syntax"),
        ("updated_after=-1", "updated_after"),
    ] {
        let got = team.get(&laptop.token, &format!("/sessions?{query}"));
        assert_eq!(got.refusal(), (400, "invalid_request", field), "{query}");
    }
}

#[test]
fn search_finds_words_as_they_stand_and_marks_them() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let say = |native_id: &str, text: &str| {
        let message = json!({ "ordinal": 0, "role": "user", "text": text });
        session(&team.publish(&laptop.token, native_id, &[message]))
    };
    let login = say("n1", "Fix the login page");
    say("n2", "Something else, 100% other_thing");
    let got = team.get(&laptop.token, "/sessions?q=login");
    assert_eq!(ids(got.items()), [login]);
    let hit = &got.items()[0]["hit"];
    assert_eq!(
        (&hit["ordinal"], &hit["snippet"]),
        (&json!(0), &json!("Fix the \u{2}login\u{3} page"))
    );
    let count = |query: &str| {
        let got = team.get(&laptop.token, &format!("/sessions?{query}"));
        (got.status, got.json["items"].as_array().map_or(0, Vec::len))
    };
    assert_eq!(count("q=log"), (200, 0));
    assert_eq!(count("q=log*&syntax=fts"), (200, 1));
    assert_eq!(count("q=login+fix"), (200, 1));
    assert_eq!(count("q=login+else"), (200, 0));
    assert_eq!(count("q=login+OR+else&syntax=fts"), (200, 2));
    assert_eq!(count("q="), (200, 0));
    for q in ["%25", "_", "%5C", "%22", "*", "NEAR(", "a%00b", "AND", "other_thing%22"] {
        assert_eq!(count(&format!("q={q}")).0, 200, "{q}");
    }
    assert_eq!(count("q=other_thing"), (200, 1));
    for q in ["NEAR(", "%22open", "col:x", "AND", "a+AND"] {
        let got = team.get(&laptop.token, &format!("/sessions?syntax=fts&q={q}"));
        assert_eq!(got.refusal(), (400, "invalid_request", "q"), "{q}");
    }
    for chars in [48, 49, 60, 1_000] {
        assert_eq!(count(&format!("q={}", "x".repeat(chars))).0, 200);
    }
    assert_eq!(count(&format!("q={}", "x".repeat(1_001))).0, 400);
    assert_eq!(count(&format!("q={}", "%E4%BD%A0".repeat(17))).0, 200);
}

#[test]
fn a_message_is_shown_before_a_title_that_matches_too() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let titled = |native_id: &str| json!({ "harness": "codex", "native_id": native_id, "title": "Fix login" });
    let only_title = session(&team.publish_with(&laptop.token, titled("n1"), &messages(0, 1, "a")));
    let said = json!({ "ordinal": 0, "role": "user", "text": "Fix the login" });
    let both = session(&team.publish_with(&laptop.token, titled("n2"), &[said]));
    let got = team.get(&laptop.token, "/sessions?q=login");
    assert_eq!(ids(got.items()), [both, only_title]);
    assert_eq!(
        got.items()[0]["hit"],
        json!({ "ordinal": 0, "snippet": "Fix the \u{2}login\u{3}" })
    );
    assert_eq!(got.items()[1]["hit"], json!({ "ordinal": null, "snippet": "Fix \u{2}login\u{3}" }));
}

#[test]
fn a_search_shows_each_session_once_over_all_its_pages() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let mut made = HashSet::new();
    for round in 0..3 {
        for n in 0..120 {
            let count = round * 4 + 4;
            made.insert(session(&team.publish(
                &laptop.token,
                &format!("n{n}"),
                &messages(0, count, "common"),
            )));
        }
    }
    let items = all(&team, &laptop.token, "/sessions?q=common&limit=20");
    assert_eq!(items.len(), 120);
    assert_eq!(ids(&items).into_iter().collect::<HashSet<_>>(), made);
    assert!(
        items
            .iter()
            .all(|item| item["hit"]["snippet"].as_str().unwrap().contains("\u{2}common\u{3}"))
    );
}

#[test]
fn a_token_notes_its_use_at_most_hourly() {
    let team = Team::new();
    team.get(&team.owner, "");
    let used = || team.count("SELECT last_used_at FROM credentials");
    let first = used();
    team.advance(LAST_USED_STEP_MS - 1);
    team.get(&team.owner, "");
    assert_eq!(used(), first);
    team.advance(1);
    team.get(&team.owner, "");
    assert_eq!(used(), first + LAST_USED_STEP_MS);
}

#[test]
fn a_search_tells_nothing_of_what_the_caller_may_not_see() {
    let team = Team::new();
    let (mine, yours) = (team.publisher("mine"), team.publisher("yours"));
    for n in 0..40 {
        team.publish(&mine.token, &format!("m{n}"), &messages(0, 5, "marker"));
    }
    let search = |word: &str| {
        let path = format!("/sessions?syntax=fts&limit=200&q={word}+OR+marker");
        let got = team.get(&mine.token, &path);
        (got.items().len(), got.json["next_cursor"].is_null())
    };
    let before = search("hunter2");
    for n in 0..60 {
        team.publish(&yours.token, &format!("y{n}"), &messages(0, 5, "hunter2"));
    }
    assert_eq!(search("hunter2"), before);
    assert_eq!(search("hunter3"), before);
    assert_eq!(team.get(&mine.token, "/sessions?q=hunter2").items().len(), 0);
    // What stands around the expression cannot be left.
    for q in ["a)+OR+(hunter2", "%22", "scope:t*", "%7Bscope%7D:n*"] {
        let got = team.get(&mine.token, &format!("/sessions?syntax=fts&q={q}"));
        assert!(got.status == 400 || got.items().is_empty(), "{q}: {}", got.json);
    }
    // A grant, and a source that opens up, are found at once.
    let session_id = session(&team.publish(&yours.token, "shared", &messages(0, 1, "hunter2")));
    team.driver
        .connection()
        .execute(
            "INSERT INTO session_grants VALUES (?1, ?2, 'principal', ?3, 'read', 0)",
            [team.id.to_string(), session_id.clone(), mine.custodian_id.to_string()],
        )
        .unwrap();
    assert_eq!(ids(team.get(&mine.token, "/sessions?q=hunter2").items()), [session_id]);
    team.driver.connection().execute("UPDATE sources SET visibility = 'team'", []).unwrap();
    assert_eq!(all(&team, &mine.token, "/sessions?q=hunter2&limit=50").len(), 61);
}

#[test]
fn a_search_of_many_phrases_in_long_texts_ends() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let text = format!("{} needle", "b ".repeat(30_000));
    for n in 0..20 {
        let message = json!({ "ordinal": 0, "role": "user", "text": text });
        team.publish(&laptop.token, &format!("n{n}"), &[message]);
    }
    let words: Vec<String> = (0..110).map(|n| format!("x{n}")).collect();
    let q = format!("needle+OR+{}", words.join("+OR+"));
    let got = team.get(&laptop.token, &format!("/sessions?limit=20&syntax=fts&q={q}"));
    assert_eq!(got.items().len(), 20);
    assert!(got.items()[0]["hit"]["snippet"].as_str().unwrap().contains("\u{2}needle\u{3}"));
}

#[test]
fn a_pin_lasts_a_quarter_of_an_hour_from_its_last_read() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let id = session(&team.publish(&laptop.token, "n1", &messages(0, 2, "a")));
    team.publish(&laptop.token, "n1", &messages(0, 1, "b"));
    for _ in 0..4 {
        team.advance(CURSOR_AGE_MS / 3);
        let got = team.get(&laptop.token, &format!("/sessions/{id}/messages?revision=1"));
        assert_eq!(got.status, 200);
        let least = team.count("SELECT max(expires_at) FROM cursors") - team.now_ms.get();
        assert!((CURSOR_AGE_MS..=2 * CURSOR_AGE_MS).contains(&least), "{least}");
    }
}

#[test]
fn whoever_continues_a_session_finds_what_was_there_before() {
    let team = Team::new();
    let (laptop, desktop) = (team.publisher("laptop"), team.publisher("desktop"));
    let whole = messages(0, 30, "lantern");
    let made = team.publish(&laptop.token, "n1", &whole);
    let id = session(&made);
    let hits = |word: &str| {
        let got = team.get(&desktop.token, &format!("/sessions?q={word}"));
        ids(got.items())
    };
    team.sql(&format!(
        "INSERT INTO session_grants
             (team_id, session_id, subject_kind, subject_id, access, created_at)
         VALUES ('{}', '{id}', 'principal', '{}', 'continue', 0)",
        team.id, desktop.custodian_id
    ));
    let begin = json!({
        "harness": "claude-code", "native_id": "n2", "session_id": id,
        "base": { "revision": 1, "keep": 30 },
    });
    team.publish_with(&desktop.token, begin, &messages(30, 31, "candle"));
    team.sql("DELETE FROM session_grants");
    assert_eq!(hits("number7"), [id.as_str()], "seen through the new source alone");
    assert_eq!(hits("candle"), [id.as_str()]);
    let count =
        team.count("SELECT count(*) FROM message_search WHERE message_search MATCH 'lantern'");
    assert_eq!(count, 30, "each is indexed once");
}
