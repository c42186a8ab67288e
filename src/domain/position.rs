//! Positions in a team's logs: `<epoch>.<sequence>`. A wipe or an import begins a new epoch.
use crate::error::{Code, Error, Result};
use crate::ids::TeamId;
use crate::page::invalid_cursor;
use crate::params;
use crate::store::Db;

/// What a log's reader asks for.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    pub after: Option<String>,
    pub limit: Option<i64>,
}

/// Where a log stands.
pub struct Log {
    pub epoch: String,
    /// Entries up to here may be gone.
    pub pruned_through: i64,
    pub newest: i64,
}

impl Log {
    pub fn position(&self, sequence: i64) -> String {
        format!("{}.{sequence}", self.epoch)
    }

    /// The sequence to read behind; a bare integer means the current epoch, nothing the beginning.
    ///
    /// `400 invalid_cursor` for no position and above the newest; `410 events_pruned`, which says
    /// where to go on, for another epoch and for what may be gone.
    pub fn after(&self, asked: Option<&str>) -> Result<i64> {
        let Some(asked) = asked else { return Ok(self.pruned_through) };
        let (epoch, sequence) = match asked.split_once('.') {
            Some((epoch, sequence)) => (epoch, sequence),
            None => (&*self.epoch, asked),
        };
        let digits = !sequence.is_empty() && sequence.bytes().all(|b| b.is_ascii_digit());
        let sequence: i64 =
            sequence.parse().ok().filter(|_| digits).ok_or_else(invalid_position)?;
        if !crate::ids::is_hex(epoch, crate::limits::EPOCH_DIGITS) {
            return Err(invalid_position());
        }
        if epoch != self.epoch || sequence < self.pruned_through {
            let message = "what followed this position is gone; read anew what is current";
            return Err(Error::new(Code::EventsPruned, message)
                .with("resume_from", self.position(self.pruned_through)));
        }
        if sequence > self.newest {
            return Err(invalid_cursor());
        }
        Ok(sequence)
    }
}

fn invalid_position() -> Error {
    Error::new(Code::InvalidCursor, "after must be a position that this log has answered")
        .with("field", "after")
}

pub fn epoch(db: &Db, team_id: &TeamId) -> Result<String> {
    db.query_one("SELECT epoch FROM teams WHERE id = ?1", params![team_id], |row| row.get())
}
