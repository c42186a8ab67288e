//! Roots: the folders of a machine that its connector offers to rules, as its heartbeat says.
use crate::api::{Answer, Call};
use crate::domain::machines;
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{MachineId, TeamId};
use crate::limits::{HARNESS_CHARS_MAX, NAME_CHARS_MAX, RULE_ITEMS_MAX};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Tx};

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Root {
    pub id: String,
    pub name: String,
    pub harnesses: Vec<String>,
}

impl Root {
    pub fn validate(&self, field: &str) -> Result<()> {
        guard::line(&format!("{field}.id"), &self.id, NAME_CHARS_MAX)?;
        guard::name(&format!("{field}.name"), &self.name, NAME_CHARS_MAX)?;
        guard::at_most(&format!("{field}.harnesses"), self.harnesses.len(), RULE_ITEMS_MAX)?;
        for (index, harness) in self.harnesses.iter().enumerate() {
            guard::line(&format!("{field}.harnesses[{index}]"), harness, HARNESS_CHARS_MAX)?;
        }
        Ok(())
    }
}

/// `GET /machines/{machine}/roots` lists a machine's roots, by id.
///
/// `403` unless the caller is its custodian or an admin.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, call.segment(0), &query)?;
    let machine = machines::load_governed(db, call)?;

    let roots = db.query(
        "SELECT value_json
           FROM machine_roots
          WHERE team_id = ?1 AND machine_id = ?2 AND id > ?3
          ORDER BY id
          LIMIT ?4",
        params![&call.who.team_id, &machine.id, page.after(), page.limit + 1],
        |row| {
            let root: Root = serde_json::from_str(&row.get::<String>()?)
                .map_err(|e| Error::internal(format!("a root's value_json: {e}")))?;
            Ok((root.id.clone(), root))
        },
    )?;

    let (items, next) = page.page(roots);
    call.list(&items, next.as_deref())
}

/// Makes the stored roots those of the heartbeat; `wanted` is `[[id, value]]`.
pub fn replace(tx: &Tx, team_id: &TeamId, machine_id: &MachineId, wanted: &str) -> Result<()> {
    tx.execute(
        "DELETE FROM machine_roots
          WHERE team_id = ?1 AND machine_id = ?2
            AND id NOT IN (SELECT value ->> 0 FROM json_each(?3))",
        params![team_id, machine_id, wanted],
    )?;
    tx.execute(
        "INSERT INTO machine_roots (team_id, machine_id, id, value_json)
         SELECT ?1, ?2, value ->> 0, value ->> 1 FROM json_each(?3) WHERE true
         ON CONFLICT (team_id, machine_id, id)
         DO UPDATE SET value_json = excluded.value_json
                 WHERE value_json <> excluded.value_json",
        params![team_id, machine_id, wanted],
    )
}
