//! Bindings: the sessions that agents on a machine have open, as its heartbeat says.
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{MachineId, SourceId, TeamId};
use crate::limits::{
    BINDING_VALUE_BYTES_MAX, HARNESS_CHARS_MAX, NAME_CHARS_MAX, NATIVE_ID_CHARS_MAX,
};
use crate::params;
use crate::store::{Db, Tx};
use serde_json::value::RawValue;

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    pub id: String,
    pub harness: String,
    pub native_id: String,
    /// The connector's own, kept as sent.
    #[serde(default)]
    pub value: Option<Box<RawValue>>,
}

impl Binding {
    pub fn validate(&self, field: &str) -> Result<()> {
        guard::line(&format!("{field}.id"), &self.id, NAME_CHARS_MAX)?;
        guard::line(&format!("{field}.harness"), &self.harness, HARNESS_CHARS_MAX)?;
        guard::line(&format!("{field}.native_id"), &self.native_id, NATIVE_ID_CHARS_MAX)?;
        let bytes = self.value.as_ref().map_or(0, |value| value.get().len());
        if bytes > BINDING_VALUE_BYTES_MAX {
            let message = format!("may have at most {BINDING_VALUE_BYTES_MAX} bytes");
            return Err(Error::field(format!("{field}.value"), message));
        }
        Ok(())
    }
}

/// Whose bindings they are.
pub struct Of<'a> {
    pub team_id: &'a TeamId,
    pub machine_id: &'a MachineId,
    pub source_id: Option<&'a SourceId>,
}

/// Makes the stored bindings those of the heartbeat, and answers which of them have no session:
/// nobody has published their origin. `wanted` is `[[id, value, harness, native id]]`.
///
/// A binding that is gone stays while an open attachment or a pending effect names it.
pub fn replace(tx: &Tx, of: &Of, wanted: &str) -> Result<Vec<String>> {
    let Of { team_id, machine_id, source_id } = *of;
    tx.execute(
        "DELETE FROM bindings
          WHERE team_id = ?1 AND machine_id = ?2
            AND id NOT IN (SELECT value ->> 0 FROM json_each(?3))
            AND id NOT IN (SELECT binding_id FROM attachments
                            WHERE team_id = ?1 AND machine_id = ?2
                              AND state IN ('pending', 'active'))
            AND id NOT IN (SELECT binding_id FROM native_effects
                            WHERE team_id = ?1 AND machine_id = ?2 AND state = 'pending'
                              AND binding_id IS NOT NULL)",
        params![team_id, machine_id, wanted],
    )?;
    tx.execute(
        "INSERT INTO bindings (team_id, machine_id, id, value_json, session_id)
         SELECT ?1, ?2, j.value ->> 0, j.value ->> 1,
                (SELECT o.session_id FROM origins o
                  WHERE o.team_id = ?1 AND o.source_id = ?4
                    AND o.harness = j.value ->> 2 AND o.native_id = j.value ->> 3)
           FROM json_each(?3) j
          WHERE true
         ON CONFLICT (team_id, machine_id, id)
         DO UPDATE SET value_json = excluded.value_json, session_id = excluded.session_id
                 WHERE value_json <> excluded.value_json
                    OR session_id IS NOT excluded.session_id",
        params![team_id, machine_id, wanted, source_id],
    )?;
    tx.query(
        "SELECT j.value ->> 0
           FROM json_each(?2) j
          WHERE NOT EXISTS (SELECT 1 FROM origins o
                             WHERE o.team_id = ?1 AND o.source_id = ?3
                               AND o.harness = j.value ->> 2 AND o.native_id = j.value ->> 3)",
        params![team_id, wanted, source_id],
        |row| row.get(),
    )
}

/// Refuses a binding that the machine has not.
pub fn must_exist(db: &Db, team_id: &TeamId, machine_id: &MachineId, id: &str) -> Result<()> {
    let there = db.query_one(
        "SELECT EXISTS (SELECT 1 FROM bindings
                         WHERE team_id = ?1 AND machine_id = ?2 AND id = ?3)",
        params![team_id, machine_id, id],
        |row| row.get::<bool>(),
    )?;
    if there {
        return Ok(());
    }
    let message = "the machine has no such binding, as far as its heartbeats say";
    Err(Error::new(Code::NotFound, message).with("field", "binding_id"))
}
