use crate::team::{Got, Publisher, Team};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use teamplane::auth::Role;
use teamplane::domain::links::{self, Close, Link, PONG};
use teamplane::domain::streams;
use teamplane::error::Error;
use teamplane::ids::{Id, MachineId};
use teamplane::limits::{
    CLOSE_REASON_BYTES_MAX, FRAME_BYTES_MAX, LINK_GRACE_MS, MACHINE_TOKEN_AGE_MS,
    MACHINE_TOKEN_OVERLAP_MS,
};
use teamplane::maintain::presence;

const UPGRADE: &[(&str, &str)] = &[("upgrade", "websocket")];

fn ask(team: &Team, token: &str, machine: &Publisher, headers: &[(&'static str, &str)]) -> Got {
    let path = format!("/machines/{}/link", machine.machine_id);
    team.send(token, "GET", &path, headers, None)
}

/// Opens a machine's link, as its connector would.
fn open(team: &Team, machine: &Publisher) -> Link {
    let got = ask(team, &machine.token, machine, UPGRADE);
    assert_eq!(got.status, 101, "{}", got.json);
    team.opened.take().expect("a link was opened")
}

fn close(team: &Team, link: &Link, code: u16) {
    team.db().transaction(|tx| links::closed(tx, link, code)).expect("the close is noted");
}

fn receive(team: &Team, link: &Link, frame: &str) -> Result<Json, Close> {
    match links::receive(&team.plane(), link, frame) {
        Ok(answer) => Ok(answer.map_or(Json::Null, |text| text.parse().expect("a frame is JSON"))),
        Err(error) => Err(Close::because(&error)),
    }
}

fn heartbeat(sequence: i64) -> Json {
    json!({
        "type": "heartbeat", "incarnation_id": "i1", "sequence": sequence,
        "bindings": [], "roots": [],
    })
}

/// Runs the retention pass, as the alarm would.
fn pass(team: &Team) {
    assert_eq!(team.post(&team.owner, "/maintain", json!({})).status, 200);
}

/// The machine events since the team began, without its enrolment.
fn events(team: &Team) -> Vec<String> {
    let all = team.events_since(0);
    all.into_iter().filter(|name| name.starts_with("machine.")).collect()
}

fn linked(team: &Team) -> (i64, i64, i64) {
    (
        team.count("SELECT count(*) FROM machine_presence WHERE linked = 1"),
        team.count("SELECT coalesce(sum(linked), 0) FROM machine_presence_cursors"),
        team.count("SELECT count(*) FROM machine_presence_events"),
    )
}

fn connection(team: &Team, machine: &Publisher) -> Json {
    team.get(&team.owner, &format!("/machines/{}", machine.machine_id)).data(200)["connection"]
        .clone()
}

#[test]
fn a_link_needs_that_machines_token_and_an_upgrade() {
    let team = Team::new();
    let (laptop, other) = (team.publisher("laptop"), team.publisher("other"));
    let admin = team.person("Lin", Role::Admin);
    let before = team.marks();
    let refused = [
        (&admin.token, UPGRADE, (403, "forbidden", "")),
        (&other.token, UPGRADE, (403, "forbidden", "")),
        (&other.token, &[][..], (403, "forbidden", "")),
        (&laptop.token, &[], (426, "upgrade_required", "")),
        (&laptop.token, &[("upgrade", "h2c")], (426, "upgrade_required", "")),
    ];
    for (token, headers, refusal) in refused {
        assert_eq!(ask(&team, token, &laptop, headers).refusal(), refusal);
    }
    assert_eq!(ask(&team, &laptop.token, &laptop, &[]).header("Upgrade"), Some("websocket"));
    let path = format!("/machines/{}/link?x=1", laptop.machine_id);
    let got = team.send(&laptop.token, "GET", &path, UPGRADE, None);
    assert_eq!(got.refusal(), (400, "invalid_request", "x"));

    assert_eq!(team.marks(), before);
    assert_eq!(linked(&team), (0, 0, 0));
    assert_eq!(ask(&team, &laptop.token, &laptop, &[("upgrade", "WebSocket")]).status, 101);
}

#[test]
fn a_machine_is_online_from_its_link_on_without_a_heartbeat() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    assert_eq!(connection(&team, &laptop), "offline");
    open(&team, &laptop);

    assert_eq!(connection(&team, &laptop), "online");
    assert_eq!(events(&team), ["machine.online"]);
    assert_eq!(linked(&team), (1, 1, 1));
    let (_, id, data) = team.last_event();
    assert_eq!(data, json!({ "id": id, "connection": "online" }));

    team.advance(LINK_GRACE_MS + 1);
    assert_eq!(connection(&team, &laptop), "offline");
}

#[test]
fn a_link_that_comes_back_within_its_grace_tells_nobody() {
    for (down_ms, told) in [
        (0, &["machine.online"][..]),
        (1_000, &["machine.online"]),
        (20_000, &["machine.online"]),
        (LINK_GRACE_MS - 1, &["machine.online"]),
        (LINK_GRACE_MS, &["machine.online", "machine.unlinked", "machine.online"]),
        (LINK_GRACE_MS + 1_000, &["machine.online", "machine.unlinked", "machine.online"]),
    ] {
        // Whether or not a pass comes between, and however often the link's end is told.
        for passes in [false, true] {
            let team = Team::new();
            let laptop = team.publisher("laptop");
            let link = open(&team, &laptop);
            close(&team, &link, 1006);
            team.advance(down_ms);
            close(&team, &link, 1006);
            if passes {
                pass(&team);
                pass(&team);
            }
            open(&team, &laptop);
            pass(&team);

            assert_eq!(events(&team), told, "{down_ms} ms down");
            assert_eq!(linked(&team), (1, 1, i64::try_from(told.len()).unwrap()));
            assert_eq!(team.count("SELECT count(lost_at) FROM machine_presence"), 0);
            assert_eq!(connection(&team, &laptop), "online");
        }
    }
}

#[test]
fn a_goodbye_unlinks_at_once_and_another_close_does_not() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let link = open(&team, &laptop);
    for code in [1001, 1005, 1006, 1007, 1009, 4401] {
        close(&team, &link, code);
        assert_eq!(events(&team), ["machine.online"]);
        open(&team, &laptop);
    }
    close(&team, &link, 1000);
    assert_eq!(events(&team), ["machine.online", "machine.unlinked"]);
    assert_eq!(linked(&team), (0, 0, 2));
    assert_eq!(connection(&team, &laptop), "unlinked");

    close(&team, &link, 1000);
    team.advance(LINK_GRACE_MS);
    pass(&team);
    assert_eq!(events(&team).len(), 2);
    open(&team, &laptop);
    assert_eq!(events(&team).len(), 3);
}

