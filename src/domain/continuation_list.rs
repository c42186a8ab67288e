//! Listing continuations (`continuations.rs`).
use crate::api::{Answer, Call};
use crate::auth::Principal;
use crate::domain::{continuations, visibility};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{ContinuationId, Id, MachineId};
use crate::limits::ROWS_EXAMINED_MAX;
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Row};
use serde_json::json;
use std::collections::HashSet;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    machine_id: Option<MachineId>,
    state: Option<State>,
    limit: Option<i64>,
    cursor: Option<String>,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Pending,
    Accepted,
    Completed,
    Failed,
    Expired,
}

impl State {
    fn text(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Accepted => "accepted",
            State::Completed => "completed",
            State::Failed => "failed",
            State::Expired => "expired",
        }
    }
}

/// `GET /continuations` lists those that the caller may see, by id: its own, a machine's, and those
/// of sessions that it sees.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let ListQuery { machine_id, state, limit, cursor } = call.query()?;
    let state = state.map(State::text);
    let filters = json!([machine_id, state]).to_string();
    let page = Keyset::new(call, &filters, &PageQuery { limit, cursor })?;
    guard::reads(&call.who, visibility::READ_SCOPE)?;

    let examined = db.query(
        "SELECT id, session_id, machine_id, principal_id, state
           FROM continuations
          WHERE team_id = ?1 AND id > ?2
          ORDER BY id
          LIMIT ?3",
        params![&call.who.team_id, page.after(), ROWS_EXAMINED_MAX],
        |row| Examined::read(row),
    )?;
    let last = (examined.len() == ROWS_EXAMINED_MAX)
        .then(|| examined.last().map(|one| one.id.clone()))
        .flatten();
    let wanted = |one: &Examined| {
        machine_id.as_ref().is_none_or(|id| one.machine_id.as_deref() == Some(id.as_str()))
            && state.is_none_or(|state| one.state == state)
    };
    let asked: Vec<Examined> = examined.into_iter().filter(wanted).collect();
    let sessions = asked.iter().map(|one| one.session_id.clone()).collect();
    let sessions = visibility::sessions_seen(db, &call.who, &sessions)?;
    let rows = asked
        .into_iter()
        .filter(|one| one.is_seen_by(&call.who, &sessions))
        .take(page.limit + 1)
        .map(|one| {
            let id = ContinuationId::parse(&one.id).ok_or_else(Error::not_found)?;
            Ok((one.id, continuations::load(db, &call.who, &id)?))
        })
        .collect::<Result<Vec<_>>>()?;

    let (items, next) = page.page_of_examined(rows, || Ok(last))?;
    call.list(&items, next.as_deref())
}

struct Examined {
    id: String,
    session_id: String,
    machine_id: Option<String>,
    principal_id: String,
    state: String,
}

impl Examined {
    fn read(row: &mut Row) -> Result<Examined> {
        Ok(Examined {
            id: row.get()?,
            session_id: row.get()?,
            machine_id: row.get()?,
            principal_id: row.get()?,
            state: row.get()?,
        })
    }

    fn is_seen_by(&self, who: &Principal, sessions: &HashSet<String>) -> bool {
        let machine_id = who.machine_id.as_ref().map(Id::as_str);
        self.principal_id == who.principal_id.as_str()
            || (machine_id.is_some() && self.machine_id.as_deref() == machine_id)
            || sessions.contains(&self.session_id)
    }
}
