//! Claude Code: `~/.claude/projects/<folder>/<session>.jsonl`, a subagent's beside it as
//! `agent-<id>.jsonl` or below it as `<session>/subagents/agent-<id>.jsonl`.
use super::{ASKED, Described, Facts, GIVEN, MADE, Row, Turn, text_of};
use crate::json::Object;
use crate::outline::Outline;
use std::path::Path;

#[derive(Debug, Default, Clone)]
pub struct State {
    /// Progress rows since the last row of another kind: of each tool the last one counts.
    progress: Vec<(String, usize)>,
    /// Summaries of sessions, by the last message of each: often of other sessions.
    summaries: Vec<(String, String)>,
}

/// Tools that run side by side, and summaries that a file begins with.
const PROGRESS_MAX: usize = 64;
const SUMMARIES_MAX: usize = 64;

/// The session's own id, and its parent's for a subagent.
pub fn native_id(path: &Path) -> Option<(String, Option<String>)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".jsonl")?;
    if let Some(agent) = stem.strip_prefix("agent-") {
        let folder = path.parent()?;
        let parent = (folder.file_name()? == "subagents")
            .then(|| folder.parent()?.file_name()?.to_str().map(str::to_owned))
            .flatten();
        return Some((format!("agent-{agent}"), parent));
    }
    is_uuid(stem).then(|| (stem.to_owned(), None))
}

pub fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

pub fn take(
    state: &mut State,
    outline: &mut Outline,
    facts: &mut Facts,
    row: &Row,
    object: &Object,
) {
    let kind = object.text("type").unwrap_or_default();
    if kind == "progress" {
        return take_progress(state, outline, row, object);
    }
    state.progress.clear();

    match object.text("uuid").filter(|uuid| !uuid.is_empty()) {
        Some(uuid) => outline.put(&uuid, row.entry()),
        None => outline.push(row.entry()),
    };
    match kind.as_ref() {
        "summary" => {
            if let (Some(leaf), Some(text)) = (object.text("leafUuid"), object.text("summary"))
                && state.summaries.len() < SUMMARIES_MAX
            {
                state.summaries.push((leaf.into_owned(), text.into_owned()));
            }
        }
        "custom-title" => facts.set_title(GIVEN, &object.text("customTitle").unwrap_or_default()),
        "ai-title" => facts.set_title(MADE, &object.text("aiTitle").unwrap_or_default()),
        "user" | "assistant" => take_message(facts, object, &kind),
        _ => {}
    }
    // A summary is of this session once the message that it ends with is in it.
    state.summaries.retain(|(leaf, text)| {
        let own = outline.index_of(leaf).is_some();
        if own {
            facts.set_title(MADE, text);
        }
        !own
    });
}

/// A tool under way says how far it is over and over, each time with all that it said before.
fn take_progress(state: &mut State, outline: &mut Outline, row: &Row, object: &Object) {
    let key = object.text("parentToolUseID").or_else(|| object.text("toolUseID"));
    let key = key.unwrap_or_default().into_owned();
    if let Some((_, index)) = state.progress.iter().find(|(known, _)| *known == key) {
        return outline.replace(*index, row.entry());
    }
    let index = outline.push(row.entry());
    if state.progress.len() == PROGRESS_MAX {
        state.progress.remove(0);
    }
    state.progress.push((key, index));
}

fn take_message(facts: &mut Facts, object: &Object, kind: &str) {
    facts.add_cwd(object.text("cwd"));
    if let Some(branch) = object.text("gitBranch").filter(|branch| !branch.is_empty()) {
        facts.branch = Some(branch.into_owned());
    }
    if let Some(version) = object.text("version") {
        facts.version = Some(version.into_owned());
    }
    if object.text("agentId").is_some() {
        facts.parent = object.text("sessionId").map(Into::into);
    }
    let Some(message) = object.object("message") else { return };
    let blocks = Blocks::of(&message);
    facts.turn = if kind == "assistant" && !blocks.tool_use { Turn::User } else { Turn::Agent };
    let is_asked = kind == "user" && !blocks.tool_result && !object.is_true("isMeta");
    if is_asked && !object.is_true("isCompactSummary") && facts.titles[ASKED].is_none() {
        let text = text_of(message.get("content"));
        // What a person typed as a command is wrapped in tags.
        if !text.starts_with('<') {
            facts.set_title(ASKED, &text);
        }
    }
}

struct Blocks {
    tool_use: bool,
    tool_result: bool,
}

impl Blocks {
    fn of(message: &Object) -> Blocks {
        let mut blocks = Blocks { tool_use: false, tool_result: false };
        for block in message.list("content") {
            match Object::parse(block.get()).and_then(|block| block.text("type")).as_deref() {
                Some("tool_use") => blocks.tool_use = true,
                Some("tool_result") => blocks.tool_result = true,
                _ => {}
            }
        }
        blocks
    }
}

pub fn describe(object: &Object) -> Described {
    let message = object.object("message");
    let content = message.as_ref().and_then(|message| message.get("content"));
    let role = match object.text("type").as_deref() {
        Some("assistant") => "assistant",
        Some("user") if message.as_ref().is_some_and(|m| Blocks::of(m).tool_result) => "tool",
        Some("user") if !object.is_true("isMeta") => "user",
        _ => "system",
    };
    let own = ["summary", "content", "customTitle", "aiTitle", "lastPrompt"];
    let own = own.into_iter().find_map(|key| object.get(key));
    Described { role, text: text_of(content.or(own)) }
}