#[test]
fn links_that_a_reset_dropped_have_one_grace_however_often_the_object_starts_anew() {
    let team = Team::new();
    let (laptop, desktop) = (team.publisher("laptop"), team.publisher("desktop"));
    open(&team, &laptop);
    open(&team, &desktop);
    let held = BTreeSet::from([desktop.machine_id.clone()]);
    let none = BTreeSet::<MachineId>::new();

    assert_eq!(presence::linked(&team.db()).unwrap(), 2);
    assert_eq!(presence::lose_missing(&team.db(), &held).unwrap(), 1);
    for _ in 0..4 {
        team.advance(LINK_GRACE_MS / 5);
        assert_eq!(presence::lose_missing(&team.db(), &held).unwrap(), 0);
        pass(&team);
    }
    assert_eq!(linked(&team), (2, 2, 2));
    team.advance(LINK_GRACE_MS / 5);
    pass(&team);
    pass(&team);
    assert_eq!(events(&team), ["machine.online", "machine.online", "machine.unlinked"]);
    assert_eq!(presence::linked(&team.db()).unwrap(), 1);

    assert_eq!(presence::lose_missing(&team.db(), &none).unwrap(), 1);
    open(&team, &desktop);
    team.advance(LINK_GRACE_MS);
    pass(&team);
    assert_eq!(events(&team).len(), 3);
}

