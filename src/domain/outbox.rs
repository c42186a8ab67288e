//! Which events become deliveries, and what a delivery says. Its row is written in the event's own
//! transaction and holds exactly the bytes that are signed and sent.
//!
//! Bodies are thin: they name what changed, and the app reads it with its token.
use crate::domain::events::Event;
use crate::error::Result;
use crate::ids::{AppId, DeliveryId, Id, SourceId, TeamId, hex};
use crate::json;
use crate::limits::APPS_MAX;
use crate::params;
use crate::store::Tx;
use crate::webhooks::time;
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

/// An event of the log, as far as a delivery tells of it.
pub struct Told<'a> {
    pub name: &'a str,
    pub position: &'a str,
    pub resource_kind: &'a str,
    pub resource_id: &'a str,
    pub source_id: Option<&'a str>,
    pub principal_id: Option<&'a str>,
    pub data: &'a Json,
    pub created_at: i64,
}

impl Told<'_> {
    /// The body: the event's type and time, and the ids that it names.
    pub fn body(&self, team_id: &TeamId) -> String {
        let mut ids = Map::new();
        for (name, value) in self.data.as_object().into_iter().flatten() {
            if value.is_string() && (name == "id" || name.ends_with("_id")) {
                ids.insert(name.clone(), value.clone());
            }
        }
        ids.insert("team_id".into(), json!(team_id));
        ids.insert("position".into(), json!(self.position));
        ids.insert("resource_kind".into(), json!(self.resource_kind));
        ids.insert("resource_id".into(), json!(self.resource_id));
        ids.insert("source_id".into(), json!(self.source_id));
        ids.insert("principal_id".into(), json!(self.principal_id));
        body(self.name, self.created_at, &Json::Object(ids))
    }
}

pub fn body(name: &str, at: i64, data: &Json) -> String {
    let (name, timestamp) = (json!(name), json!(time::iso_8601(at)));
    format!(r#"{{"type":{name},"timestamp":{timestamp},"data":{data}}}"#)
}

/// The delivery of an event to an app. Recovering it makes the same one, so its receiver knows
/// it again.
pub fn delivery_id(app_id: &AppId, position: &str) -> DeliveryId {
    let digest = Sha256::digest(format!("{app_id}.{position}"));
    DeliveryId::from_hex(&hex(&digest[..16]))
}

/// Writes the deliveries of an event that was just recorded: to every app that subscribed to its
/// type and may see it, by the same rule as `event_log::visible`. A team without apps pays one
/// look into their table.
pub fn enqueue(tx: &Tx, team_id: &TeamId, sequence: i64, event: &Event) -> Result<()> {
    let session_id = event.data["session_id"].as_str();
    let asked_by =
        event.data["principal_id"].as_str().filter(|_| event.resource_kind == "operation");
    let apps = tx.query(
        "SELECT a.id, (SELECT epoch FROM teams WHERE id = ?1)
           FROM apps a
          WHERE a.team_id = ?1 AND a.webhook_url IS NOT NULL AND a.disabled_at IS NULL
            AND EXISTS (SELECT 1 FROM json_each(a.webhook_events_json) e
                         WHERE e.value IN ('*', ?2))
            AND (?3 IS NULL OR a.principal_id = ?5
                 OR EXISTS (SELECT 1 FROM sources s
                             WHERE s.team_id = ?1 AND s.id = ?3
                               AND (s.visibility = 'team' OR s.custodian_id = a.principal_id))
                 OR EXISTS (SELECT 1 FROM sessions n
                             WHERE n.team_id = ?1 AND n.id = ?4 AND n.deleted_at IS NULL
                               AND (EXISTS (
                                        SELECT 1
                                          FROM origins o CROSS JOIN sources s
                                            ON s.team_id = o.team_id AND s.id = o.source_id
                                         WHERE o.team_id = ?1 AND o.session_id = ?4
                                           AND (s.visibility = 'team'
                                                OR s.custodian_id = a.principal_id))
                                    OR EXISTS (
                                        SELECT 1 FROM session_grants g
                                         WHERE g.team_id = ?1 AND g.session_id = ?4
                                           AND g.subject_kind = 'principal'
                                           AND g.subject_id = a.principal_id))))
          LIMIT ?6",
        params![
            team_id,
            event.name,
            event.source_id.map(SourceId::as_str),
            session_id,
            asked_by,
            APPS_MAX
        ],
        |row| Ok((row.get::<AppId>()?, row.get::<String>()?)),
    )?;
    let Some((_, epoch)) = apps.first() else { return Ok(()) };
    let position = format!("{epoch}.{sequence}");
    let told = Told {
        name: event.name,
        position: &position,
        resource_kind: event.resource_kind,
        resource_id: event.resource_id,
        source_id: event.source_id.map(SourceId::as_str),
        principal_id: event.principal_id.map(Id::as_str),
        data: &event.data,
        created_at: tx.now_ms,
    };
    let apps: Vec<&AppId> = apps.iter().map(|(app_id, _)| app_id).collect();
    insert(
        tx,
        team_id,
        event.name,
        &told.body(team_id),
        tx.now_ms,
        |app_id| delivery_id(app_id, &position),
        &apps,
    )
    .map(drop)
}

/// Inserts a delivery to each of `apps`, due now, unless it is there; answers how many are new.
pub fn insert(
    tx: &Tx,
    team_id: &TeamId,
    event_type: &str,
    body: &str,
    created_at: i64,
    id: impl Fn(&AppId) -> DeliveryId,
    apps: &[&AppId],
) -> Result<u64> {
    let pairs: Vec<_> = apps.iter().map(|app_id| (app_id, id(app_id))).collect();
    let pairs = json::to_string(&pairs)?;
    let made = tx.execute_counted(
        "INSERT INTO app_webhook_deliveries
             (id, team_id, app_id, event_type, body, state, next_at, created_at)
         SELECT value ->> 1, ?2, value ->> 0, ?3, ?4, 'pending', CAST(?5 AS INTEGER),
                CAST(?6 AS INTEGER)
           FROM json_each(?1)
          WHERE true
         ON CONFLICT (id) DO NOTHING",
        params![&pairs, team_id, event_type, body, tx.now_ms, created_at],
    )?;
    tx.execute(
        "UPDATE apps SET next_at = ?3
          WHERE team_id = ?2 AND id IN (SELECT value ->> 0 FROM json_each(?1))
            AND webhook_url IS NOT NULL AND disabled_at IS NULL
            AND (next_at IS NULL OR next_at > ?3)",
        params![&pairs, team_id, tx.now_ms],
    )?;
    Ok(made)
}
