//! Requests that nobody would send: those of the vectors, broken in their structure and in their
//! bytes. Whatever comes, the answer is well-formed and no fault of ours, and the team goes on.
use crate::random::Random;
use crate::team::{Got, Team};
use crate::vectors::{Known, Sent, conversations, converse};
use serde_json::{Value as Json, json};

/// Broken requests for each that a vector sends.
const MUTATIONS: u64 = 40;

const METHODS: &[&str] = &["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW", ""];
const HEADERS: &[&str] = &[
    "accept",
    "content-digest",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "if-range",
    "range",
];
const TEXTS: &[&str] = &[
    "",
    " ",
    "0",
    "-1",
    "+5",
    "1e400",
    "9007199254740993",
    "null",
    "*",
    "\"7\"",
    "W/\"7\"",
    "\"1-0\", \"2-0\"",
    "bytes=0-",
    "bytes=-0",
    "bytes=9007199254740993-",
    "bytes=0-1,3-4",
    "sha-256=:AAAA:",
    "text/event-stream",
    "../..",
    "%",
    "%00",
    "%ff%fe",
    "%2e%2e%2f",
    "🧑‍🚀",
    "\u{0}",
    "\u{202e}abc",
    "upload_0123456789abcdef0123456789abcdef",
    "team_ffffffffffffffffffffffffffffffff",
    "00000000.1",
    "zzzzzzzz.1",
    "' OR 1=1 --",
    "\"unclosed NEAR(",
];
const NUMBERS: &[i64] = &[i64::MIN, -1, 0, 1, 1 << 31, (1 << 53) - 1, 1 << 53];
/// JSON that serde's own values do not hold.
const RAW: &[&str] = &[
    "1e400",
    "-0",
    "123456789012345678901234567890",
    "\"\\ud83d\"",
    "\"\\u0000\"",
    "{\"a\":1,\"a\":2}",
    "{\"\\udc00\":1}",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
    "\"\u{202e}\"",
];