#[test]
fn a_heartbeat_by_link_does_what_one_by_http_does() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let link = open(&team, &laptop);
    let mut frame = heartbeat(1);
    frame["bindings"] = json!([{ "id": "b1", "harness": "codex", "native_id": "n1", "value": 1 }]);
    // What a binding holds is kept as it was sent, and the type may stand anywhere.
    let text = frame.to_string().replace("\"value\":1", "\"value\":1.10e400");
    let acknowledged = receive(&team, &link, &text).expect("it is taken");
    assert!(team.count("SELECT instr(value_json, '1.10e400') FROM bindings") > 0);

    frame.as_object_mut().unwrap().remove("type");
    let path = format!("/machines/{}/heartbeat", laptop.machine_id);
    let mut data = team.post(&laptop.token, &path, frame).data(200).clone();
    data["type"] = "heartbeat_ack".into();
    assert_eq!(acknowledged, data);
    assert_eq!(acknowledged["unbound_bindings"], json!(["b1"]));

    team.advance(LINK_GRACE_MS + 1);
    assert_eq!(connection(&team, &laptop), "offline");
    receive(&team, &link, &heartbeat(2).to_string()).expect("it is taken");
    assert_eq!(connection(&team, &laptop), "online");
}

#[test]
fn a_machines_own_clock_counts_for_nothing() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let link = open(&team, &laptop);
    for (sequence, hours) in [(1, -3), (2, 3), (3, -472_222)] {
        let since = team.now_ms.get() + hours * 3_600_000;
        let mut frame = heartbeat(sequence);
        frame["activity"] = json!([{ "harness": "codex", "native_id": "n", "turn": "user", "since": since.max(0) }]);
        receive(&team, &link, &frame.to_string()).expect("it is taken");
        let seen = team.count("SELECT last_seen_at FROM machines");
        assert_eq!(seen, team.now_ms.get());
    }
    let mut frame = heartbeat(4);
    frame["last_seen_at"] = json!(team.now_ms.get() + 3_600_000);
    assert_eq!(receive(&team, &link, &frame.to_string()).unwrap_err().code, 1007);
}

