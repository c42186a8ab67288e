//! What every request goes through before its handler: rate, media type, size, fullness.
use crate::capture::messages;
use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::api::ROUTES;
use teamplane::auth::Role;
use teamplane::limits::{DAY_MS, JSON_BYTES_MAX, MACHINE_TOKEN_AGE_MS, PART_BYTES_MAX};

#[test]
fn a_token_may_burst_and_then_waits_for_its_rate() {
    let mut team = Team::new();
    team.config.rate_limit_per_s = 5;
    let laptop = team.publisher("laptop");
    for n in 0..10 {
        assert_eq!(team.get(&team.owner, "").status, 200, "request {n}");
    }
    let refused = team.get(&team.owner, "");
    assert_eq!(refused.refusal(), (429, "rate_limited", ""));
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Another token has its own.
    assert_eq!(team.get(&laptop.token, "").status, 200);
    team.advance(199);
    assert_eq!(team.get(&team.owner, "").status, 429);
    team.advance(1);
    assert_eq!(team.get(&team.owner, "").status, 200);
    assert_eq!(team.get(&team.owner, "").status, 429);
    team.advance(DAY_MS);
    for _ in 0..10 {
        assert_eq!(team.get(&team.owner, "").status, 200);
    }
    assert_eq!(team.get(&team.owner, "").status, 429);
}

#[test]
fn a_part_takes_a_tenth_of_a_request() {
    let mut team = Team::new();
    let laptop = team.publisher("laptop");
    let capture = team.begin(&laptop.token, json!({ "harness": "codex", "native_id": "n1" }));
    team.config.rate_limit_per_s = 1;
    team.advance(10_000);
    let body = json!({ "messages": messages(0, 1, "a") }).to_string();
    let put = || team.put(&laptop.token, &format!("/captures/{capture}/parts/0"), &body).status;
    for n in 0..20 {
        assert_eq!(put(), 204, "part {n}");
    }
    assert_eq!(put(), 429);
}

