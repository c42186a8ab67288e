//! Usage: records, their sums, and how far estimates are off.
use crate::agent::Agent;
use crate::team::Team;
use serde_json::{Value as Json, json};
use teamplane::limits::DAY_MS;

fn record(input: i64, estimated: i64) -> Json {
    json!({ "kind": "token_usage", "provider": "p", "model": "m", "session_id": "s1",
            "input_tokens": input, "output_tokens": 2, "estimated_tokens": estimated })
}

fn calibration(agent: &Agent) -> Json {
    let got = agent.get("/usage/calibration?provider=p&model=m");
    if got.status == 404 { Json::Null } else { got.data(200).clone() }
}

#[test]
fn the_calibration_weighs_the_newest_fifty() {
    let team = Team::new();
    let agent = Agent::new(&team);
    assert_eq!(calibration(&agent), Json::Null);
    agent.post("/usage", record(300, 100)).data(201);
    agent.post("/usage", record(100, 300)).data(201);
    assert_eq!(calibration(&agent), json!({ "ratio": 1.0, "samples": 2 }));
    // What says only one of both, or is of another kind, model or workspace, does not count.
    for (field, value) in [
        ("kind", json!("cache_usage")),
        ("model", json!("n")),
        ("provider", Json::Null),
        ("workspace", json!("w")),
        ("input_tokens", json!(0)),
        ("estimated_tokens", Json::Null),
    ] {
        let mut other = record(900, 1);
        other[field] = value;
        agent.post("/usage", other).data(201);
    }
    assert_eq!(calibration(&agent)["samples"], 2);
    let got = agent.get("/usage/calibration?provider=p&model=m&workspace=w");
    assert_eq!(got.data(200)["ratio"], 3.0, "within bounds");
    let fifty = vec![record(10, 100); 50];
    assert_eq!(agent.post("/usage", json!({ "records": fifty })).data(201)["recorded"], 50);
    assert_eq!(calibration(&agent), json!({ "ratio": 0.2, "samples": 50 }));
    assert_eq!(agent.get("/usage/calibration?provider=p").refusal().2, "model");
}

#[test]
fn sums_are_over_what_is_kept() {
    let team = Team::new();
    let agent = Agent::new(&team);
    agent.post("/usage", record(10, 1)).data(201);
    agent
        .post("/usage", json!({ "kind": "compaction", "summarized": true, "before_tokens": 9 }))
        .data(201);
    team.advance(DAY_MS);
    let mut other = record(5, 1);
    other["model"] = json!("n");
    other["session_id"] = json!("s2");
    agent.post("/usage", json!({ "records": [record(20, 1), other] })).data(201);
    let sums = |by: &str, name: &str| {
        let got = agent.get(&format!("/usage?by={by}"));
        let sums = got
            .items()
            .iter()
            .map(|i| (i[name].clone(), i["records"].clone(), i["input_tokens"].clone()));
        sums.collect::<Vec<_>>()
    };
    assert_eq!(
        sums("day", "day"),
        [(json!("2023-11-14"), json!(2), json!(10)), (json!("2023-11-15"), json!(2), json!(25)),]
    );
    assert_eq!(agent.get("/usage?by=day").items()[1]["day_at"], 1_700_006_400_000i64);
    assert_eq!(
        sums("model", "model"),
        [
            (Json::Null, json!(1), json!(0)),
            (json!("m"), json!(2), json!(30)),
            (json!("n"), json!(1), json!(5)),
        ]
    );
    assert_eq!(
        sums("session", "session_id"),
        [(json!("s1"), json!(2), json!(30)), (json!("s2"), json!(1), json!(5)),]
    );
    let page = agent.get("/usage?by=model&limit=2");
    let next = page.json["next_cursor"].as_str().unwrap();
    assert_eq!(agent.get(&format!("/usage?by=model&limit=2&cursor={next}")).items().len(), 1);
    let other = agent.get(&format!("/usage?by=session&limit=2&cursor={next}"));
    assert_eq!(other.refusal().1, "invalid_cursor");
    assert_eq!(agent.get("/usage?by=day&workspace=w").items().len(), 0);
    assert_eq!(agent.get("/usage").refusal().2, "by");
    assert_eq!(agent.get("/usage?by=year").refusal().2, "by");
    // After 400 days the first day is gone from every sum.
    team.advance(399 * DAY_MS);
    team.settle();
    assert_eq!(team.count("SELECT count(*) FROM usage_records"), 2);
    assert_eq!(
        team.lines("SELECT axis, records, input_tokens FROM usage_sums ORDER BY axis, key"),
        ["day 2 25", "model 1 20", "model 1 5", "session 1 20", "session 1 5"]
    );
}

#[test]
fn records_are_checked_and_kept_all_or_none() {
    let team = Team::new();
    let agent = Agent::new(&team);
    let wrong = |body: Json| agent.post("/usage", body).refusal().2.to_owned();
    assert_eq!(wrong(json!({})), "kind");
    assert_eq!(wrong(json!({ "kind": "other" })), "kind");
    assert_eq!(wrong(json!({ "kind": "token_usage", "input_tokens": -1 })), "input_tokens");
    assert_eq!(wrong(json!({ "kind": "token_usage", "cost": 1 })), "cost");
    assert_eq!(wrong(json!({ "kind": "token_usage", "workspace": "" })), "workspace");
    assert_eq!(
        wrong(
            json!({ "records": [record(1, 1), { "kind": "token_usage", "model": "m".repeat(129) }] })
        ),
        "records[1].model"
    );
    assert_eq!(wrong(json!({ "records": [], "kind": "token_usage" })), "kind");
    assert_eq!(wrong(json!({ "records": vec![json!({ "kind": "token_usage" }); 501] })), "records");
    assert_eq!(team.count("SELECT count(*) FROM usage_records"), 0);
    let plain = json!({ "kind": "cache_usage", "provider": "", "agent": "", "input_tokens": 0 });
    agent.post("/usage", plain).data(201);
    assert_eq!(
        team.lines(
            "SELECT provider, agent, input_tokens, output_tokens, summarized FROM usage_records"
        ),
        ["NULL NULL 0 NULL NULL"]
    );
}
