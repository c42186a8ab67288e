//! Frames down the links of machines. What the log says of work for a machine is sent as it is
//! recorded; what was recorded before a machine links is sent when it does.
use crate::domain::effects::{self, Unsent};
use crate::domain::follow::{self, Watched};
use crate::domain::links::Link;
use crate::domain::live::Live;
use crate::error::{Error, Result};
use crate::ids::{ContinuationId, Id, MachineId, OperationId, SourceId, TeamId};
use crate::json;
use crate::limits::{CONTINUATIONS_TOLD_MAX, OVERDUE_AGE_MS, ROWS_FILTERED_AT_ONCE};
use crate::params;
use crate::store::Db;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;

/// A frame and whom it is for.
#[derive(Debug, PartialEq, Eq)]
pub struct Down {
    /// Nothing: all machines of the team.
    pub machine_id: Option<MachineId>,
    pub frame: String,
    /// A link that has effects before this one yet to come gets it after those.
    pub is_effect: bool,
}

impl Down {
    fn to(machine_id: &MachineId, frame: String) -> Down {
        Down { machine_id: Some(machine_id.clone()), frame, is_effect: false }
    }
}

/// What the team's events behind `after`, up to `newest`, have to say to machines.
pub fn of_events(db: &Db, team_id: &TeamId, after: i64, newest: i64) -> Result<Vec<Down>> {
    let (mut found, mut configured, mut after) = (Vec::new(), BTreeSet::new(), after);
    while after < newest {
        let events = db.query(
            "SELECT sequence, type, resource_id, source_id, value_json
               FROM org_events
              WHERE team_id = ?1 AND sequence > ?2 AND sequence <= ?3
              ORDER BY sequence
              LIMIT ?4",
            params![team_id, after, newest, ROWS_FILTERED_AT_ONCE],
            |row| {
                after = row.get()?;
                Ok(Said {
                    name: row.get()?,
                    resource_id: row.get()?,
                    source_id: row.get()?,
                    data: row.get()?,
                })
            },
        )?;
        if events.is_empty() {
            break;
        }
        for event in events {
            event.for_machines(db, team_id, &mut found, &mut configured)?;
        }
    }
    let all = configured.contains(&None);
    for machine_id in configured.into_iter().filter(|machine| machine.is_none() || !all) {
        found.push(Down { machine_id, frame: configuration()?, is_effect: false });
    }
    Ok(found)
}

/// An event, as far as machines are concerned.
struct Said {
    name: String,
    resource_id: String,
    source_id: Option<SourceId>,
    data: String,
}

/// Of an operation's or a continuation's data.
#[derive(serde::Deserialize)]
struct Asked {
    machine_id: Option<MachineId>,
    state: String,
}

impl Said {
    /// Adds the frames to `found`, and to `configured` whose configuration has changed.
    fn for_machines(
        self,
        db: &Db,
        team_id: &TeamId,
        found: &mut Vec<Down>,
        configured: &mut BTreeSet<Option<MachineId>>,
    ) -> Result<()> {
        let asked = || {
            let asked: Asked = serde_json::from_str(&self.data)
                .map_err(|e| Error::internal(format!("an event's value_json: {e}")))?;
            let machine_id = asked.machine_id.filter(|_| asked.state == "pending");
            Ok::<_, Error>(machine_id)
        };
        match self.name.as_str() {
            "operation.changed" => {
                if let Some(machine_id) = asked()? {
                    let operation_id = OperationId::parse(&self.resource_id);
                    let operation_id = operation_id.ok_or_else(|| Error::internal("an id"))?;
                    let effects = effects::of_operation(db, team_id, &machine_id, &operation_id)?;
                    found.extend(
                        effects
                            .into_iter()
                            .map(|frame| Down { is_effect: true, ..Down::to(&machine_id, frame) }),
                    );
                }
            }
            "continuation.changed" => {
                if let Some(machine_id) = asked()? {
                    found.push(Down::to(&machine_id, continuation(&self.resource_id)?));
                }
            }
            "authorization_changed" => drop(configured.insert(None)),
            "source.changed" => {
                let machine_id = db.query_optional(
                    "SELECT machine_id FROM sources WHERE team_id = ?1 AND id = ?2",
                    params![team_id, self.source_id.as_ref()],
                    |row| row.get::<Option<MachineId>>(),
                )?;
                if let Some(Some(machine_id)) = machine_id {
                    configured.insert(Some(machine_id));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// What a machine that has just linked is told: what was asked of it meanwhile, and which of its
/// sessions somebody follows. Answers the frames, and the effects that are yet to come.
pub fn at_link(db: &Db, link: &Link, live: &Live) -> Result<(Vec<String>, Option<Unsent>)> {
    let (mut frames, unsent) = effects::pending(db, &link.team_id, &link.machine_id, None)?;
    let continuations = db.query(
        "SELECT id
           FROM continuations
          WHERE team_id = ?1 AND machine_id = ?2 AND state = 'pending' AND updated_at > ?3
          LIMIT ?4",
        params![
            &link.team_id,
            &link.machine_id,
            db.now_ms - OVERDUE_AGE_MS,
            CONTINUATIONS_TOLD_MAX
        ],
        |row| row.get::<ContinuationId>(),
    )?;
    for id in continuations {
        frames.push(continuation(&id.to_string())?);
    }
    if !live.followed.is_empty() {
        let source_id = db.query_optional(
            "SELECT id FROM sources WHERE team_id = ?1 AND machine_id = ?2 LIMIT 1",
            params![&link.team_id, &link.machine_id],
            |row| row.get::<SourceId>(),
        )?;
        for watched in follow::watched(db, &link.team_id, source_id.as_ref(), live)? {
            frames.push(watch(&watched, true)?);
        }
    }
    Ok((frames, unsent))
}

fn continuation(id: &str) -> Result<String> {
    sent("continuation", &json!({ "id": id }))
}

pub fn configuration() -> Result<String> {
    sent("configuration_changed", &json!({}))
}

/// Somebody follows a machine's session, or nobody does any more.
pub fn watch(Watched { harness, native_id }: &Watched, on: bool) -> Result<String> {
    sent("watch", &json!({ "harness": harness, "native_id": native_id, "on": on }))
}

/// A frame to a connector.
pub fn sent(name: &str, fields: &impl Serialize) -> Result<String> {
    #[derive(Serialize)]
    struct Frame<'a, T> {
        r#type: &'a str,
        #[serde(flatten)]
        fields: &'a T,
    }
    json::to_string(&Frame { r#type: name, fields })
}
