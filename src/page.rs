//! Pages of lists that go by a key. The token holds the last key and a hash of the list it
//! belongs to, so it serves no other team, principal or filter. Sessions page over snapshots
//! instead (`domain/session_list.rs`).
use crate::api::Call;
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{Id, hex};
use crate::limits::{CURSOR_CHARS_MAX, PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

/// The query of a list without filters.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    pub limit: Option<i64>,
    pub cursor: Option<String>,
}

pub fn limit(asked: Option<i64>) -> Result<usize> {
    let Some(limit) = asked else { return Ok(PAGE_ITEMS_DEFAULT) };
    #[allow(clippy::cast_possible_wrap)] // A small constant.
    guard::in_range("limit", limit, 1..=PAGE_ITEMS_MAX as i64)?;
    Ok(usize::try_from(limit).unwrap_or(PAGE_ITEMS_DEFAULT))
}

pub fn invalid_cursor() -> Error {
    Error::new(Code::InvalidCursor, "this cursor belongs to another list; begin without one")
}

/// What a cursor is bound to: the caller, the list and its filters.
pub fn filters_hash(call: &Call, filters: &str) -> String {
    let who = &call.who;
    let list = [who.team_id.as_str(), who.principal_id.as_str(), call.list_name, filters];
    hex(&Sha256::digest(list.join("\n"))[..16])
}

/// A page by key: where it begins and how many items it holds.
pub struct Keyset {
    hash: String,
    pub limit: usize,
    /// The last key of the page before.
    pub after: Option<String>,
}

impl Keyset {
    pub fn new(call: &Call, filters: &str, query: &PageQuery) -> Result<Keyset> {
        Keyset::over(filters_hash(call, filters), query)
    }

    /// As `new`, for a list whose cursors are bound to `hash`.
    pub fn over(hash: String, query: &PageQuery) -> Result<Keyset> {
        let after = match &query.cursor {
            None => None,
            Some(token) => Some(key_of(token, &hash).ok_or_else(invalid_cursor)?),
        };
        Ok(Keyset { hash, limit: limit(query.limit)?, after })
    }

    /// The key to go on behind; '' sorts before every key.
    pub fn after(&self) -> &str {
        self.after.as_deref().unwrap_or_default()
    }

    /// The page of rows read with one more than the limit, and the token of the next one.
    pub fn page<T>(&self, mut rows: Vec<(String, T)>) -> (Vec<T>, Option<String>) {
        let more = rows.len() > self.limit;
        rows.truncate(self.limit);
        let next = rows.last().filter(|_| more).map(|(key, _)| self.token(key));
        (rows.into_iter().map(|(_, item)| item).collect(), next)
    }

    /// As `page`, for a list whose filter passes over rows: a page that is short because the
    /// request has looked at enough of them ends at the last one it looked at.
    pub fn page_of_examined<T>(
        &self,
        rows: Vec<(String, T)>,
        last_examined: impl FnOnce() -> Result<Option<String>>,
    ) -> Result<(Vec<T>, Option<String>)> {
        let (items, next) = self.page(rows);
        match next {
            Some(token) => Ok((items, Some(token))),
            None => Ok((items, last_examined()?.map(|key| self.token(&key)))),
        }
    }

    pub fn token(&self, key: &str) -> String {
        URL_SAFE_NO_PAD.encode(format!("{}{key}", self.hash))
    }
}

fn key_of(token: &str, hash: &str) -> Option<String> {
    if token.len() > CURSOR_CHARS_MAX {
        return None;
    }
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    text.strip_prefix(hash).map(str::to_owned)
}
