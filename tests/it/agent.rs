//! An agent that keeps its conversation on the plane.
use crate::team::{Got, Team};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use teamplane::auth::Role;
use teamplane::ids::hex;

pub struct Agent<'a> {
    pub team: &'a Team,
    pub token: String,
    pub principal_id: String,
    pub capability: String,
    /// Behind each address: `workspace=w&worktree=n&instance=i`.
    pub scope: String,
}

pub fn capability(n: u8) -> String {
    URL_SAFE_NO_PAD.encode([n; 32])
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub fn binding(model: &str) -> Json {
    json!({ "provider": "anthropic", "model": model, "generation": 1 })
}

pub fn revision(session: i64, durable: i64, source: i64) -> Json {
    json!({ "session": session, "durable": durable, "source": source })
}

pub fn event(kind: &str) -> Json {
    json!({ "kind": kind, "role": "user", "size": 3, "provenance": "user",
            "redaction_status": "none" })
}

pub fn payload(name: &str, bytes: &[u8]) -> Json {
    json!({ "ref": name, "sha256": sha256(bytes), "size": bytes.len(), "retention": "session",
            "bytes": STANDARD.encode(bytes) })
}

/// A turn of two events upon that revision.
pub fn turn(operation: &str, expected: (i64, i64, i64), said: &str) -> Json {
    let (session, durable, source) = expected;
    json!({
        "operation_id": operation,
        "expected": revision(session, durable, source),
        "binding": binding("m"),
        "events": [event("message"), event("reply")],
        "checkpoint": {
            "turn_id": session + 1, "algorithm": "full", "schema_version": 1,
            "source_start": 1, "active_context": [{ "role": "user", "content": said }],
        },
    })
}

impl<'a> Agent<'a> {
    pub fn new(team: &'a Team) -> Agent<'a> {
        let person = team.person("ann", Role::Member);
        Agent {
            team,
            token: person.token,
            principal_id: person.id.to_string(),
            capability: capability(1),
            scope: String::new(),
        }
    }

    /// The same principal, in another process.
    pub fn with_capability(&self, n: u8) -> Agent<'a> {
        Agent { capability: capability(n), ..self.copy() }
    }

    pub fn with_scope(&self, scope: &str) -> Agent<'a> {
        Agent { scope: scope.into(), ..self.copy() }
    }

    pub fn copy(&self) -> Agent<'a> {
        Agent {
            team: self.team,
            token: self.token.clone(),
            principal_id: self.principal_id.clone(),
            capability: self.capability.clone(),
            scope: self.scope.clone(),
        }
    }

    /// An agent in a new, active instance of a worktree.
    pub fn in_worktree(&self, name: &str, instance: &str) -> Agent<'a> {
        let path = format!("/src/{name}");
        let body = json!({ "worktree": name, "instance_id": instance, "path": path });
        self.team.post(&self.token, "/worktrees", body).data(201);
        let register = format!("/worktrees/{instance}/register");
        self.team.post(&self.token, &register, json!({})).data(200);
        self.with_scope(&format!("worktree={name}&instance={instance}"))
    }

    pub fn send(&self, method: &str, path: &str, body: Option<&[u8]>) -> Got {
        let mark = if path.contains('?') { '&' } else { '?' };
        let scope = if self.scope.is_empty() { "" } else { &format!("{mark}{}", self.scope) };
        let headers = [("x-context-capability", self.capability.as_str())];
        let headers = if self.capability.is_empty() { &[][..] } else { &headers[..] };
        self.team.send(&self.token, method, &format!("{path}{scope}"), headers, body)
    }

    pub fn get(&self, path: &str) -> Got {
        self.send("GET", path, None)
    }
    pub fn delete(&self, path: &str) -> Got {
        self.send("DELETE", path, None)
    }
    pub fn post(&self, path: &str, body: Json) -> Got {
        self.send("POST", path, Some(body.to_string().as_bytes()))
    }
    pub fn put(&self, path: &str, body: Json) -> Got {
        self.send("PUT", path, Some(body.to_string().as_bytes()))
    }
    pub fn patch(&self, path: &str, body: Json) -> Got {
        self.send("PATCH", path, Some(body.to_string().as_bytes()))
    }

    pub fn ensure(&self, id: &str) -> Got {
        self.put(&format!("/contexts/{id}"), json!({ "binding": binding("m") }))
    }

    pub fn commit(&self, id: &str, body: Json) -> Got {
        self.post(&format!("/contexts/{id}/commit"), body)
    }

    #[track_caller]
    pub fn commits(&self, id: &str, operation: &str, expected: (i64, i64, i64), said: &str) {
        let got = self.commit(id, turn(operation, expected, said));
        assert_eq!(got.data(200)["replayed"], false);
    }

    pub fn advance(&self, id: &str, operation: &str, expected: Json, more: Json) -> Got {
        let mut body = json!({ "operation_id": operation, "expected": expected,
                               "binding": binding("m"), "reason": "asked" });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        self.post(&format!("/contexts/{id}/advance"), body)
    }

    /// The head and the active checkpoint.
    #[track_caller]
    pub fn load(&self, id: &str) -> Json {
        self.get(&format!("/contexts/{id}")).data(200).clone()
    }
}
