//! A capture's parts: messages in any order, each part once.
//!
//! A message is kept as it was sent, byte for byte; only its digest, role and searched text are
//! taken from it.
use crate::api::{Answer, Call};
use crate::domain::captures::{self, Held};
use crate::domain::publishing;
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::hex;
use crate::json;
use crate::limits::{
    CAPTURE_BYTES_MAX, CAPTURE_MESSAGES_MAX, CAPTURE_PARTS_MAX, MESSAGE_BYTES_MAX,
    PART_MESSAGES_MAX, ROLE_CHARS_MAX, SAFE_INTEGER_MAX,
};
use crate::params;
use crate::store::Tx;
use crate::text;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// 128 bits tell a message from what it was before.
const DIGEST_BYTES: usize = 16;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Part<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

/// What the plane reads of a message; all else in it is the agent's.
pub struct Message {
    pub ordinal: i64,
    pub role: String,
    /// If that is a string.
    pub text: Option<String>,
}

impl Message {
    /// Reads a message as sent. A surrogate without its half reads as U+FFFD.
    pub fn read(sent: &str) -> Result<Message> {
        #[derive(serde::Deserialize)]
        struct Fields<'a> {
            ordinal: i64,
            role: String,
            #[serde(default, borrow)]
            text: Option<&'a RawValue>,
        }
        let readable = text::replace_lone_surrogates(sent);
        let Fields { ordinal, role, text } = json::borrowed(&readable)?;
        let text = text.and_then(|raw| serde_json::from_str(raw.get()).ok());
        Ok(Message { ordinal, role, text })
    }

    pub fn searched_text(&self, sent: &str) -> String {
        text::searched_text(&text::replace_lone_surrogates(sent), self.text.as_deref())
    }
}

pub fn digest(message: &str) -> String {
    hex(&Sha256::digest(message)[..DIGEST_BYTES])
}

/// `PUT /captures/{capture}/parts/{index}` stores a part; the same part again changes nothing.
///
/// `409 conflict` for other content under the same index, and once the capture has left staging;
/// `413` for a message, or with the part that makes the capture, too large.
pub fn put(tx: &Tx, call: &Call) -> Result<Answer> {
    let index = call.number(1)?;
    let body = std::str::from_utf8(call.bytes()).map_err(|_| json::not_utf8())?;
    let part: Part = json::borrowed(body)?;
    guard::in_range("index", index, 0..=CAPTURE_PARTS_MAX - 1)?;
    guard::at_most("messages", part.messages.len(), PART_MESSAGES_MAX)?;
    let digests = digests(&part.messages)?;
    let held = captures::mine(tx, &call.who, &call.id(0)?)?;

    let digest = digest(body);
    let stored = tx.query_optional(
        "SELECT digest FROM capture_parts
          WHERE team_id = ?1 AND capture_id = ?2 AND part_index = ?3",
        params![&call.who.team_id, &held.capture_id, index],
        |row| row.get::<String>(),
    )?;
    if let Some(stored) = stored {
        let message = format!("part {index} is there with other content");
        return if stored == digest {
            Ok(Answer::no_content())
        } else {
            Err(Error::conflict(message))
        };
    }
    if held.state != "staging" {
        return Err(Error::conflict(format!("the capture is {}", held.state)));
    }
    publishing::source(tx, &call.who, Some(&held.source_id))?;
    insert(tx, call, &held, index, &digest, &part, &digests)?;

    Ok(Answer::no_content())
}

fn digests(messages: &[&RawValue]) -> Result<BTreeMap<i64, String>> {
    let mut digests = BTreeMap::new();
    for (index, sent) in messages.iter().enumerate() {
        let (sent, field) = (sent.get(), format!("messages[{index}]"));
        if !sent.starts_with('{') {
            return Err(Error::field(field, "must be an object"));
        }
        if sent.len() > MESSAGE_BYTES_MAX {
            return Err(Error::too_large(MESSAGE_BYTES_MAX, "a message").with("field", field));
        }
        let Message { ordinal, role, .. } =
            Message::read(sent).map_err(|error| json::within(&field, error))?;
        guard::in_range(&format!("{field}.ordinal"), ordinal, 0..=SAFE_INTEGER_MAX - 1)?;
        guard::name(&format!("{field}.role"), &role, ROLE_CHARS_MAX)?;
        if digests.insert(ordinal, digest(sent)).is_some() {
            return Err(Error::field(format!("{field}.ordinal"), "is there twice"));
        }
    }
    Ok(digests)
}

fn insert(
    tx: &Tx,
    call: &Call,
    held: &Held,
    index: i64,
    digest: &str,
    part: &Part,
    digests: &BTreeMap<i64, String>,
) -> Result<()> {
    let count = i64::try_from(part.messages.len()).unwrap_or(i64::MAX);
    let messages: Vec<&str> = part.messages.iter().map(|raw| raw.get()).collect();
    let messages_json = format!("[{}]", messages.join(","));
    let bytes = i64::try_from(messages_json.len()).unwrap_or(i64::MAX);
    if held.message_count + count > CAPTURE_MESSAGES_MAX {
        return Err(Error::new(
            crate::error::Code::TooLarge,
            format!("a capture may have at most {CAPTURE_MESSAGES_MAX} messages; go on by base"),
        )
        .with("limit", CAPTURE_MESSAGES_MAX));
    }
    if held.bytes + bytes > CAPTURE_BYTES_MAX {
        let limit = usize::try_from(CAPTURE_BYTES_MAX).unwrap_or(usize::MAX);
        return Err(Error::too_large(limit, "a capture"));
    }
    let digests_json = json::to_string(digests)?;
    tx.execute(
        "INSERT INTO capture_parts
             (team_id, capture_id, part_index, digest, messages_json, digests_json, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            &call.who.team_id,
            &held.capture_id,
            index,
            digest,
            &messages_json,
            &digests_json,
            tx.now_ms
        ],
    )?;
    tx.execute(
        "UPDATE captures
            SET part_count = part_count + 1, message_count = message_count + ?3,
                bytes = bytes + ?4
          WHERE team_id = ?1 AND id = ?2",
        params![&call.who.team_id, &held.capture_id, count, bytes],
    )
}
