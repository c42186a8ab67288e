//! Random sequences of everything that the ledger does, by several holders, against a small model
//! of it. Natively an object keeps nothing in memory between two requests, so each request is a
//! restart too; tests/workerd/ledger.test.mjs restarts the real one.
//!
//!     LEDGER_SEED=7 cargo test --test it ledger_model
use crate::random::Random;
use crate::team::Team;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use teamplane::limits::{CLAIM_HISTORY_AGE_MS, DAY_MS, MINUTE_MS};

const SEQUENCES: u64 = 150;
const OPERATIONS: usize = 250;
const RUNS: [&str; 4] = ["a", "b", "c/d", "e f"];
const HOLDERS: [&str; 3] = ["x", "y", "z"];
const TOMBSTONE: &str = "run_deleted";

#[derive(Debug, Clone, PartialEq)]
struct Stored {
    id: String,
    run: &'static str,
    sequence: u64,
    kind: String,
    payload: u64,
    row_id: i64,
}

#[derive(Debug, Clone)]
struct Claim {
    holder: &'static str,
    fence: i64,
    acquired_at: i64,
}

#[derive(Debug, Default)]
struct Run {
    claim: Option<Claim>,
    fence: i64,
    displaced: BTreeSet<&'static str>,
    settled_at: Option<i64>,
    /// What a holder believes to hold, from its last answer.
    believed: BTreeMap<&'static str, i64>,
    /// The largest fence that was ever answered, while its history is kept.
    fence_seen: i64,
}

struct World {
    team: Team,
    random: Random,
    runs: BTreeMap<&'static str, Run>,
    events: Vec<Stored>,
    newest_row_id: i64,
    count: u64,
    reader: Reader,
}

/// Follows the changes; what it has read of each run, in rows.
#[derive(Default)]
struct Reader {
    position: Option<String>,
    read_to: BTreeMap<String, i64>,
    seen: BTreeSet<i64>,
}

fn path(run: &str, rest: &str) -> String {
    format!("/runs/{}{rest}", run.replace('/', "%2F").replace(' ', "%20"))
}

impl World {
    fn post(&self, path: &str, body: &Json) -> (u16, String, Json) {
        let got = self.team.post(&self.team.owner, path, body.clone());
        (got.status, got.refusal().1.to_owned(), got.json["data"].clone())
    }

    fn now(&self) -> i64 {
        self.team.now_ms.get()
    }

    fn of_run(&self, run: &str) -> Vec<&Stored> {
        self.events.iter().filter(|event| event.run == run).collect()
    }

    fn settle(&mut self, run: &'static str) {
        let (now, empty) = (self.now(), self.of_run(run).is_empty());
        let state = self.runs.entry(run).or_default();
        if state.fence > 0 && state.claim.is_none() && empty {
            state.settled_at.get_or_insert(now);
        } else {
            state.settled_at = None;
        }
    }

    fn step(&mut self) {
        let run = *self.random.pick(&RUNS).unwrap();
        let holder = *self.random.pick(&HOLDERS).unwrap();
        match self.random.below(20) {
            0..=6 => self.append(run, holder),
            7 => self.open(run),
            8..=11 => self.claim(run, holder),
            12 => self.refresh(run, holder),
            13..=14 => self.release(run, holder),
            15 => self.delete(run, holder),
            16 => self.remove(run),
            17 => self.clock(),
            _ => _ = self.read(),
        }
        self.compare(run, holder);
    }

    /// New events mostly, with ids and sequences that are sometimes taken.
    fn events(&mut self, run: &'static str, kind: &str) -> Vec<Stored> {
        let mut events = Vec::new();
        for _ in 0..=self.random.below(3) {
            if self.random.chance(15)
                && let Some(known) = self.random.pick(&self.events).cloned()
            {
                events.push(Stored { payload: known.payload + self.random.below(4) / 3, ..known });
                continue;
            }
            self.count += 1;
            let highest = self.of_run(run).iter().map(|e| e.sequence).max().unwrap_or(0);
            let next =
                highest.max(events.iter().map(|e: &Stored| e.sequence).max().unwrap_or(0)) + 1;
            let sequence = if self.random.chance(90) {
                next + self.random.below(2)
            } else {
                self.random.below(next)
            };
            let (id, kind) = (format!("event {}", self.count), kind.to_owned());
            events.push(Stored { id, run, sequence, kind, payload: self.count, row_id: 0 });
        }
        events
    }

