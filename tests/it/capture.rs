//! Publishing sessions in tests as a connector does: begin, parts, commit.
use crate::team::{Got, Team};
use serde_json::{Value as Json, json};

/// Messages `from..to` whose text names their ordinal.
pub fn messages(from: i64, to: i64, word: &str) -> Vec<Json> {
    (from..to)
        .map(|n| json!({ "ordinal": n, "role": "user", "text": format!("{word} number{n}") }))
        .collect()
}

impl Team {
    pub fn begin(&self, token: &str, body: Json) -> String {
        let got = self.post(token, "/captures", body);
        got.data(201)["id"].as_str().expect("a capture has an id").to_owned()
    }

    /// Sends messages in parts of 500 and commits.
    pub fn fill(&self, token: &str, capture: &str, messages: &[Json]) -> Got {
        let parts = messages.chunks(500);
        let count = parts.len();
        for (index, part) in parts.enumerate() {
            let path = format!("/captures/{capture}/parts/{index}");
            let got = self.put(token, &path, &json!({ "messages": part }).to_string());
            assert_eq!(got.status, 204, "{}", got.json);
        }
        self.post(token, &format!("/captures/{capture}/commit"), json!({ "parts": count }))
    }

    /// Publishes a whole session; what its commit answered.
    pub fn publish(&self, token: &str, native_id: &str, messages: &[Json]) -> Json {
        self.publish_with(
            token,
            json!({ "harness": "claude-code", "native_id": native_id }),
            messages,
        )
    }

    pub fn publish_with(&self, token: &str, begin: Json, messages: &[Json]) -> Json {
        let capture = self.begin(token, begin);
        self.fill(token, &capture, messages).data(200).clone()
    }
}

/// A commit's session.
pub fn session(committed: &Json) -> String {
    committed["session_id"].as_str().expect("a commit names its session").to_owned()
}
