//! Transcripts of coding agents: which file is whose, and how its rows become messages.
//!
//! A reader takes the rows of a file in order and keeps the outline of what the session is now.
//! Everything it needs to know of earlier rows is in it, so that it goes on where a file has grown.
pub mod claude;
pub mod codex;
pub mod gemini;
#[cfg(test)]
mod tests;

use crate::json::{self, Object, up_to};
use crate::limits::{CWDS_REMEMBERED_MAX, LINE_HEAD_BYTES, TEXT_BYTES_MAX, TITLE_CHARS_MAX};
use crate::outline::{self, Entry, Outline};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Harness {
    ClaudeCode,
    Codex,
    Gemini,
}

impl Harness {
    pub const ALL: [Harness; 3] = [Harness::ClaudeCode, Harness::Codex, Harness::Gemini];

    pub fn name(self) -> &'static str {
        match self {
            Harness::ClaudeCode => "claude-code",
            Harness::Codex => "codex",
            Harness::Gemini => "gemini",
        }
    }

    pub fn parse(name: &str) -> Option<Harness> {
        Harness::ALL.into_iter().find(|harness| harness.name() == name)
    }
}

/// What is said of a session besides its messages.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The agent's own id, where the file's name does not say it.
    pub native_id: Option<String>,
    /// Given by a person, by the agent, or the first thing that was asked: the first that is there.
    pub titles: [Option<String>; 3],
    pub cwds: Vec<String>,
    pub branch: Option<String>,
    pub version: Option<String>,
    pub is_subagent: bool,
    pub parent: Option<String>,
    /// Whose turn it is.
    pub turn: Turn,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    #[default]
    User,
    Agent,
}

impl Turn {
    pub fn name(self) -> &'static str {
        match self {
            Turn::User => "user",
            Turn::Agent => "agent",
        }
    }
}

pub const GIVEN: usize = 0;
pub const MADE: usize = 1;
pub const ASKED: usize = 2;

impl Facts {
    pub fn title(&self) -> Option<&str> {
        self.titles.iter().flatten().map(String::as_str).next()
    }

    /// The last of a kind counts, except of what was asked the first.
    fn set_title(&mut self, kind: usize, text: &str) {
        if kind == ASKED && self.titles[ASKED].is_some() {
            return;
        }
        let words = up_to(text, 4_096).split(|c: char| c.is_whitespace() || c.is_control());
        let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        let cut = match line.char_indices().nth(TITLE_CHARS_MAX) {
            None => line,
            Some((at, _)) => format!("{}…", line[..at].trim_end()),
        };
        if !cut.is_empty() {
            self.titles[kind] = Some(cut);
        }
    }

    fn add_cwd(&mut self, cwd: Option<Cow<str>>) {
        let Some(cwd) = cwd.filter(|cwd| !cwd.is_empty()) else { return };
        let is_new = !self.cwds.iter().any(|known| *known == cwd);
        if is_new && self.cwds.len() < CWDS_REMEMBERED_MAX {
            self.cwds.push(cwd.into_owned());
        }
    }
}

/// A row as its file has it: secrets are taken out when a message is made of it.
pub struct Row<'a> {
    pub offset: u64,
    /// In the file.
    pub len: u32,
    pub text: &'a str,
    pub digest: u64,
    /// Only the beginning of a line that is too long to be read.
    pub is_head: bool,
}

impl Row<'_> {
    pub fn entry(&self) -> Entry {
        Entry { offset: self.offset, len: self.len, digest: self.digest }
    }
}

/// What a message says of itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Described {
    pub role: &'static str,
    pub text: String,
}

/// What a harness's reader keeps between rows.
#[derive(Debug, Clone)]
enum State {
    Claude(claude::State),
    Codex(codex::State),
    Gemini,
}

#[derive(Debug, Clone)]
pub struct Reader {
    pub outline: Outline,
    pub facts: Facts,
    state: State,
}

impl Reader {
    pub fn new(harness: Harness) -> Reader {
        let state = match harness {
            Harness::ClaudeCode => State::Claude(claude::State::default()),
            Harness::Codex => State::Codex(codex::State::default()),
            Harness::Gemini => State::Gemini,
        };
        Reader { outline: Outline::default(), facts: Facts::default(), state }
    }

    /// Takes the next row.
    pub fn take(&mut self, row: &Row) {
        if row.text.trim_matches(|c: char| c.is_whitespace() || c == '\0').is_empty() {
            return;
        }
        let readable = json::replace_lone_surrogates(row.text);
        let Some(object) = Object::parse(&readable).filter(|_| !row.is_head) else {
            // No JSON, or too long: kept as it is, since it is what the agent wrote.
            self.outline.push(row.entry());
            return;
        };
        let Reader { outline, facts, state } = self;
        match state {
            State::Claude(state) => claude::take(state, outline, facts, row, &object),
            State::Codex(state) => codex::take(state, outline, facts, row, &object),
            State::Gemini => gemini::take(outline, facts, row, &object),
        }
    }

