//! Codex CLI: `~/.codex/sessions/YYYY/MM/DD/rollout-<time>-<uuid>.jsonl`, rows
//! `{timestamp, type, payload}`.
use super::{ASKED, Described, Facts, Row, Turn, text_of};
use crate::json::{Object, string};
use crate::outline::{self, Outline};
use std::path::Path;

/// How far apart the two copies of a text may be.
const RECENT: usize = 16;

#[derive(Debug, Default, Clone)]
pub struct State {
    /// Digests of the last texts, and where they are if it was an event that said them.
    recent: Vec<(u64, Option<usize>)>,
}

/// The uuid that the file's name ends with.
pub fn native_id(path: &Path) -> Option<String> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".jsonl")?.strip_prefix("rollout-")?;
    let uuid = stem.len().checked_sub(36).and_then(|at| stem.get(at..));
    Some(uuid.filter(|uuid| super::claude::is_uuid(uuid)).unwrap_or(stem).to_owned())
}

pub fn take(
    state: &mut State,
    outline: &mut Outline,
    facts: &mut Facts,
    row: &Row,
    object: &Object,
) {
    // Before 2025-10 rows had no envelope.
    let payload = object.object("payload");
    let payload = payload.as_ref().unwrap_or(object);
    let kind = payload.text("type").unwrap_or_default();
    match object.text("type").as_deref() {
        Some("session_meta") => {
            facts.add_cwd(payload.text("cwd"));
            facts.version = payload.text("cli_version").map(Into::into).or(facts.version.take());
            let branch = payload.object("git").and_then(|git| git.text("branch").map(Into::into));
            facts.branch = branch.or(facts.branch.take());
        }
        Some("turn_context") => facts.add_cwd(payload.text("cwd")),
        Some("event_msg") => match kind.as_ref() {
            "task_started" => facts.turn = Turn::Agent,
            "task_complete" | "turn_aborted" => facts.turn = Turn::User,
            "user_message" | "agent_message" | "agent_reasoning" => {
                return take_event(state, outline, row, payload);
            }
            _ => {}
        },
        _ if kind == "message" || kind == "reasoning" => {
            return take_item(state, outline, facts, row, payload);
        }
        _ => {}
    }
    outline.push(row.entry());
}

/// Each text is there twice, as an item and as an event: the event is the copy, whichever is
/// first. One without an item stays.
fn take_event(state: &mut State, outline: &mut Outline, row: &Row, payload: &Object) {
    let text = payload.get("message").or_else(|| payload.get("text"));
    let digest = outline::digest(text_of(text).trim().as_bytes());
    if let Some(at) = state.recent.iter().position(|known| *known == (digest, None)) {
        state.recent.remove(at);
        return;
    }
    let index = outline.push(row.entry());
    remember(state, digest, Some(index));
}

fn take_item(
    state: &mut State,
    outline: &mut Outline,
    facts: &mut Facts,
    row: &Row,
    payload: &Object,
) {
    let is_reasoning = payload.text("type").as_deref() == Some("reasoning");
    let values = payload.list(if is_reasoning { "summary" } else { "content" });
    let texts: Vec<String> = values.into_iter().map(|block| text_of(Some(block))).collect();
    let whole = texts.join("\n");
    match payload.text("role").as_deref() {
        Some("user") => {
            facts.turn = Turn::Agent;
            // What the program itself says in a person's name is in tags, or is a file's.
            let own = whole.trim_start();
            if !own.starts_with('<') && !own.starts_with("# AGENTS.md") {
                facts.set_title(ASKED, own);
            }
        }
        Some("assistant") => facts.turn = Turn::User,
        _ => {}
    }
    // A reasoning item with several summaries has an event for each.
    let parts = if is_reasoning && texts.len() > 1 { texts } else { vec![whole] };
    let mut index = None;
    for text in parts.iter().filter(|text| !text.trim().is_empty()) {
        let digest = outline::digest(text.trim().as_bytes());
        let found = state.recent.iter().position(|(d, at)| *d == digest && at.is_some());
        match found.map(|at| state.recent.remove(at)) {
            Some((_, Some(at))) if index.is_none() => index = Some(at),
            Some(_) => {}
            None => remember(state, digest, None),
        }
    }
    match index {
        Some(index) => outline.replace(index, row.entry()),
        None => drop(outline.push(row.entry())),
    }
}

fn remember(state: &mut State, digest: u64, index: Option<usize>) {
    if state.recent.len() == RECENT {
        state.recent.remove(0);
    }
    state.recent.push((digest, index));
}

pub fn describe(object: &Object) -> Described {
    let payload = object.object("payload");
    let payload = payload.as_ref().unwrap_or(object);
    let kind = payload.text("type").unwrap_or_default();
    let role = match (payload.text("role").as_deref(), kind.as_ref()) {
        (Some("user"), _) | (_, "user_message") => "user",
        (Some("assistant"), _) | (_, "agent_message" | "agent_reasoning" | "reasoning") => {
            "assistant"
        }
        (_, kind) if kind.ends_with("_call") || kind.ends_with("_call_output") => "tool",
        _ => "system",
    };
    let text = if let Some(name) = payload.text("name") {
        // Arguments are JSON in a string.
        let given = payload.get("arguments").or_else(|| payload.get("input"));
        format!("{name} {}", given.and_then(string).unwrap_or_default())
    } else {
        let keys = ["content", "summary", "output", "message", "text"];
        text_of(keys.into_iter().find_map(|key| payload.get(key)))
    };
    Described { role, text: crate::json::up_to(&text, crate::limits::TEXT_BYTES_MAX).to_owned() }
}
