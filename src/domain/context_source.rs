//! A context's source events, and the first thing that its user said.
use crate::api::{Answer, Call};
use crate::domain::context_access::{self, APP_SCOPE, Capability, ScopeQuery};
use crate::domain::context_checkpoints;
use crate::domain::context_values::Stored;
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::TeamId;
use crate::limits::{SAFE_INTEGER_MAX, VALUE_WHOLE_BYTES_MAX};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::Db;
use crate::text;
use serde::de::{DeserializeSeed, IgnoredAny, SeqAccess, Visitor};
use serde_json::{Value as Json, json};
use std::io::Read;
use std::ops::RangeInclusive;

/// An event as it comes in; its place in the conversation is the server's to say.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    pub kind: String,
    pub role: String,
    #[serde(default)]
    pub tool_call_id: Option<String>,
    #[serde(default)]
    pub payload_ref: Option<String>,
    pub size: i64,
    pub provenance: String,
    pub redaction_status: String,
}

#[derive(serde::Serialize)]
pub struct Placed {
    pub sequence: i64,
    #[serde(flatten)]
    pub event: Event,
    pub created_at: i64,
}

/// A page of events by sequence, within a range if asked.
pub fn page(
    db: &Db,
    call: &Call,
    context_id: &str,
    query: &PageQuery,
    range: Option<RangeInclusive<i64>>,
) -> Result<(Vec<Placed>, Option<String>)> {
    let range = range.unwrap_or(0..=SAFE_INTEGER_MAX);
    let filters = format!("{context_id}\n{}-{}", range.start(), range.end());
    let keyset = Keyset::new(call, &filters, query)?;
    let after = keyset.after().parse::<i64>().unwrap_or(-1).max(range.start() - 1);
    let events = read(db, &call.who.team_id, context_id, after, *range.end(), keyset.limit + 1)?;
    let events = events.into_iter().map(|placed| (placed.sequence.to_string(), placed));
    Ok(keyset.page(events.collect()))
}

/// Up to so many events behind `after`.
pub fn read(
    db: &Db,
    team_id: &TeamId,
    context_id: &str,
    after: i64,
    last: i64,
    limit: usize,
) -> Result<Vec<Placed>> {
    db.query(
        "SELECT sequence, kind, role, tool_call_id, payload_ref, size, provenance,
                redaction_status, created_at
           FROM context_events
          WHERE team_id = ?1 AND context_id = ?2 AND sequence > ?3 AND sequence <= ?4
          ORDER BY sequence
          LIMIT ?5",
        params![team_id, context_id, after, last, limit],
        |row| {
            Ok(Placed {
                sequence: row.get()?,
                event: Event {
                    kind: row.get()?,
                    role: row.get()?,
                    tool_call_id: row.get()?,
                    payload_ref: row.get()?,
                    size: row.get()?,
                    provenance: row.get()?,
                    redaction_status: row.get()?,
                },
                created_at: row.get()?,
            })
        },
    )
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceQuery {
    workspace: Option<String>,
    worktree: Option<String>,
    instance: Option<String>,
    from: Option<i64>,
    to: Option<i64>,
    limit: Option<i64>,
    cursor: Option<String>,
}

/// `GET /contexts/{context}/source?from=&to=` lists events by sequence, both ends included. What
/// is not there is simply absent.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let SourceQuery { workspace, worktree, instance, from, to, limit, cursor } = call.query()?;
    context_access::context_id(call)?;
    let scope = ScopeQuery { workspace, worktree, instance }.scope()?;
    let (from, to) = (from.unwrap_or(0), to.unwrap_or(SAFE_INTEGER_MAX));
    guard::in_range("from", from, 0..=SAFE_INTEGER_MAX)?;
    guard::in_range("to", to, 0..=SAFE_INTEGER_MAX)?;
    if from > to {
        return Err(Error::field("from", "must not be behind to"));
    }
    let query = PageQuery { limit, cursor };
    crate::page::limit(query.limit)?;
    let capability = Capability::read(call)?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;
    let context = context_access::usable(db, &call.who, (&scope, call.segment(0)), &capability)?;

    let (events, next) = page(db, call, &context.id, &query, Some(from..=to))?;
    call.list(&events, next.as_deref())
}

/// `GET /contexts/{context}/first-user-message` answers `{text}`: what the earliest checkpoint's
/// first message of a user says, or nothing. It needs no capability.
pub fn first_user_message(db: &Db, call: &Call) -> Result<Answer> {
    context_access::context_id(call)?;
    let scope = context_access::scope(call)?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;
    let context = crate::domain::contexts::load(db, &call.who.team_id, call.segment(0))?;
    let context = context.ok_or_else(Error::not_found)?;
    if !context_access::is_subjects(&call.who, &scope, &context) {
        return Err(context_access::principal_mismatch());
    }

    let earliest = context_checkpoints::earliest(db, &call.who.team_id, &context.id)?;
    let text = match earliest.and_then(|earliest| earliest.stored) {
        None => None,
        Some(stored) => first_text(db, &stored)?,
    };
    call.one(200, &json!({ "text": text.unwrap_or_default() }))
}

fn first_text(db: &Db, stored: &Stored) -> Result<Option<String>> {
    if stored.size > VALUE_WHOLE_BYTES_MAX {
        return Ok(FirstUserText::find(stored.reader(db)));
    }
    let mut bytes = Vec::new();
    let read = stored.reader(db).read_to_end(&mut bytes);
    read.map_err(|error| Error::internal(error.to_string()))?;
    let whole = String::from_utf8_lossy(&bytes);
    let whole = text::replace_lone_surrogates(&whole);
    // Some clients keep their messages as a text that holds them.
    let inner = serde_json::from_str::<String>(&whole).ok();
    Ok(FirstUserText::find(inner.as_deref().unwrap_or(&whole).as_bytes()))
}

/// The frame in which memory is put before a conversation; it is no user's message.
const MEMORY_NAME: &str = "core-memory-context";
const MEMORY_LEAD: &str = "<core-memory-context>";

/// Reads a list of messages one by one, up to the one that is looked for.
struct FirstUserText<'a>(&'a mut Option<String>);

impl FirstUserText<'_> {
    /// What cannot be read holds nothing.
    fn find(from: impl Read) -> Option<String> {
        let mut found = None;
        let mut reader = serde_json::Deserializer::from_reader(std::io::BufReader::new(from));
        let _ = FirstUserText(&mut found).deserialize(&mut reader);
        found
    }
}

impl<'de> DeserializeSeed<'de> for FirstUserText<'_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for FirstUserText<'_> {
    type Value = ();
    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("a list of messages")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut messages: A) -> Result<(), A::Error> {
        #[derive(serde::Deserialize)]
        struct Message {
            #[serde(default)]
            role: Json,
            #[serde(default)]
            name: Json,
            #[serde(default)]
            content: Json,
        }
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Item {
            Message(Message),
            Other(IgnoredAny),
        }
        while let Some(item) = messages.next_element::<Item>()? {
            let Item::Message(Message { role, name, content }) = item else { continue };
            let is_memory = |text: &str| name == MEMORY_NAME || text.starts_with(MEMORY_LEAD);
            let text = content.as_str().filter(|text| !text.is_empty() && !is_memory(text));
            if let (true, Some(text)) = (role == "user", text) {
                *self.0 = Some(text.to_owned());
                break;
            }
        }
        Ok(())
    }
}
