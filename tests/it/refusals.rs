//! Who may call what: a row for each route, and a column for each kind of caller. A route without
//! a row fails, and so does a row without a route.
use crate::capture::{messages, session};
use crate::team::Team;
use serde_json::json;
use teamplane::api::ROUTES;
use teamplane::auth::Role;
use teamplane::limits::MACHINE_TOKEN_AGE_MS;
use teamplane::scopes;

/// What the route answers to owner, admin, member, viewer, a machine and an app without scopes, of
/// whom none is the custodian of anything that a path names. All see the session by its source.
struct Row {
    method: &'static str,
    path: &'static str,
    body: &'static str,
    expected: [u16; 6],
}

impl Row {
    /// The path without its query.
    fn route(&self) -> &'static str {
        self.path.split('?').next().unwrap_or_default()
    }
}

const fn row(
    method: &'static str,
    path: &'static str,
    body: &'static str,
    expected: [u16; 6],
) -> Row {
    Row { method, path, body, expected }
}

/// Every member, and a member's machine, reads; an app needs a scope.
const READS: [u16; 6] = [200, 200, 200, 200, 200, 403];
const ALL: [u16; 6] = [200; 6];
/// Machines know nothing of runs.
const LEDGER: [u16; 6] = [200, 200, 200, 200, 403, 403];
const LEDGER_WRITES: [u16; 6] = [200, 200, 200, 403, 403, 403];

/// What agents keep is their own: neither a viewer nor a machine writes, no machine reads.
const AGENTS_READ: [u16; 6] = [200, 200, 200, 200, 403, 403];
const AGENTS_WRITE: [u16; 6] = [200, 200, 200, 403, 403, 403];
const AGENTS_FIND: [u16; 6] = [404, 404, 404, 404, 403, 403];
const AGENTS_CHANGE: [u16; 6] = [404, 404, 404, 403, 403, 403];
const AGENTS_MOVE: [u16; 6] = [409, 409, 409, 403, 403, 403];