#[test]
fn a_malformed_frame_ends_the_link_with_the_reason() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let link = open(&team, &laptop);
    let before = (team.marks(), linked(&team));
    let with = |field: &str, value: Json| {
        let mut frame = heartbeat(1);
        frame[field] = value;
        frame.to_string()
    };
    for (frame, reason) in [
        (String::new(), "the body is not JSON"),
        ("ping".into(), "the body is not JSON"),
        ("[]".into(), ""),
        ("{}".into(), "type: "),
        (r#"{"type":"heartbeat"}"#.into(), "incarnation_id: "),
        (r#"{"type":1}"#.into(), "type: "),
        (r#"{"type":"ping","type":"ping"}"#.into(), "type: "),
        (r#"{"type":"dance"}"#.into(), "type: "),
        (with("sequence", json!(0)), "sequence: "),
        (with("last_seen_at", json!(0)), "last_seen_at: "),
        (with("bindings", json!([{ "id": "b" }])), "bindings[0]."),
        (format!("{}x", heartbeat(1)), "the body is not JSON"),
    ] {
        let close = receive(&team, &link, &frame).unwrap_err();
        assert_eq!(close.code, 1007, "{frame}: {}", close.reason);
        assert!(close.reason.starts_with(reason), "{frame}: {}", close.reason);
        assert!(close.reason.len() <= CLOSE_REASON_BYTES_MAX);
    }
    assert_eq!((team.marks(), linked(&team)), before);
    assert_eq!(team.count("SELECT count(incarnation_id) FROM machines"), 0);
}

#[test]
fn a_frame_has_at_most_a_mebibyte() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let link = open(&team, &laptop);
    let padded = |bytes: usize| {
        let frame = heartbeat(1).to_string();
        format!("{frame}{}", " ".repeat(bytes - frame.len()))
    };
    receive(&team, &link, &padded(FRAME_BYTES_MAX)).expect("it fits");
    let close = receive(&team, &link, &padded(FRAME_BYTES_MAX + 1)).unwrap_err();
    assert_eq!((close.code, close.reason.contains("1048576")), (1009, true));
}

#[test]
fn a_ping_that_is_not_written_as_the_platform_knows_it_is_answered_too() {
    let team = Team::new();
    let link = open(&team, &team.publisher("laptop"));
    let pong = receive(&team, &link, r#"{ "type": "ping" }"#).expect("it is a ping");
    assert_eq!(pong.to_string(), PONG);
}

#[test]
fn frames_count_against_the_rate() {
    let mut team = Team::new();
    team.config.rate_limit_per_s = 1;
    let laptop = team.publisher("laptop");
    let link = open(&team, &laptop);
    // A burst is two seconds' worth; the link itself was one request.
    let codes: Vec<_> = (1..=12)
        .map(|sequence| receive(&team, &link, &heartbeat(sequence).to_string()))
        .map(|answer| answer.map_or_else(|close| close.code, |_| 0))
        .collect();
    assert_eq!(codes, [[0; 10].as_slice(), &[1013, 1013]].concat());
    team.advance(1_000);
    assert!(receive(&team, &link, &heartbeat(20).to_string()).is_ok());
}

#[test]
fn a_frame_by_a_credential_that_has_ended_changes_nothing() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let link = open(&team, &laptop);
    team.delete(&team.owner, &format!("/credentials/{}", link.credential_id));
    let close = receive(&team, &link, &heartbeat(1).to_string()).unwrap_err();
    assert_eq!(close.code, 4401);
    assert_eq!(team.count("SELECT count(incarnation_id) FROM machines"), 0);
}

#[test]
fn a_credential_of_a_link_ends_by_revocation_expiry_renewal_and_with_its_row() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let link = open(&team, &laptop);
    let held = BTreeSet::from([link.credential_id.clone()]);
    let epoch = || streams::marks(&team.db(), [&team.id]).unwrap()[&team.id].auth_epoch;
    let standing = || links::standing(&team.db(), &held).expect("the query runs");
    let ended = |is_ended: bool| assert_eq!(!standing().ended.is_empty(), is_ended);

    let expires_at = team.now_ms.get() + MACHINE_TOKEN_AGE_MS;
    assert_eq!(standing().next_end_at, Some(expires_at));
    let before = epoch();
    // A renewed token leaves the old one ten minutes.
    let renew = format!("/machines/{}/token", laptop.machine_id);
    assert_eq!(team.post(&laptop.token, &renew, json!({})).status, 201);
    assert_eq!(epoch(), before);
    assert_eq!(standing().next_end_at, Some(team.now_ms.get() + MACHINE_TOKEN_OVERLAP_MS));
    team.advance(MACHINE_TOKEN_OVERLAP_MS - 1);
    ended(false);
    team.advance(1);
    ended(true);

    // A revocation raises the team's epoch, which is what the shell looks at.
    let desktop = team.publisher("desktop");
    let link = open(&team, &desktop);
    let held = BTreeSet::from([link.credential_id.clone()]);
    assert!(links::standing(&team.db(), &held).unwrap().ended.is_empty());
    team.delete(&team.owner, &format!("/credentials/{}", link.credential_id));
    assert_ne!(epoch(), before);
    let standing = links::standing(&team.db(), &held).unwrap();
    assert_eq!((standing.ended, standing.next_end_at), (held, None));

    // Of the many that are held only those that ended are named; a row that is gone has ended.
    let phone = open(&team, &team.publisher("phone")).credential_id;
    let gone = teamplane::ids::CredentialId::from_hex(&"f".repeat(32));
    let standing = links::standing(&team.db(), &BTreeSet::from([phone, gone.clone()])).unwrap();
    assert_eq!(standing.ended, BTreeSet::from([gone]));
    assert_eq!(standing.next_end_at, Some(team.now_ms.get() + MACHINE_TOKEN_AGE_MS));
}

#[test]
fn a_revoked_machine_loses_its_link_and_its_presence() {
    let team = Team::new();
    let laptop = team.publisher("laptop");
    let link = open(&team, &laptop);
    let path = format!("/machines/{}", laptop.machine_id);
    team.send(&team.owner, "DELETE", &path, &[("if-match", "*")], None);
    // The close that follows is late.
    close(&team, &link, 4401);
    close(&team, &link, 1000);
    team.advance(LINK_GRACE_MS);
    pass(&team);
    assert_eq!(events(&team), ["machine.online", "machine.revoked"]);
    assert_eq!(linked(&team), (0, 0, 2));
    assert_eq!(ask(&team, &laptop.token, &laptop, UPGRADE).status, 401);
}

#[test]
fn a_reason_is_cut_between_characters_and_keeps_our_faults_to_ourselves() {
    let close = Close::because(&Error::field("näme", "ä".repeat(200)));
    assert!(close.reason.len() <= CLOSE_REASON_BYTES_MAX && close.reason.ends_with('ä'));
    let close = Close::because(&Error::internal("SQL said no"));
    assert_eq!((close.code, close.reason.contains("SQL")), (1013, false));
    assert_eq!(Close::replaced().code, 4001);
    assert!(Close::replaced().reason.len() <= CLOSE_REASON_BYTES_MAX);
}
