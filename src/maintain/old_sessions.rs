//! Sessions that nothing has changed for the team's `sessions_days` are deleted as by a member.
use super::retention;
use super::work::{AT_ONCE, Batch, Walks, Work};
use crate::domain::sessions;
use crate::error::Result;
use crate::ids::SessionId;
use crate::limits::{DAY_MS, SAFE_INTEGER_MAX};
use crate::params;
use crate::store::{Db, Tx};

/// One costs about 40 units, with its event.
const SESSIONS_MAX: usize = 8;

/// What is deleted already goes first, so that sessions on their way out do not pile up at the
/// front of those that age.
pub fn due(db: &Db, walks: &Walks) -> Result<Option<i64>> {
    let due_at = retention::next(db, "sessions")?;
    if due_at.is_none_or(|at| at > db.now_ms) || !walks.any_open(&["sessions"]) {
        let waits = super::sessions::due(db, walks)? == Some(AT_ONCE);
        return Ok(due_at.filter(|at| *at > db.now_ms || !waits));
    }
    Ok(None)
}

pub fn batch(tx: &Tx, work: &mut Work) -> Result<Batch> {
    let Some(due) = retention::first(tx, "sessions")? else { return Ok(Batch::Done) };
    let Some(retention) = &due.retention else {
        due.set(tx, None)?;
        return Ok(Batch::More);
    };
    let Some(days) = retention.sessions_days else {
        // Kept, so that the next session's insert need not make it again.
        due.set(tx, Some(SAFE_INTEGER_MAX))?;
        return Ok(Batch::More);
    };
    let age_ms = days * DAY_MS;
    let front = tx.query(
        "SELECT id, updated_at, deleted_at IS NOT NULL
           FROM sessions
          WHERE team_id = ?1
          ORDER BY updated_at
          LIMIT ?2",
        params![&due.team_id, SESSIONS_MAX],
        |row| Ok((row.get::<SessionId>()?, row.get::<i64>()?, row.get::<bool>()?)),
    )?;
    let young = front.iter().find(|(_, updated_at, _)| updated_at + age_ms > tx.now_ms);
    let mut next = match young {
        Some((_, updated_at, _)) => Some(updated_at + age_ms),
        None => (front.len() == SESSIONS_MAX).then_some(tx.now_ms),
    };
    for (session_id, updated_at, is_deleted) in &front {
        if !is_deleted && updated_at + age_ms <= tx.now_ms {
            let spent = work.spent(tx);
            sessions::end(tx, &due.team_id, session_id, None)?;
            work.removed("sessions_aged", 1);
            if !work.has_room_for_another(tx, spent) {
                next = Some(tx.now_ms);
                break;
            }
        }
    }
    due.set(tx, next)?;
    Ok(Batch::Done)
}
