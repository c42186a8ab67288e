//! Logs and lists that age by their team's own days: `retention_due` says when each next has
//! something to lose, so that a team with nothing due is not looked at.
use crate::domain::teams::Retention;
use crate::error::Result;
use crate::ids::TeamId;
use crate::params;
use crate::store::{Db, Tx};

/// The team that has waited longest.
pub struct Due {
    pub team_id: TeamId,
    step: &'static str,
    was_due_at: i64,
    /// Nothing where the team is gone.
    pub retention: Option<Retention>,
    /// Whether it is being wiped or deleted.
    pub is_removing: bool,
}

pub fn next(db: &Db, step: &'static str) -> Result<Option<i64>> {
    db.query_one("SELECT min(due_at) FROM retention_due WHERE step = ?1", params![step], |row| {
        row.get()
    })
}

pub fn first(tx: &Tx, step: &'static str) -> Result<Option<Due>> {
    tx.query_optional(
        "SELECT d.team_id, d.due_at,
                (SELECT retention_json FROM teams WHERE id = d.team_id),
                (SELECT removing IS NOT NULL FROM teams WHERE id = d.team_id)
           FROM retention_due AS d
          WHERE d.step = ?1 AND d.due_at <= ?2
          ORDER BY d.due_at
          LIMIT 1",
        params![step, tx.now_ms],
        |row| {
            let (team_id, was_due_at) = (row.get()?, row.get()?);
            let json: Option<String> = row.get()?;
            let retention = json.as_deref().map(Retention::from_column).transpose()?;
            let is_removing = row.get::<Option<bool>>()?.unwrap_or(false);
            Ok(Due { team_id, step, was_due_at, retention, is_removing })
        },
    )
}

impl Due {
    /// Sets when the team's turn comes again. With nothing left, the next row's insert does.
    pub fn set(&self, tx: &Tx, due_at: Option<i64>) -> Result<()> {
        match due_at {
            Some(due_at) if due_at == self.was_due_at => Ok(()),
            Some(due_at) => tx.execute(
                "UPDATE retention_due SET due_at = ?3 WHERE team_id = ?1 AND step = ?2",
                params![&self.team_id, self.step, due_at],
            ),
            None => tx.execute(
                "DELETE FROM retention_due WHERE team_id = ?1 AND step = ?2",
                params![&self.team_id, self.step],
            ),
        }
    }
}