#[test]
fn nothing_that_is_sent_is_a_fault_of_ours() {
    let seed = std::env::var("FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut random = Random::new(seed);
    let mut by_status = std::collections::BTreeMap::<u16, u32>::new();
    for conversation in conversations() {
        let team = Team::new();
        let (known, steps) = converse(&team, &conversation);
        for step in &steps {
            for _ in 0..MUTATIONS {
                let broken = mutated(&mut random, step, &steps, &known);
                let got = broken.send(&team);
                check(&broken, &got, seed);
                *by_status.entry(got.status).or_default() += 1;
            }
        }
        let me = team.get(&team.owner, "/me");
        assert!([200, 401].contains(&me.status), "the team went on: {}", me.json);
        team.advance(1);
        assert_eq!(team.pass().failed, [""; 0], "seed {seed}");
    }
    println!("{by_status:?}");
    assert!(by_status.values().sum::<u32>() > 10_000, "{by_status:?}");
    // They get past the first checks.
    for status in [200, 201, 400, 404, 409] {
        assert!(by_status.get(&status).is_some_and(|count| *count > 50), "{by_status:?}");
    }
}

#[track_caller]
fn check(broken: &Sent, got: &Got, seed: u64) {
    let what = format!("seed {seed}: {broken:?} answered {} {}", got.status, got.json);
    assert!(got.status < 500 || got.status == 503, "{what}");
    if got.status >= 400 {
        let error = &got.json["error"];
        for field in ["code", "message", "request_id"] {
            assert!(error[field].as_str().is_some_and(|text| !text.is_empty()), "{what}");
        }
    }
}

fn mutated(random: &mut Random, step: &Sent, others: &[Sent], known: &Known) -> Sent {
    let mut sent = step.clone();
    for _ in 0..=random.below(2) {
        match random.below(10) {
            0 => sent.method = (*random.pick(METHODS).unwrap()).to_owned(),
            1 | 2 => sent.path = broken_path(random, &sent.path, known),
            3 => {
                let name = *random.pick(HEADERS).unwrap();
                let value = (*random.pick(TEXTS).unwrap()).to_owned();
                sent.headers.retain(|(known, _)| *known != name);
                sent.headers.push((name, value));
            }
            4 => {
                let tokens: Vec<&String> =
                    known.values().filter(|value| value.starts_with("tp_")).collect();
                sent.token = random.pick(&tokens).map_or(String::new(), |token| (*token).clone());
            }
            5 => sent.body.clone_from(&random.pick(others).unwrap().body),
            6 => sent.body = broken_bytes(random, sent.body.take().unwrap_or_default()),
            _ => sent.body = sent.body.take().map(|body| broken_json(random, body, known)),
        }
    }
    sent
}

/// One segment replaced, a query added, or the end cut off.
fn broken_path(random: &mut Random, path: &str, known: &Known) -> String {
    let value = random.pick(TEXTS).unwrap().replace(' ', "%20");
    let mut segments: Vec<String> = path.split('/').map(str::to_owned).collect();
    match random.below(4) {
        0 => {
            let names = ["limit", "cursor", "after", "q", "state", "revision", "syntax", "x", ""];
            let mark = if path.contains('?') { '&' } else { '?' };
            return format!("{path}{mark}{}={value}", random.pick(&names).unwrap());
        }
        1 => {
            let values: Vec<&String> = known.values().filter(|v| !v.starts_with("tp_")).collect();
            let other = random.pick(&values).map_or(String::new(), |other| (*other).clone());
            *segments.last_mut().unwrap() = other.replace(' ', "%20");
        }
        2 => {
            let at = random.index(segments.len()).unwrap();
            segments[at] = value;
        }
        _ => drop(segments.pop()),
    }
    let path = segments.join("/");
    if path.starts_with('/') { path } else { format!("/{path}") }
}

fn broken_bytes(random: &mut Random, mut body: Vec<u8>) -> Option<Vec<u8>> {
    match random.below(4) {
        0 => return None,
        1 => body.truncate(random.index(body.len()).unwrap_or(0)),
        2 => {
            let at = random.index(body.len() + 1).unwrap();
            body.insert(at, u8::try_from(random.below(256)).unwrap());
        }
        _ => {
            if let Some(at) = random.index(body.len()) {
                body[at] = u8::try_from(random.below(256)).unwrap();
            }
        }
    }
    Some(body)
}

fn broken_json(random: &mut Random, body: Vec<u8>, known: &Known) -> Vec<u8> {
    let Ok(mut json) = serde_json::from_slice::<Json>(&body) else { return body };
    let pointers = pointers_of(&json, "");
    let pointer = random.pick(&pointers).unwrap().clone();
    let values: Vec<&String> = known.values().collect();
    let at = json.pointer_mut(&pointer).unwrap();
    match random.below(9) {
        0 => *at = Json::Null,
        1 => *at = json!([at.clone()]),
        2 => *at = json!({ "a": at.clone() }),
        3 => *at = json!(random.pick(TEXTS)),
        4 => *at = json!(random.pick(&values)),
        5 => *at = json!(random.pick(NUMBERS)),
        6 => *at = json!("x".repeat(*random.pick(&[65, 129, 513, 70_000]).unwrap())),
        7 => match at {
            Json::Object(fields) => drop(fields.insert("unknown".into(), json!(1))),
            Json::Array(items) => {
                let item = items.first().cloned().unwrap_or(Json::Null);
                items.extend(std::iter::repeat_n(item, 600));
            }
            other => *other = json!(1.5),
        },
        _ => {
            const MARK: &str = "-raw-goes-here-";
            *at = json!(MARK);
            let text = json.to_string();
            let raw = random.pick(RAW).unwrap();
            return text.replace(&format!("\"{MARK}\""), raw).into_bytes();
        }
    }
    json.to_string().into_bytes()
}

/// Every place in a value.
fn pointers_of(json: &Json, at: &str) -> Vec<String> {
    let mut all = vec![at.to_owned()];
    match json {
        Json::Object(fields) => {
            for (name, field) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                all.extend(pointers_of(field, &format!("{at}/{name}")));
            }
        }
        Json::Array(items) => {
            for (index, item) in items.iter().enumerate().take(5) {
                all.extend(pointers_of(item, &format!("{at}/{index}")));
            }
        }
        _ => {}
    }
    all
}
