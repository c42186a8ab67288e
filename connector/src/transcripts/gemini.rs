//! Gemini CLI: `~/.gemini/tmp/<project>/chats/session-<time>-<id>.jsonl`, a log of changes; older
//! versions wrote one `.json` document, which the same name with an `l` replaces.
use super::{ASKED, Described, Facts, MADE, Row, Turn, add, element, text_of};
use crate::json::{self, Object};
use crate::outline::Outline;
use std::path::Path;

/// What stands for the session's id until its file says it, and the parent's for a subagent.
pub fn native_id(path: &Path) -> Option<(String, Option<String>)> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(".jsonl").or_else(|| name.strip_suffix(".json"))?;
    let folder = path.parent()?;
    if folder.file_name()? == "chats" {
        return stem.starts_with("session-").then(|| (stem.to_owned(), None));
    }
    let is_below = folder.parent()?.file_name()? == "chats";
    let parent = folder.file_name()?.to_str()?.to_owned();
    let is_log = name.len() > stem.len() + ".json".len();
    (is_below && is_log).then(|| (stem.to_owned(), Some(parent)))
}

pub fn take(outline: &mut Outline, facts: &mut Facts, row: &Row, object: &Object) {
    if let Some(id) = object.text("$rewindTo") {
        // That message goes too; an unknown one takes back everything.
        return outline.truncate(outline.index_of(&id).unwrap_or(0));
    }
    if let Some(set) = object.object("$set") {
        take_facts(facts, &set);
        let messages = set.list("messages");
        if !messages.is_empty() {
            // Read from the raw text, where the offsets are.
            outline.truncate(0);
            if let Some(raw) = Object::parse(row.text).and_then(|row_| row_.object("$set")) {
                take_messages(outline, facts, row, &raw);
            }
        }
        return;
    }
    if let Some(id) = object.text("id") {
        outline.put(&id, row.entry());
        return take_message(facts, object);
    }
    if object.text("sessionId").is_some() {
        return take_facts(facts, object);
    }
    outline.push(row.entry());
}

pub fn take_document(outline: &mut Outline, facts: &mut Facts, text: &str) {
    let row = Row { offset: 0, len: 0, text, digest: 0, is_head: false };
    let readable = json::replace_lone_surrogates(text);
    if let Some(object) = Object::parse(&readable) {
        take_facts(facts, &object);
    }
    if let Some(object) = Object::parse(text) {
        take_messages(outline, facts, &row, &object);
    }
}

fn take_messages(outline: &mut Outline, facts: &mut Facts, row: &Row, object: &Object) {
    for value in object.list("messages") {
        let message = element(row, row.text, value);
        let readable = json::replace_lone_surrogates(message.text);
        let Some(object) = Object::parse(&readable) else { continue };
        match object.text("id") {
            Some(id) => outline.put(&id, message.entry()),
            None => outline.push(message.entry()),
        };
        take_message(facts, &object);
    }
}

fn take_facts(facts: &mut Facts, object: &Object) {
    if let Some(id) = object.text("sessionId") {
        facts.native_id = Some(id.into_owned());
    }
    if object.text("kind").as_deref() == Some("subagent") {
        facts.is_subagent = true;
    }
    if let Some(summary) = object.text("summary") {
        facts.set_title(MADE, &summary);
    }
    for folder in object.list("directories") {
        facts.add_cwd(json::string(folder));
    }
}

fn take_message(facts: &mut Facts, object: &Object) {
    match object.text("type").as_deref() {
        Some("user") => {
            facts.turn = Turn::Agent;
            facts.set_title(ASKED, &text_of(object.get("content")));
        }
        Some("gemini") => facts.turn = Turn::User,
        _ => {}
    }
}

pub fn describe(object: &Object) -> Described {
    let role = match object.text("type").as_deref() {
        Some("user") => "user",
        Some("gemini") => "assistant",
        _ => "system",
    };
    let mut text = text_of(object.get("content"));
    for call in object.list("toolCalls") {
        if let Some(call) = Object::parse(call.get()) {
            let arguments = call.get("args").map_or("", |args| args.get());
            add(&mut text, &format!("{} {arguments}", call.text("name").unwrap_or_default()));
        }
    }
    Described { role, text }
}
