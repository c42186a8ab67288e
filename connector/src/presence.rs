//! What the plane is told of this machine: that it is there, and which sessions are open.
use crate::discover::Root;
use crate::files::{hex, now_ms, random_hex};
use crate::limits::{BINDINGS_MAX, OPEN_AGE_MS};
use crate::transcripts::{Harness, Turn};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A session that is written to, which the plane may know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    pub harness: Harness,
    pub native_id: String,
    pub turn: Turn,
    pub since_ms: i64,
    pub cwd: Option<String>,
}

impl Open {
    pub fn binding_id(&self) -> String {
        let name = format!("{}\n{}", self.harness.name(), self.native_id);
        format!("binding_{}", hex(&Sha256::digest(name)[..16]))
    }
}

pub struct Presence {
    /// Of this run.
    incarnation_id: String,
    sequence: AtomicU64,
    open: Mutex<BTreeMap<String, Open>>,
    roots: Mutex<Vec<Value>>,
}

impl Presence {
    pub fn new() -> Presence {
        Presence {
            incarnation_id: random_hex(),
            sequence: AtomicU64::new(0),
            open: Mutex::default(),
            roots: Mutex::default(),
        }
    }

    pub fn set_roots(&self, roots: &[Root]) {
        let shapes = roots.iter().map(|root| {
            let name: String =
                root.path.to_string_lossy().chars().filter(|c| !c.is_control()).take(128).collect();
            json!({ "id": root.id, "name": name, "harnesses": [root.harness.name()] })
        });
        *self.roots.lock().expect("no holder panics") = shapes.collect();
    }

    pub fn note(&self, open: Open) {
        self.open.lock().expect("no holder panics").insert(open.binding_id(), open);
    }

    pub fn forget(&self, harness: Harness, native_id: &str) {
        let mut open = self.open.lock().expect("no holder panics");
        open.retain(|_, open| open.harness != harness || open.native_id != native_id);
    }

    pub fn binding(&self, id: &str) -> Option<Open> {
        self.open.lock().expect("no holder panics").get(id).cloned()
    }

    /// The next heartbeat, without its type.
    pub fn heartbeat(&self) -> Value {
        let mut open = self.open.lock().expect("no holder panics");
        let oldest = now_ms() - OPEN_AGE_MS;
        open.retain(|_, open| open.since_ms >= oldest);
        let mut newest: Vec<(&String, &Open)> = open.iter().collect();
        newest.sort_by_key(|(_, open)| std::cmp::Reverse(open.since_ms));
        newest.truncate(BINDINGS_MAX);
        let bindings: Vec<Value> = newest
            .iter()
            .map(|(id, o)| json!({ "id": id, "harness": o.harness.name(), "native_id": o.native_id }))
            .collect();
        let activity: Vec<Value> = newest
            .iter()
            .map(|(_, o)| {
                json!({
                    "harness": o.harness.name(), "native_id": o.native_id,
                    "turn": o.turn.name(), "since": o.since_ms,
                })
            })
            .collect();
        json!({
            "incarnation_id": self.incarnation_id,
            "sequence": self.sequence.fetch_add(1, Ordering::Relaxed) + 1,
            "bindings": bindings,
            "roots": *self.roots.lock().expect("no holder panics"),
            "activity": activity,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_lately_is_open_and_sequences_grow() {
        let presence = Presence::new();
        let open = |native_id: &str, since_ms| Open {
            harness: Harness::Codex,
            native_id: native_id.into(),
            turn: Turn::Agent,
            since_ms,
            cwd: None,
        };
        presence.note(open("new", now_ms()));
        presence.note(open("old", now_ms() - OPEN_AGE_MS - 1_000));
        let (first, second) = (presence.heartbeat(), presence.heartbeat());
        assert_eq!((&first["sequence"], &second["sequence"]), (&json!(1), &json!(2)));
        assert_eq!(second["activity"].as_array().unwrap().len(), 1);
        assert_eq!(second["bindings"][0]["native_id"], "new");
        let id = second["bindings"][0]["id"].as_str().unwrap();
        assert_eq!(presence.binding(id).unwrap().native_id, "new");
        presence.forget(Harness::Codex, "new");
        assert_eq!(presence.heartbeat()["bindings"], json!([]));
    }
}