#[rustfmt::skip] // A table reads best as one.
const ROWS: &[Row] = &[
    row("GET",    "", "", ALL),
    row("PATCH",  "", r"{}",                                    [200, 200, 403, 403, 403, 403]),
    row("DELETE", "", r#"{"confirm":"Acme"}"#,                  [202, 403, 403, 403, 403, 403]),
    row("POST",   "/wipe", r#"{"confirm":"Acme"}"#,             [200, 403, 403, 403, 403, 403]),
    row("GET",    "/export", "",                                [200, 200, 403, 403, 403, 403]),
    row("POST",   "/import", "{page}",                          [409, 403, 403, 403, 403, 403]),
    row("GET",    "/me", "", ALL),
    row("GET",    "/members", "", READS),
    row("POST",   "/members", r#"{"name":"n","role":"viewer"}"#, [201, 201, 403, 403, 403, 403]),
    row("PATCH",  "/members/{principal}", r"{}",                [200, 200, 403, 403, 403, 403]),
    row("DELETE", "/members/{principal}", "",                   [204, 204, 403, 403, 403, 403]),
    row("GET",    "/groups", "", READS),
    row("POST",   "/groups", r#"{"name":"n"}"#,                 [201, 201, 403, 403, 403, 403]),
    row("GET",    "/groups/{group}", "", READS),
    row("PATCH",  "/groups/{group}", r"{}",                     [200, 200, 403, 403, 403, 403]),
    row("DELETE", "/groups/{group}", "",                        [428, 428, 403, 403, 403, 403]),
    row("PUT",    "/groups/{group}/members/{principal}", "",    [200, 200, 403, 403, 403, 403]),
    row("DELETE", "/groups/{group}/members/{principal}", "",    [204, 204, 403, 403, 403, 403]),
    row("GET",    "/credentials", "",                           [200, 200, 200, 200, 200, 200]),
    row("POST",   "/credentials", r"{}",                        [201, 201, 201, 201, 403, 403]),
    row("GET",    "/credentials/{credential}", "",              [200, 200, 404, 404, 404, 404]),
    row("DELETE", "/credentials/{credential}", "",              [204, 204, 404, 404, 404, 404]),
    row("GET",    "/journal", "",                               [200, 200, 403, 403, 403, 403]),
    row("GET",    "/sources", "", READS),
    row("POST",   "/sources", r#"{"name":"n","kind":"import","visibility":"team"}"#, [201, 201, 201, 403, 403, 403]),
    row("GET",    "/sources/{source}", "", READS),
    row("PATCH",  "/sources/{source}", r"{}",                   [200, 200, 403, 403, 403, 403]),
    row("GET",    "/machines", "", READS),
    row("POST",   "/machines", r#"{"name":"n","enrollment_key":"k"}"#, [201, 201, 201, 403, 403, 403]),
    row("GET",    "/machines/events", "", READS),
    row("GET",    "/machines/{machine}", "", READS),
    row("DELETE", "/machines/{machine}", "",                    [428, 428, 403, 403, 403, 403]),
    row("POST",   "/machines/{machine}/heartbeat", r#"{"incarnation_id":"i","sequence":1,"bindings":[],"roots":[]}"#, [403; 6]),
    row("POST",   "/machines/{machine}/token", "",              [403; 6]),
    row("GET",    "/machines/{machine}/configuration", "",      [403; 6]),
    row("GET",    "/machines/{machine}/link", "",               [403; 6]),
    row("GET",    "/machines/{machine}/roots", "",              [200, 200, 403, 403, 403, 403]),
    row("GET",    "/machines/{machine}/rules", "",              [200, 200, 403, 403, 403, 403]),
    row("POST",   "/machines/{machine}/rules", r#"{"root_id":"r","harnesses":[],"include":[],"exclude":[]}"#, [201, 201, 403, 403, 403, 403]),
    row("GET",    "/machines/{machine}/rules/{rule}", "",       [404, 404, 403, 403, 403, 403]),
    row("PATCH",  "/machines/{machine}/rules/{rule}", r"{}",    [404, 404, 403, 403, 403, 403]),
    row("DELETE", "/machines/{machine}/rules/{rule}", "",       [404, 404, 403, 403, 403, 403]),
    row("POST",   "/machines/{machine}/operations", r#"{"kind":"message","input":{}}"#, [202, 202, 202, 403, 403, 403]),
    row("POST",   "/machines/{machine}/effects/{effect}", r#"{"state":"failed"}"#, [403; 6]),
    row("POST",   "/captures", r#"{"harness":"h","native_id":"n"}"#, [400, 400, 400, 400, 201, 400]),
    row("GET",    "/captures/{capture}", "",                    [200, 200, 404, 403, 404, 403]),
    row("DELETE", "/captures/{capture}", "",                    [204, 204, 404, 403, 404, 403]),
    row("PUT",    "/captures/{capture}/parts/{index}", r#"{"messages":[]}"#, [404, 404, 404, 403, 404, 403]),
    row("POST",   "/captures/{capture}/commit", r#"{"parts":0}"#, [404, 404, 404, 403, 404, 403]),
    row("GET",    "/sessions", "", READS),
    row("GET",    "/sessions/{session}", "", READS),
    row("PATCH",  "/sessions/{session}", r"{}",                 [200, 200, 200, 403, 403, 403]),
    row("DELETE", "/sessions/{session}", "",                    [204, 204, 403, 403, 403, 403]),
    row("GET",    "/sessions/{session}/messages", "", READS),
    row("GET",    "/sessions/{session}/versions", "", READS),
    row("GET",    "/sessions/{session}/artifacts", "", READS),
    row("GET",    "/sessions/{session}/export", "", READS),
    row("GET",    "/sessions/{session}/follow", "",             [101, 101, 101, 101, 101, 403]),
    row("GET",    "/sessions/{session}/grants", "", READS),
    row("GET",    "/sessions/{session}/grants/{kind}/{subject}", "", [404, 404, 404, 404, 404, 403]),
    row("PUT",    "/sessions/{session}/grants/{kind}/{subject}", r#"{"access":"read"}"#, [200, 200, 403, 403, 403, 403]),
    row("DELETE", "/sessions/{session}/grants/{kind}/{subject}", "", [204, 204, 403, 403, 403, 403]),
    row("POST",   "/sessions/{session}/continuations", r"{}",   [201, 201, 201, 403, 201, 403]),
    row("POST",   "/sessions/{session}/attachments", r#"{"machine_id":"machine_{0}","binding_id":"b"}"#, [404, 404, 404, 403, 403, 403]),
    row("POST",   "/sessions/{session}/operations", r#"{"kind":"message","input":{}}"#, [202, 202, 202, 403, 403, 403]),
    row("POST",   "/uploads", r#"{"size":1,"sha256":"{64}","media_type":"a/b"}"#, [400, 400, 400, 400, 201, 400]),
    row("GET",    "/uploads/{upload}", "",                      [404, 404, 404, 404, 404, 403]),
    row("POST",   "/uploads/{upload}/chunks", r#"{"chunks":[]}"#, [404, 404, 404, 403, 404, 403]),
    row("PUT",    "/uploads/{upload}/chunks/{index}", "x",      [404, 404, 404, 403, 404, 403]),
    row("POST",   "/uploads/{upload}/commit", "",               [404, 404, 404, 403, 404, 403]),
    row("GET",    "/uploads/{upload}/content", "",              [404, 404, 404, 404, 404, 403]),
    row("PUT",    "/content/{ref}", "x",                        [409, 409, 409, 403, 403, 403]),
    row("GET",    "/content/{ref}", "",                         [404, 404, 404, 404, 403, 403]),
    row("HEAD",   "/content/{ref}", "",                         [404, 404, 404, 404, 403, 403]),
    row("GET",    "/content/{ref}/grants/{session}", "",        [200, 200, 200, 200, 403, 403]),
    row("PUT",    "/content/{ref}/grants/{session}", "",        [200, 200, 200, 403, 403, 403]),
    row("GET",    "/continuations", "", READS),
    row("GET",    "/continuations/{continuation}", "", READS),
    row("POST",   "/continuations/{continuation}/accept", "",   [403, 403, 403, 403, 200, 403]),
    row("POST",   "/continuations/{continuation}/complete", r#"{"state":"failed"}"#, [403; 6]),
    row("DELETE", "/attachments/{attachment}", "",              [404, 404, 404, 404, 404, 403]),
    row("GET",    "/operations", "", READS),
    row("GET",    "/operations/{operation}", "",                [404, 404, 404, 404, 404, 403]),
    row("GET",    "/apps", "",                                  [200, 200, 403, 403, 403, 403]),
    row("POST",   "/apps", r#"{"name":"n"}"#,                   [201, 201, 403, 403, 403, 403]),
    row("GET",    "/apps/{app}", "",                            [200, 200, 403, 403, 403, 403]),
    row("PATCH",  "/apps/{app}", r"{}",                         [200, 200, 403, 403, 403, 403]),
    row("DELETE", "/apps/{app}", "",                            [204, 204, 403, 403, 403, 403]),
    row("POST",   "/apps/{app}/enable", "",                     [200, 200, 403, 403, 403, 403]),
    row("POST",   "/apps/{app}/install-codes", "",              [201, 201, 403, 403, 403, 403]),
    row("POST",   "/apps/{app}/rotate-secret", "",              [200, 200, 403, 403, 403, 403]),
    row("POST",   "/apps/{app}/test", "",                       [201, 201, 403, 403, 403, 403]),
    row("GET",    "/apps/{app}/deliveries", "",                 [200, 200, 403, 403, 403, 403]),
    row("POST",   "/apps/{app}/deliveries/recover", r#"{"since":0}"#, [200, 200, 403, 403, 403, 403]),
    row("POST",   "/apps/{app}/deliveries/{delivery}/retry", "", [200, 200, 403, 403, 403, 403]),
    row("GET",    "/events", "", READS),
    row("GET",    "/events/current", "", READS),
    row("GET",    "/contexts", "",                              AGENTS_READ),
    row("PUT",    "/contexts/{context}", r#"{"binding":{"provider":"p","model":"m","generation":1}}"#, AGENTS_WRITE),
    row("GET",    "/contexts/{context}", "",                    AGENTS_FIND),
    row("PATCH",  "/contexts/{context}", r"{}",                 AGENTS_CHANGE),
    row("DELETE", "/contexts/{context}", "",                    AGENTS_CHANGE),
    row("POST",   "/contexts/{context}/commit", r#"{"operation_id":"o","expected":{"session":0,"durable":0,"source":0},"binding":{"provider":"p","model":"m","generation":1},"events":[],"checkpoint":{"turn_id":1,"algorithm":"a","schema_version":1,"source_start":0,"active_context":[]}}"#, AGENTS_CHANGE),
    row("POST",   "/contexts/{context}/advance", r#"{"operation_id":"o","expected":{"session":0,"durable":0,"source":0},"binding":{"provider":"p","model":"m","generation":1},"reason":"r"}"#, AGENTS_CHANGE),
    row("GET",    "/contexts/{context}/source", "",             AGENTS_FIND),
    row("GET",    "/contexts/{context}/first-user-message", "", AGENTS_FIND),
    row("GET",    "/contexts/{context}/payloads/{ref}", "",     AGENTS_FIND),
    row("PUT",    "/contexts/{context}/payloads/{ref}", "x",    AGENTS_CHANGE),
    row("POST",   "/contexts/{context}/import", r#"{"legacy_id":"l","operation_key":"k","events":[{"kind":"k","role":"r","size":0,"provenance":"p","redaction_status":"n"}]}"#, AGENTS_WRITE),
    row("GET",    "/contexts/{context}/export", "",             AGENTS_CHANGE),
    row("POST",   "/contexts/{context}/reclaim", "",            AGENTS_CHANGE),
    row("PUT",    "/contexts/{context}/lease", "",              AGENTS_WRITE),
    row("DELETE", "/contexts/{context}/lease", "",              [204, 204, 204, 403, 403, 403]),
    row("PUT",    "/snapshots/{name}", r#"{"messages":[]}"#,    AGENTS_WRITE),
    row("GET",    "/snapshots/{name}", "",                      AGENTS_FIND),
    row("DELETE", "/snapshots/{name}", "",                      AGENTS_CHANGE),
    row("PUT",    "/snapshots/{name}/admission", r#"{"names":["n"]}"#, AGENTS_WRITE),
    row("GET",    "/snapshots/{name}/admission", "",            AGENTS_READ),
    row("POST",   "/snapshots/prune", r#"{"names":[]}"#,        AGENTS_WRITE),
    row("GET",    "/worktrees", "",                             AGENTS_READ),
    row("POST",   "/worktrees", r#"{"worktree":"w","instance_id":"i","path":"/p"}"#, [201, 201, 201, 403, 403, 403]),
    row("GET",    "/worktrees/{instance}", "",                  AGENTS_FIND),
    row("POST",   "/worktrees/{instance}/register", "",         AGENTS_MOVE),
    row("POST",   "/worktrees/{instance}/abandon", "",          AGENTS_MOVE),
    row("POST",   "/worktrees/{instance}/begin-deletion", "",   AGENTS_MOVE),
    row("POST",   "/worktrees/{instance}/reactivate", "",       AGENTS_MOVE),
    row("POST",   "/worktrees/{instance}/finish-deletion", "",  AGENTS_MOVE),
    row("POST",   "/worktrees/{instance}/validate", "",         AGENTS_MOVE),
    row("GET",    "/worktree-routes/{worktree}", "",            AGENTS_FIND),
    row("PUT",    "/worktree-routes/{worktree}", r#"{"dir":"/d"}"#, AGENTS_WRITE),
    row("DELETE", "/worktree-routes/{worktree}", "",            AGENTS_WRITE),
    row("POST",   "/usage", r#"{"kind":"token_usage"}"#,        [201, 201, 201, 403, 403, 403]),
    row("GET",    "/usage?by=day", "",                          AGENTS_READ),
    row("GET",    "/usage/calibration?provider=p&model=m", "",  AGENTS_FIND),
    row("GET",    "/runs", "", LEDGER),
    row("POST",   "/runs", r#"{"run_id":"r","events":[{"id":"e","sequence":1,"kind":"k","payload":1}]}"#, [201, 201, 201, 403, 403, 403]),
    row("DELETE", "/runs/{run}", "",                            [204, 204, 403, 403, 403, 403]),
    row("GET",    "/runs/{run}/events", "", LEDGER),
    row("POST",   "/runs/{run}/events", r#"{"events":[]}"#, LEDGER_WRITES),
    row("POST",   "/run-events", r#"{"events":[]}"#, LEDGER_WRITES),
    row("GET",    "/run-changes", "", LEDGER),
    row("POST",   "/runs/{run}/delete", r#"{"tombstone":{"id":"e","sequence":1,"payload":1}}"#, LEDGER_WRITES),
    row("GET",    "/runs/{run}/claim", "",                      [404, 404, 404, 404, 403, 403]),
    row("POST",   "/runs/{run}/claim", r#"{"holder":"h"}"#, LEDGER_WRITES),
    row("DELETE", "/runs/{run}/claim", "",                      [400; 6]),
    row("POST",   "/runs/{run}/claim/refresh", r#"{"holder":"h"}"#, [409, 409, 409, 403, 403, 403]),
    row("GET",    "/runs/{run}/fenced/{holder}", "", LEDGER),
    row("GET",    "/maintain", "",                              [200, 200, 403, 403, 403, 403]),
    row("POST",   "/maintain", "",                              [200, 200, 403, 403, 403, 403]),
    row("GET",    "/metrics", "",                               [200, 200, 403, 403, 403, 403]),
    row("GET",    "/usage/storage", "",                         [200, 200, 403, 403, 403, 403]),
];

/// A team with one of everything that paths name, and a caller of each kind.
struct World {
    team: Team,
    callers: [String; 6],
    names: Vec<(&'static str, String)>,
}

fn world() -> World {
    let team = Team::new();
    let ada = team.person("ada", Role::Member);
    let laptop = team.publisher_of(&ada.id, "laptop");
    let show = format!("/sources/{}", laptop.source_id);
    assert_eq!(team.patch(&ada.token, &show, json!({ "visibility": "team" })).status, 200);
    let published = session(&team.publish(&laptop.token, "n1", &messages(0, 1, "word")));
    let capture = team.begin(&laptop.token, json!({ "harness": "h", "native_id": "n2" }));
    let path = format!("/sessions/{published}/continuations");
    let continuation = team.post(&ada.token, &path, json!({})).data(201)["id"].clone();
    let group = team.post(&team.owner, "/groups", json!({ "name": "g" })).data(201)["id"].clone();
    let hook = json!({ "name": "hook", "webhook_url": "https://example.com/hook" });
    let app = team.post(&team.owner, "/apps", hook).data(201)["id"].clone();
    let path = format!("/apps/{}/test", app.as_str().unwrap());
    let delivery = team.post(&team.owner, &path, json!({})).data(201)["id"].clone();
    let credential = team.get(&ada.token, "/me").data(200)["credential"]["id"].clone();
    let subject = team.person("subject", Role::Viewer);
    let page = String::from_utf8(team.get(&team.owner, "/export").bytes).unwrap();
    let id = |value: serde_json::Value| value.as_str().unwrap().to_owned();
    let none = |kind: &str| format!("{kind}_{}", "0".repeat(32));
    let names = vec![
        ("{principal}", subject.id.to_string()),
        ("{subject}", subject.id.to_string()),
        ("{kind}", "principal".into()),
        ("{group}", id(group)),
        ("{credential}", id(credential)),
        ("{source}", laptop.source_id.to_string()),
        ("{machine}", laptop.machine_id.to_string()),
        ("{capture}", capture),
        ("{session}", published),
        ("{continuation}", id(continuation)),
        ("{app}", id(app)),
        ("{delivery}", id(delivery)),
        ("{index}", "0".into()),
        ("{rule}", none("rule")),
        ("{effect}", none("effect")),
        ("{upload}", none("upload")),
        ("{ref}", format!("sha256:{}", "0".repeat(64))),
        ("{attachment}", none("attachment")),
        ("{operation}", none("operation")),
        ("{page}", page),
        ("{context}", "c".into()),
        ("{name}", "n".into()),
        ("{instance}", "i".into()),
        ("{worktree}", "w".into()),
        ("{run}", "r".into()),
        ("{holder}", "h".into()),
        ("{0}", "0".repeat(32)),
        ("{64}", "0".repeat(64)),
    ];
    let callers = [
        team.owner.clone(),
        team.person("admin", Role::Admin).token,
        team.person("member", Role::Member).token,
        team.person("viewer", Role::Viewer).token,
        team.publisher("other").token,
        team.app("app", &[]).token,
    ];
    World { team, callers, names }
}

const CAPABILITY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE";

impl World {
    fn filled(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (name, id)| text.replace(name, id))
    }

    fn call(&self, token: &str, row: &Row, team_id: &str) -> crate::team::Got {
        let address = format!("/v1/teams/{team_id}{}", self.filled(row.path));
        let body = self.filled(row.body);
        let digest = "sha-256=:LXEWQrcmsEQBYnyp6+wy9chTD7GQPMTbAiWHF5IaSIE=:";
        let mut headers = vec![];
        if row.method == "PUT" && row.path.starts_with("/uploads") {
            headers.push(("content-digest", digest));
        }
        if row.path.starts_with("/contexts") {
            headers.push(("x-context-capability", CAPABILITY));
        }
        self.team.send_to(&address, token, row.method, &headers, Some(body.as_bytes()))
    }
}

#[test]
fn every_route_has_a_row_and_every_row_a_route() {
    let mut routes: Vec<_> = ROUTES.iter().map(|route| (route.path, route.method)).collect();
    let mut rows: Vec<_> = ROWS.iter().map(|row| (row.route(), row.method)).collect();
    routes.sort_unstable();
    rows.sort_unstable();
    assert_eq!(routes, rows);
}

#[test]
fn each_route_answers_each_kind_of_caller_as_its_row_says() {
    let mut wrong = Vec::new();
    let shared = world();
    for row in ROWS {
        for (caller, expected) in row.expected.into_iter().enumerate() {
            // What one caller changes is not for the next one to find.
            let fresh = (row.method != "GET" && expected < 400).then(world);
            let w = fresh.as_ref().unwrap_or(&shared);
            let marks = w.team.marks();
            let answer = w.call(&w.callers[caller], row, w.team.id_text());
            let name = format!("{} {} by caller {caller}", row.method, row.path);
            if answer.status >= 400 {
                assert_eq!(w.team.marks(), marks, "{name} wrote");
            }
            if answer.status != expected {
                wrong.push(format!("{name}: {}, not {expected}", answer.json));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_route_answers_a_token_that_is_missing_foreign_revoked_or_expired() {
    let w = world();
    let (other_id, other) = w.team.another("Other");
    let gone = w.team.person("gone", Role::Owner);
    assert_eq!(w.team.delete(&w.team.owner, &format!("/members/{}", gone.id)).status, 204);
    let foreign = |row| {
        // Another team's token for this team, and this team's for another: the team is unknown.
        let ours = w.call(&other, row, w.team.id_text()).status;
        (ours, w.call(&w.team.owner, row, &other_id.to_string()).status)
    };
    for row in ROWS {
        let name = format!("{} {}", row.method, row.path);
        assert_eq!(w.call("", row, w.team.id_text()).status, 401, "{name}");
        assert_eq!(w.call(&gone.token, row, w.team.id_text()).status, 401, "{name}");
        assert_eq!(foreign(row), (404, 404), "{name}");
    }
    w.team.advance(MACHINE_TOKEN_AGE_MS);
    for row in ROWS {
        for token in &w.callers[1..] {
            assert_eq!(w.call(token, row, w.team.id_text()).status, 401, "{}", row.path);
        }
    }
}

/// The column of the route table says it, and the handlers do it.
#[test]
fn an_app_gets_through_where_the_route_names_a_scope_of_its_own_and_nowhere_else() {
    let mut wrong = Vec::new();
    let shared = world();
    let apps: Vec<_> =
        scopes::ALL.iter().map(|scope| (*scope, shared.team.app(scope, &[scope]).token)).collect();
    for row in ROWS {
        let route =
            ROUTES.iter().find(|r| (r.method, r.path) == (row.method, row.route())).unwrap();
        for (scope, token) in &apps {
            let asked = route.apps.unwrap_or(&["never"]);
            let admitted = asked.is_empty() || asked.contains(scope);
            let answer = shared.call(token, row, shared.team.id_text());
            let closed = if admitted { 403 } else { row.expected[5] };
            if (answer.status == closed) == admitted {
                wrong.push(format!("{} {} with {scope}: {}", row.method, row.path, answer.json));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let named = ROUTES.iter().flat_map(|route| route.apps.unwrap_or_default());
    assert!(named.into_iter().all(|scope| scopes::ALL.contains(scope)));
}