    /// Takes a transcript that is one JSON document.
    pub fn take_document(&mut self, text: &str) {
        if matches!(self.state, State::Gemini) {
            gemini::take_document(&mut self.outline, &mut self.facts, text);
        }
    }
}

/// The role and text of a row that became a message.
pub fn describe(harness: Harness, text: &str) -> Described {
    let readable = json::replace_lone_surrogates(text);
    match (Object::parse(&readable), harness) {
        (None, _) => Described { role: "system", text: String::new() },
        (Some(object), Harness::ClaudeCode) => claude::describe(&object),
        (Some(object), Harness::Codex) => codex::describe(&object),
        (Some(object), Harness::Gemini) => gemini::describe(&object),
    }
}

/// A message as it is published: what a reader wants to have in front, and the row as it was.
/// `text` is the row's, without secrets.
pub fn message(harness: Harness, ordinal: usize, entry: &Entry, text: &str) -> String {
    let row = text;
    let (role, text, native, is_cut) = if entry.is_oversize() || !json::is_valid(row) {
        let head = up_to(row, LINE_HEAD_BYTES);
        let is_cut = entry.is_oversize() || head.len() < row.len();
        ("system", head.trim_matches('\0').to_owned(), "null".into(), is_cut)
    } else {
        let Described { role, text } = describe(harness, row);
        let native = fit(row);
        let is_cut = native.len() != row.len();
        (role, text, native, is_cut)
    };
    let cut = is_cut.then_some(entry.len);
    let mut out = String::with_capacity(native.len() + text.len() + 80);
    out.push_str(&format!(r#"{{"ordinal":{ordinal},"role":"{role}","text":"#));
    out.push_str(&json::quoted(&text));
    if let Some(bytes) = cut {
        out.push_str(&format!(r#","cut_from_bytes":{bytes}"#));
    }
    out.push_str(r#","native":"#);
    out.push_str(&native);
    out.push('}');
    out
}

/// The row, its long strings cut as far as it takes for a message to hold it.
fn fit(row: &str) -> Cow<'_, str> {
    use crate::limits::{ROW_BYTES_MAX, STRING_BYTES_MAX};
    let mut bytes_max = STRING_BYTES_MAX;
    let mut cut = json::cut_strings(row, bytes_max);
    while cut.len() > ROW_BYTES_MAX && bytes_max > 64 {
        bytes_max /= 2;
        cut = json::cut_strings(row, bytes_max);
    }
    if cut.len() <= ROW_BYTES_MAX {
        return cut;
    }
    // Many small values: what is short of the outermost is kept.
    let readable = json::replace_lone_surrogates(row);
    let fields = Object::parse(&readable);
    let short: Vec<String> = fields
        .iter()
        .flat_map(Object::fields)
        .filter(|(name, value)| name.len() + value.get().len() < 256)
        .take(64)
        .map(|(name, value)| format!("{}:{}", json::quoted(name), value.get()))
        .collect();
    format!("{{{}}}", short.join(",")).into()
}

/// The readable text of a string, a block or a list of blocks, up to what a search would find.
pub fn text_of(value: Option<&RawValue>) -> String {
    let mut out = String::new();
    if let Some(value) = value {
        add_text(&mut out, value, 0);
    }
    out
}

fn add_text(out: &mut String, value: &RawValue, depth: usize) {
    let json = value.get();
    match json.as_bytes().first() {
        Some(b'"') => add(out, &json::string(value).unwrap_or_default()),
        Some(b'[') if depth < 4 => {
            for block in json::list(value) {
                add_text(out, block, depth + 1);
            }
        }
        Some(b'{') if depth < 4 => {
            let Some(block) = Object::parse(json) else { return };
            for key in ["text", "thinking"] {
                if let Some(text) = block.text(key) {
                    return add(out, &text);
                }
            }
            match block.text("type").as_deref() {
                Some("image" | "input_image") => add(out, "[image]"),
                Some("document") => add(out, "[document]"),
                _ => match (block.text("name"), block.get("content")) {
                    (Some(name), _) => {
                        let input = block.get("input").map_or("", |input| input.get());
                        add(out, &format!("{name} {}", up_to(input, TEXT_BYTES_MAX)));
                    }
                    (None, Some(content)) => add_text(out, content, depth + 1),
                    (None, None) => {}
                },
            }
        }
        _ => {}
    }
}

/// Adds a paragraph.
fn add(out: &mut String, text: &str) {
    if text.is_empty() || out.len() >= TEXT_BYTES_MAX {
        return;
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out.push_str(up_to(text, TEXT_BYTES_MAX.saturating_sub(out.len())));
}

/// A row of its own inside of another text, such as an element of a list.
fn element<'a>(row: &Row, text: &str, value: &'a RawValue) -> Row<'a> {
    let start = value.get().as_ptr().addr() - text.as_ptr().addr();
    Row {
        offset: row.offset + start as u64,
        len: u32::try_from(value.get().len()).unwrap_or(u32::MAX),
        text: value.get(),
        digest: outline::digest(value.get().as_bytes()),
        is_head: false,
    }
}