#[test]
fn refusals_come_in_their_order() {
    let mut team = Team::new();
    team.config.rate_limit_per_s = 1;
    let text = [("content-type", "text/plain")];
    let large = vec![b'x'; JSON_BYTES_MAX + 1];
    let post = |token: &str, headers: &[(&'static str, &str)], body: &[u8]| {
        let got = team.send(token, "POST", "/members", headers, Some(body));
        (got.status, got.json["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(post("", &text, &large).0, 401);
    team.get(&team.owner, "");
    team.get(&team.owner, "");
    assert_eq!(post(&team.owner, &text, &large).0, 429);
    team.advance(60_000);
    assert_eq!(post(&team.owner, &text, &large).0, 415);
    team.advance(60_000);
    assert_eq!(post(&team.owner, &[], &large).0, 413);
    team.advance(60_000);
    assert_eq!(post(&team.owner, &[], b"\xff"), (400, "invalid_json".into()));
    team.advance(60_000);
    assert_eq!(post(&team.owner, &[], b"{\"name\":1}"), (400, "invalid_request".into()));
    team.advance(60_000);
    let json = [("content-type", "Application/JSON; charset=utf-8")];
    assert_eq!(post(&team.owner, &json, b"{\"name\":\"x\",\"role\":\"member\"}").0, 201);
}

#[test]
fn deeply_nested_json_is_refused_and_harms_nobody() {
    let team = Team::new();
    let body = format!("{{\"name\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let got = team.send(&team.owner, "POST", "/members", &[], Some(body.as_bytes()));
    assert_eq!(got.status, 400);
    assert_eq!(team.get(&team.owner, "").status, 200);
}

#[test]
fn a_part_of_the_largest_size_is_read() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let capture = team.begin(&laptop.token, json!({ "harness": "codex", "native_id": "n1" }));
    let put = |bytes: usize| {
        let head = r#"{"messages":[]}"#.len();
        let body = format!(r#"{{"messages":[{}]}}"#, " ".repeat(bytes - head));
        team.put(&laptop.token, &format!("/captures/{capture}/parts/0"), &body).status
    };
    assert_eq!(put(PART_BYTES_MAX + 1), 413);
    assert_eq!(put(PART_BYTES_MAX), 204);
}

#[test]
fn from_95_percent_on_only_what_grows_the_store_is_refused() {
    let mut team = Team::new();
    let laptop = team.publisher("laptop");
    let id = team.publish(&laptop.token, "n1", &messages(0, 1, "a"))["session_id"].clone();
    team.config.store_bytes_max = 1_000;
    let begin = json!({ "harness": "codex", "native_id": "n2" });
    assert_eq!(team.post(&laptop.token, "/captures", begin).refusal(), (507, "storage_full", ""));
    assert_eq!(team.get(&laptop.token, "/sessions").status, 200);
    let path = format!("/sessions/{}", id.as_str().unwrap());
    let custodian = team.post(&team.owner, "/members", json!({ "name": "x", "role": "member" }));
    assert_eq!(custodian.status, 507);
    let beat = json!({ "incarnation_id": "i", "sequence": 1, "bindings": [], "roots": [] });
    let beat =
        team.post(&laptop.token, &format!("/machines/{}/heartbeat", laptop.machine_id), beat);
    assert_eq!(beat.status, 200, "{}", beat.json);
    assert_eq!(team.get(&laptop.token, &path).status, 200);
    assert_eq!(team.post(&team.owner, "/maintain", json!({})).status, 200);
}

#[test]
fn a_token_is_good_until_its_last_millisecond_and_only_as_it_is() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let mut wrong = laptop.token.clone();
    let last = if wrong.pop() == Some('0') { '1' } else { '0' };
    wrong.push(last);
    let as_user = laptop.token.replace("tp_machine", "tp_user");
    for token in [wrong.as_str(), as_user.as_str(), "", "tp_user_1_2_3", "nonsense"] {
        let got = team.get(token, "");
        assert_eq!(got.refusal(), (401, "unauthenticated", ""), "{token}");
        assert_eq!(got.header("www-authenticate"), Some("Bearer"));
    }
    team.advance(MACHINE_TOKEN_AGE_MS - 1);
    assert_eq!(team.get(&laptop.token, "").status, 200);
    team.advance(1);
    assert_eq!(team.get(&laptop.token, "").status, 401);
}

#[test]
fn a_list_is_no_object() {
    let team = Team::new();
    let got = team.send(&team.owner, "PATCH", "", &[], Some(b"[\"other\"]"));
    assert_eq!(got.status, 400);
    assert_eq!(team.get(&team.owner, "").data(200)["name"], "Acme");
}

#[test]
fn no_struct_is_read_from_a_list_however_deep_it_is() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let send = |token: &str, method: &str, path: &str, body: &str| {
        let got = team.send(token, method, path, &[], Some(body.as_bytes()));
        let (status, code, field) = got.refusal();
        assert_eq!((status, code), (400, "invalid_request"), "{body}: {}", got.json);
        field.to_owned()
    };
    let begin = |rest: &str| format!(r#"{{"harness":"h","native_id":"n",{rest}}}"#);
    let beat =
        |rest: &str| format!(r#"{{"incarnation_id":"i","sequence":1,"bindings":[],{rest}}}"#);
    let beats = format!("/machines/{}/heartbeat", laptop.machine_id);
    let upload = format!("upload_{}", "0".repeat(32));
    for (token, method, path, body, field) in [
        (&team.owner, "PATCH", "", r#"{"retention":[1,2,3,4]}"#.to_owned(), "retention"),
        (&laptop.token, "POST", "/captures", begin(r#""base":[1,1]"#), "base"),
        (
            &laptop.token,
            "POST",
            "/captures",
            begin(&format!(r#""artifacts":[["b","{upload}","n"]]"#)),
            "artifacts[0]",
        ),
        (&laptop.token, "POST", &*beats, beat(r#""roots":[["r","n",[]]]"#), "roots[0]"),
        (
            &laptop.token,
            "POST",
            &*beats,
            beat(r#""roots":[],"activity":[["h","n","t",1]]"#),
            "activity[0]",
        ),
        (
            &laptop.token,
            "POST",
            &*format!("/uploads/{upload}/chunks"),
            r#"{"chunks":[[1,"x"]]}"#.to_owned(),
            "chunks[0]",
        ),
    ] {
        assert_eq!(send(token, method, path, &body), field, "{body}");
    }
    let capture = team.begin(&laptop.token, json!({ "harness": "h", "native_id": "n" }));
    let path = format!("/captures/{capture}/parts/0");
    let field = send(&laptop.token, "PUT", &path, r#"{"messages":[[0,"user","text"]]}"#);
    assert!(field.starts_with("messages[0]"), "{field}");
}

#[test]
fn a_full_store_is_the_last_reason_to_refuse_and_what_it_refuses_is_undone() {
    let mut team = Team::new();
    let viewer = team.person("viewer", Role::Viewer).token;
    let body = br#"{"name":"g"}"#;
    let key = [("idempotency-key", "k")];
    let first = team.send(&team.owner, "POST", "/groups", &key, Some(body));
    assert_eq!(first.status, 201);
    team.get(&viewer, "/me");
    team.config.store_bytes_max = 1_000;
    let marks = team.marks();
    let post = |token: &str, body: Json| team.post(token, "/groups", body);
    assert_eq!(post(&team.owner, json!({ "name": 1 })).refusal(), (400, "invalid_request", "name"));
    assert_eq!(post(&viewer, json!({ "name": "g" })).refusal(), (403, "forbidden", ""));
    let none = format!("/sessions/session_{}/continuations", "0".repeat(32));
    assert_eq!(team.post(&team.owner, &none, json!({})).refusal().0, 404);
    assert_eq!(post(&team.owner, json!({ "name": "g" })).refusal(), (507, "storage_full", ""));
    let commit = format!("/uploads/upload_{}/commit", "0".repeat(32));
    assert_eq!(team.post(&team.owner, &commit, json!({})).refusal().0, 404);
    assert_eq!(team.marks(), marks);
    // What was done before is answered again.
    let again = team.send(&team.owner, "POST", "/groups", &key, Some(body));
    assert_eq!(again.data(201), first.data(201));
}

#[test]
fn an_answer_is_repeated_only_to_who_may_still_ask() {
    let team = Team::new();
    let admin = team.person("admin", Role::Admin);
    let create = || {
        let key = [("idempotency-key", "k")];
        team.send(&admin.token, "POST", "/members", &key, Some(br#"{"name":"n","role":"viewer"}"#))
    };
    assert_eq!(create().status, 201);
    let marks = team.marks();
    assert_eq!(create().header("idempotent-replayed"), Some("true"));
    assert_eq!(team.marks(), marks, "trying it anew leaves nothing");
    assert_eq!(team.count("SELECT count(*) FROM memberships"), 3);
    let path = format!("/members/{}", admin.id);
    assert_eq!(team.patch(&team.owner, &path, json!({ "role": "member" })).status, 200);
    assert_eq!(create().refusal(), (403, "forbidden", ""));
}

#[test]
fn a_get_asks_no_media_type() {
    let team = Team::new();
    let text = [("content-type", "text/plain")];
    for route in ROUTES.iter().filter(|route| route.method == "GET" && !route.path.contains('{')) {
        let got = team.send(&team.owner, "GET", route.path, &text, None);
        // Some want a parameter.
        assert!([200, 400, 404].contains(&got.status), "{}: {}", route.path, got.json);
    }
    for path in ["/members", "/sessions", "/events"] {
        let got = team.get(&team.owner, &format!("{path}?limit=%2B5"));
        assert_eq!(got.refusal(), (400, "invalid_request", "limit"));
    }
}
