//! Visibility everywhere equals a naive rule, over random sources, groups, grants and roles.
use crate::capture::{messages, session};
use crate::team::{Person, Team};
use serde_json::json;
use std::collections::BTreeSet;
use teamplane::auth::Role;
use teamplane::ids::Id;

const WORLDS: u64 = 12;

/// xorshift64*: the seed names the world.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides
    }
}

/// A published session and what decides who sees it.
struct Published {
    id: String,
    /// Custodian and whether the source shows its sessions to the team.
    source: (usize, bool),
    people: BTreeSet<usize>,
    groups: BTreeSet<usize>,
}

#[test]
fn lists_search_events_and_all_below_a_session_show_what_a_naive_rule_shows() {
    for seed in 1..=WORLDS {
        println!("seed {seed}");
        one_world(seed);
    }
}

fn one_world(seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let team = Team::new();
    let roles = [Role::Viewer, Role::Member, Role::Admin, Role::Owner];
    let people: Vec<Person> = (0..4)
        .map(|n| {
            team.person(&format!("p{n}"), if n < 2 { Role::Member } else { roles[dice.roll(4)] })
        })
        .collect();
    let mut groups: Vec<(String, BTreeSet<usize>)> = Vec::new();
    for n in 0..2 {
        let made = team.post(&team.owner, "/groups", json!({ "name": format!("g{n}") }));
        let id = made.data(201)["id"].as_str().unwrap().to_owned();
        let members: BTreeSet<usize> = (0..people.len()).filter(|_| dice.roll(3) == 0).collect();
        for member in &members {
            let path = format!("/groups/{id}/members/{}", people[*member].id);
            assert_eq!(team.put(&team.owner, &path, "").status, 200);
        }
        groups.push((id, members));
    }
    let mut all = Vec::new();
    for n in 0..4 {
        let (custodian, shows) = (dice.roll(2), dice.roll(3) == 0);
        let machine = team.publisher_of(&people[custodian].id, &format!("m{n}"));
        if shows {
            let path = format!("/sources/{}", machine.source_id);
            let got = team.patch(&people[custodian].token, &path, json!({ "visibility": "team" }));
            assert_eq!(got.status, 200);
        }
        let id = session(&team.publish(&machine.token, "n", &messages(0, 1, "needle")));
        let mut one = Published {
            id,
            source: (custodian, shows),
            people: BTreeSet::new(),
            groups: BTreeSet::new(),
        };
        let grant = |kind: &str, subject: &str| {
            let path = format!("/sessions/{}/grants/{kind}/{subject}", one.id);
            let body = r#"{"access":"read"}"#;
            assert_eq!(team.put(&people[custodian].token, &path, body).status, 200);
        };
        for person in (0..people.len()).filter(|_| dice.roll(4) == 0).collect::<Vec<_>>() {
            grant("principal", people[person].id.as_str());
            one.people.insert(person);
        }
        for group in (0..groups.len()).filter(|_| dice.roll(4) == 0).collect::<Vec<_>>() {
            grant("group", &groups[group].0);
            one.groups.insert(group);
        }
        all.push(one);
    }
    for (n, person) in people.iter().enumerate() {
        let shown = |one: &&Published| {
            one.source.1
                || one.source.0 == n
                || one.people.contains(&n)
                || one.groups.iter().any(|group| groups[*group].1.contains(&n))
        };
        let expected: BTreeSet<String> =
            all.iter().filter(shown).map(|one| one.id.clone()).collect();
        check(&team, &person.token, &all, &expected);
    }
}

fn check(team: &Team, token: &str, all: &[Published], expected: &BTreeSet<String>) {
    let ids = |path: &str, field: &str| -> BTreeSet<String> {
        let got = team.get(token, path);
        got.items().iter().filter_map(|one| one[field].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(&ids("/sessions", "id"), expected);
    assert_eq!(&ids("/sessions?q=needle", "id"), expected);
    for path in ["/events?limit=200", "/events/current?limit=200"] {
        let mut seen = ids(path, "resource_id");
        seen.retain(|id| id.starts_with("session_"));
        assert_eq!(&seen, expected, "{path}");
    }
    for one in all {
        let status = if expected.contains(&one.id) { 200 } else { 404 };
        for below in ["", "/messages", "/versions", "/artifacts", "/grants", "/export"] {
            let path = format!("/sessions/{}{below}", one.id);
            assert_eq!(team.get(token, &path).status, status, "{path}");
        }
    }
}
