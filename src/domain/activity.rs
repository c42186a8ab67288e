//! Activity: whose turn it is in the sessions that a machine's agents have open.
use crate::error::Result;
use crate::guard;
use crate::ids::{SourceId, TeamId};
use crate::limits::{HARNESS_CHARS_MAX, NATIVE_ID_CHARS_MAX, SAFE_INTEGER_MAX, TURN_CHARS_MAX};
use crate::params;
use crate::store::Tx;

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activity {
    pub harness: String,
    pub native_id: String,
    pub turn: String,
    #[serde(default)]
    pub since: Option<i64>,
}

impl Activity {
    pub fn validate(&self, field: &str) -> Result<()> {
        guard::line(&format!("{field}.harness"), &self.harness, HARNESS_CHARS_MAX)?;
        guard::line(&format!("{field}.native_id"), &self.native_id, NATIVE_ID_CHARS_MAX)?;
        guard::line(&format!("{field}.turn"), &self.turn, TURN_CHARS_MAX)?;
        guard::in_range(&format!("{field}.since"), self.since.unwrap_or(0), 0..=SAFE_INTEGER_MAX)
    }
}

/// Makes the source's stored activity that of the heartbeat; `wanted` is
/// `[[harness, native id, turn, since]]`.
pub fn replace(tx: &Tx, team_id: &TeamId, source_id: &SourceId, wanted: &str) -> Result<()> {
    tx.execute(
        "DELETE FROM session_activity
          WHERE team_id = ?1 AND source_id = ?2
            AND (harness, native_id) NOT IN (SELECT value ->> 0, value ->> 1
                                               FROM json_each(?3))",
        params![team_id, source_id, wanted],
    )?;
    tx.execute(
        "INSERT INTO session_activity
             (team_id, source_id, harness, native_id, turn, since, observed_at)
         SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2, value ->> 3, ?4
           FROM json_each(?3)
          WHERE true
         ON CONFLICT (team_id, source_id, harness, native_id)
         DO UPDATE SET turn = excluded.turn, since = excluded.since,
                       observed_at = excluded.observed_at
                 WHERE turn <> excluded.turn OR since IS NOT excluded.since",
        params![team_id, source_id, wanted, tx.now_ms],
    )
}