    /// What the store must answer to these events, claims aside.
    fn expected(&self, events: &[Stored]) -> Result<Vec<bool>, &'static str> {
        let mut duplicates = Vec::new();
        for (index, event) in events.iter().enumerate() {
            let before = &events[..index];
            let same_id = self.events.iter().find(|known| known.id == event.id);
            if let Some(known) = same_id {
                if (Stored { row_id: known.row_id, ..event.clone() }) != *known {
                    return Err("duplicate_event");
                }
            } else if self.events.iter().any(|k| (k.run, k.sequence) == (event.run, event.sequence))
            {
                return Err("sequence_conflict");
            }
            if before.iter().any(|other| other.id == event.id) {
                return Err("duplicate_event");
            }
            if before.iter().any(|other| (other.run, other.sequence) == (event.run, event.sequence))
            {
                return Err("sequence_conflict");
            }
            duplicates.push(same_id.is_some());
        }
        Ok(duplicates)
    }

    fn stored(&mut self, events: Vec<Stored>, duplicates: &[bool], answer: &Json) {
        for ((event, duplicate), answered) in
            events.into_iter().zip(duplicates).zip(answer["events"].as_array().unwrap())
        {
            assert_eq!(answered["duplicate"], json!(duplicate), "{event:?}");
            let row_id = answered["row_id"].as_i64().unwrap();
            if *duplicate {
                assert!(self.events.iter().any(|e| e.id == event.id && e.row_id == row_id));
                continue;
            }
            assert!(row_id > self.newest_row_id, "the order of appends went back");
            self.newest_row_id = row_id;
            let run = event.run;
            self.events.push(Stored { row_id, ..event });
            self.settle(run);
        }
    }

    fn sent(events: &[Stored], with_run: bool) -> Vec<Json> {
        let sent = |e: &Stored| {
            let mut json =
                json!({ "id": e.id, "sequence": e.sequence, "kind": e.kind, "payload": e.payload });
            if with_run {
                json["run_id"] = e.run.into();
            }
            json
        };
        events.iter().map(sent).collect()
    }

    fn append(&mut self, run: &'static str, holder: &'static str) {
        let mixed = self.random.chance(25);
        let kind = if self.random.chance(3) { TOMBSTONE } else { "step" };
        let mut events = self.events(run, kind);
        if mixed {
            let other = *self.random.pick(&RUNS).unwrap();
            if other != run {
                events.extend(self.events(other, "step"));
            }
        } else {
            // An event that was taken from another run becomes one of this run.
            for event in &mut events {
                event.run = run;
            }
        }
        let believed = self.runs.entry(run).or_default().believed.get(holder).copied();
        let (claim, fence) = match self.random.below(4) {
            0 => (None, None),
            1 => (Some(holder), None),
            _ => (Some(holder), believed),
        };
        let modes = ["none", "unclaimed_or_mine", "mine", "fenced"];
        let require = self.random.pick(&modes).copied().filter(|_| self.random_half());
        let mut body = json!({ "events": World::sent(&events, mixed) });
        if let Some(holder) = claim {
            body["claim"] = json!({ "holder": holder, "fence": fence });
        }
        if let Some(require) = require {
            body["require"] = require.into();
        }
        let rule = require.unwrap_or(if fence.is_some() { "fenced" } else { "unclaimed_or_mine" });
        let mut named: BTreeSet<&str> = events.iter().map(|event| event.run).collect();
        if !mixed {
            named.insert(run);
        }
        let allowed = named.iter().all(|run| {
            let none = Run::default();
            let state = self.runs.get(run).unwrap_or(&none);
            match (rule, &state.claim) {
                ("none", _) => true,
                ("unclaimed_or_mine", None) => claim.is_none_or(|h| !state.displaced.contains(h)),
                (_, None) => false,
                ("fenced", Some(held)) => claim == Some(held.holder) && fence == Some(held.fence),
                (_, Some(held)) => claim == Some(held.holder),
            }
        });
        let path = if mixed { "/run-events".into() } else { path(run, "/events") };
        let (status, code, data) = self.post(&path, &body);
        match self.expected(&events) {
            _ if !allowed => assert_eq!((status, &*code), (409, "claim_held"), "{body}"),
            Err(expected) => assert_eq!((status, &*code), (409, expected), "{body}"),
            Ok(duplicates) => {
                assert_eq!(status, 200, "{code} {body}");
                self.stored(events, &duplicates, &data);
            }
        }
    }

    fn random_half(&mut self) -> bool {
        self.random.chance(50)
    }

    fn open(&mut self, run: &'static str) {
        let mut events = self.events(run, "created");
        for event in &mut events {
            event.run = run;
        }
        let body = json!({ "run_id": run, "events": World::sent(&events, false) });
        let (status, code, data) = self.post("/runs", &body);
        let is_live = self.of_run(run).iter().any(|event| event.kind != TOMBSTONE);
        let expected = self.expected(&events);
        let is_claimed = self.runs.get(run).is_some_and(|state| state.claim.is_some());
        let refusal = match &expected {
            Ok(all) if is_live && all.iter().all(|duplicate| *duplicate) => None,
            _ if is_live => Some("duplicate_event"),
            _ if is_claimed => Some("claim_held"),
            Err(code) => Some(*code),
            Ok(_) => None,
        };
        match (refusal, expected) {
            (None, Ok(duplicates)) => {
                let fresh = duplicates.iter().any(|duplicate| !duplicate);
                assert_eq!(status, if fresh { 201 } else { 200 }, "{code} {body}");
                self.stored(events, &duplicates, &data);
            }
            (refusal, _) => assert_eq!((status, Some(&*code)), (409, refusal), "{body}"),
        }
    }

    fn claim(&mut self, run: &'static str, holder: &'static str) {
        let mode = *self.random.pick(&["claim", "claim", "takeover", "takeover_expired"]).unwrap();
        let max_age =
            (mode == "takeover_expired").then(|| MINUTE_MS * self.random.below(3).cast_signed());
        let mut body = json!({ "holder": holder, "mode": mode });
        if let Some(max_age) = max_age {
            body["max_age_ms"] = max_age.into();
        }
        let (status, code, data) = self.post(&path(run, "/claim"), &body);
        let now = self.now();
        let state = self.runs.entry(run).or_default();
        let mine = state.claim.as_ref().is_some_and(|held| held.holder == holder);
        let fresh = |held: &Claim| max_age.is_some_and(|max_age| now - held.acquired_at < max_age);
        let expected = match (&state.claim, mode) {
            (None, "takeover_expired") => Err("claim_not_held"),
            (Some(_), "claim") if !mine => Err("claim_held"),
            (Some(held), "takeover_expired") if fresh(held) => Err("claim_held"),
            (Some(held), "claim") => Ok(held.fence),
            _ => Ok(state.fence + 1),
        };
        match expected {
            Err(expected) => assert_eq!((status, &*code), (409, expected), "{body}"),
            Ok(fence) => {
                assert_eq!((status, data["fence"].as_i64()), (200, Some(fence)), "{body}");
                assert_eq!(data["acquired_at"], now);
                if fence != state.fence {
                    assert!(fence > state.fence_seen, "fences only grow");
                }
                if let Some(held) = state.claim.take().filter(|_| !mine) {
                    state.displaced.insert(held.holder);
                }
                (state.fence, state.fence_seen) = (fence, fence);
                state.claim = Some(Claim { holder, fence, acquired_at: now });
                state.believed.insert(holder, fence);
                state.settled_at = None;
            }
        }
    }

    fn refresh(&mut self, run: &'static str, holder: &'static str) {
        let now = self.now();
        let with_fence = self.random.chance(60);
        let state = self.runs.entry(run).or_default();
        let fence = state.believed.get(holder).copied().filter(|_| with_fence);
        let body = json!({ "holder": holder, "fence": fence });
        let held =
            |held: &&mut Claim| held.holder == holder && fence.is_none_or(|f| f == held.fence);
        let expected = state.claim.as_mut().filter(held).map(|held| held.acquired_at = now);
        let (status, code, _) = self.post(&path(run, "/claim/refresh"), &body);
        let wanted = if expected.is_some() { (200, "") } else { (409, "claim_not_held") };
        assert_eq!((status, &*code), wanted, "{body}");
    }

    fn release(&mut self, run: &'static str, holder: &'static str) {
        let force = self.random.chance(20);
        let with_fence = self.random.chance(60);
        let state = self.runs.entry(run).or_default();
        let fence = state.believed.get(holder).copied().filter(|_| with_fence);
        let query = match fence {
            _ if force => "?force=true".into(),
            Some(fence) => format!("?holder={holder}&fence={fence}"),
            None => format!("?holder={holder}"),
        };
        let held = |held: &Claim| held.holder == holder && fence.is_none_or(|f| f == held.fence);
        let expected = force || state.claim.as_ref().is_some_and(held);
        let got = self.team.delete(&self.team.owner, &path(run, &format!("/claim{query}")));
        let wanted = if expected { (204, "") } else { (409, "claim_not_held") };
        assert_eq!((got.status, got.refusal().1), wanted, "{run} {query}");
        if expected {
            state.claim = None;
            self.settle(run);
        }
    }

    fn delete(&mut self, run: &'static str, holder: &'static str) {
        let mut events = self.events(run, TOMBSTONE);
        events.truncate(1);
        for event in &mut events {
            event.run = run;
            event.kind = TOMBSTONE.into();
        }
        let event = events[0].clone();
        let tombstone =
            json!({ "id": event.id, "sequence": event.sequence, "payload": event.payload });
        let body = json!({ "tombstone": tombstone, "claim": { "holder": holder } });
        let (status, code, data) = self.post(&path(run, "/delete"), &body);
        let held = self.runs.entry(run).or_default().claim.clone();
        if held.is_some_and(|held| held.holder != holder) {
            assert_eq!((status, &*code), (409, "claim_held"), "{body}");
            return;
        }
        match self.expected(&events) {
            Err(expected) => assert_eq!((status, &*code), (409, expected), "{body}"),
            Ok(duplicates) => {
                assert_eq!(status, 200, "{code} {body}");
                let before = self.events.len();
                if !duplicates[0] {
                    self.events.retain(|e| e.run != run || e.sequence >= event.sequence);
                    self.runs.entry(run).or_default().claim = None;
                }
                assert_eq!(data["removed"], json!(before - self.events.len()), "{body}");
                self.stored(events, &duplicates, &json!({ "events": [data["event"]] }));
            }
        }
    }

    fn remove(&mut self, run: &'static str) {
        let highest = self.of_run(run).iter().map(|event| event.sequence).max().unwrap_or(0);
        let through = self.random.chance(60).then(|| self.random.below(highest + 2));
        let query = through.map_or(String::new(), |through| format!("?through={through}"));
        let got = self.team.delete(&self.team.owner, &path(run, &query));
        assert_eq!(got.status, 204, "{}", got.json);
        self.events.retain(|e| e.run != run || through.is_some_and(|through| e.sequence > through));
        self.runs.entry(run).or_default().claim = None;
        self.settle(run);
    }

    fn clock(&mut self) {
        let step = match self.random.below(40) {
            0 => 3 * DAY_MS,
            1..=10 => 0,
            n => n.cast_signed() * MINUTE_MS / 20,
        };
        self.team.advance(step);
        self.team.settle();
        let now = self.now();
        for state in self.runs.values_mut() {
            if state.settled_at.is_some_and(|at| at + CLAIM_HISTORY_AGE_MS <= now) {
                *state = Run::default();
            }
        }
    }

    /// A page of what moved, and then the events of those runs behind what was read of them.
    fn read(&mut self) -> bool {
        let after = self.reader.position.as_ref().map_or(String::new(), |p| format!("&after={p}"));
        let limit = 1 + self.random.below(3);
        let got = self.team.get(&self.team.owner, &format!("/run-changes?limit={limit}{after}"));
        let data = got.data(200).clone();
        let position = self.reader.position.as_deref().unwrap_or("0.0");
        let cursor: i64 = position.split_once('.').unwrap().1.parse().unwrap();
        for (run, value) in data["runs"].as_object().unwrap() {
            let moved = self.of_run(run).into_iter().filter(|event| event.row_id > cursor);
            if let Some(highest) = moved.map(|event| event.sequence).max() {
                assert_eq!(value, &json!(highest), "{run} behind {cursor}");
            }
            let page = self.team.get(&self.team.owner, &path(run, "/events?limit=200"));
            let mut items = page.items().clone();
            items.sort_by_key(|item| item["row_id"].as_i64());
            let read_to = self.reader.read_to.entry(run.clone()).or_default();
            for row_id in items.iter().map(|item| item["row_id"].as_i64().unwrap()) {
                if row_id > *read_to {
                    assert!(self.reader.seen.insert(row_id), "{row_id} was seen twice");
                    *read_to = row_id;
                }
            }
        }
        self.reader.position = Some(data["last"].as_str().unwrap().to_owned());
        !data["runs"].as_object().unwrap().is_empty()
    }

    /// What is stored of a run is what the model says.
    fn compare(&self, run: &str, holder: &str) {
        let get = |rest: &str| self.team.get(&self.team.owner, &path(run, rest));
        let mut expected = self.of_run(run);
        expected.sort_by_key(|event| event.sequence);
        let got = get("/events?limit=200");
        let items: Vec<_> = got
            .items()
            .iter()
            .map(|item| (item["id"].clone(), item["sequence"].clone(), item["row_id"].clone()))
            .collect();
        let wanted: Vec<_> =
            expected.iter().map(|e| (json!(e.id), json!(e.sequence), json!(e.row_id))).collect();
        assert_eq!(items, wanted, "{run}");
        let none = Run::default();
        let state = self.runs.get(run).unwrap_or(&none);
        let claim = get("/claim");
        match &state.claim {
            None => assert_eq!((claim.status, claim.refusal().1), (404, "claim_not_held")),
            Some(held) => {
                let data = claim.data(200);
                assert_eq!(data["holder"], held.holder);
                assert_eq!(
                    (&data["fence"], &data["acquired_at"]),
                    (&json!(held.fence), &json!(held.acquired_at))
                );
            }
        }
        let holds = state.claim.as_ref().is_some_and(|held| held.holder == holder);
        let fenced = state.displaced.contains(holder) && !holds;
        assert_eq!(get(&format!("/fenced/{holder}")).data(200)["fenced"], json!(fenced));
    }
}

fn run(seed: u64) {
    let mut world = World {
        team: Team::new(),
        random: Random::new(seed),
        runs: BTreeMap::new(),
        events: Vec::new(),
        newest_row_id: 0,
        count: 0,
        reader: Reader::default(),
    };
    for _ in 0..OPERATIONS {
        world.step();
    }
    while world.read() {}
    let unseen: Vec<_> =
        world.events.iter().filter(|event| !world.reader.seen.contains(&event.row_id)).collect();
    assert!(unseen.is_empty(), "the reader missed {unseen:?}");
}

#[test]
fn any_sequence_of_operations_does_what_the_model_says() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match setting("LEDGER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("LEDGER_SEQUENCES").unwrap_or(SEQUENCES),
    };
    for seed in seeds {
        println!("LEDGER_SEED={seed}");
        run(seed);
    }
}
