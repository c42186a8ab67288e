//! The schema's history. A migration is applied once, in its own transaction, and never edited
//! after it has landed.
use super::{Db, Tx};
use crate::error::Result;
use crate::ids::ServerId;
use crate::params;

pub const MIGRATIONS: &[(&str, &str)] = &[
    ("0001_teams", include_str!("../../migrations/0001_teams.sql")),
    ("0002_machines", include_str!("../../migrations/0002_machines.sql")),
    ("0003_sessions", include_str!("../../migrations/0003_sessions.sql")),
    ("0004_uploads", include_str!("../../migrations/0004_uploads.sql")),
    ("0005_work", include_str!("../../migrations/0005_work.sql")),
    ("0006_events", include_str!("../../migrations/0006_events.sql")),
    ("0007_apps", include_str!("../../migrations/0007_apps.sql")),
    ("0008_retention", include_str!("../../migrations/0008_retention.sql")),
    ("0009_transfer", include_str!("../../migrations/0009_transfer.sql")),
    ("0010_ledger", include_str!("../../migrations/0010_ledger.sql")),
    ("0011_content", include_str!("../../migrations/0011_content.sql")),
    ("0012_webhooks", include_str!("../../migrations/0012_webhooks.sql")),
    ("0013_contexts", include_str!("../../migrations/0013_contexts.sql")),
];

#[allow(clippy::cast_possible_wrap)] // A small constant.
pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// What an object's one `server` row says: whose it is, how far its schema and clock have come.
#[derive(Debug, Clone)]
pub struct Server {
    pub server_id: ServerId,
    pub schema_version: i64,
    pub clock_high_at: i64,
}

/// The `server` row, or nothing where nobody has initialised the object.
pub fn read(db: &Db) -> Result<Option<Server>> {
    let server = db.query_optional(
        "SELECT id, schema_version, clock_high_at FROM server",
        params![],
        |row| {
            Ok(Server {
                server_id: row.get()?,
                schema_version: row.get()?,
                clock_high_at: row.get()?,
            })
        },
    );
    match server {
        Err(error) if error.message.contains("no such table") => Ok(None),
        other => other,
    }
}

/// Makes the schema of a new object, or brings that of an old one up to date.
pub fn initialise(db: &Db, server_id: &ServerId) -> Result<()> {
    let applied = read(db)?.map_or(0, |server| server.schema_version);
    upgrade(db, applied, server_id, SCHEMA_VERSION)
}

/// Applies the migrations after `applied` up to `target`.
pub fn upgrade(db: &Db, applied: i64, server_id: &ServerId, target: i64) -> Result<()> {
    for (version, (_, sql)) in (1..=target).zip(MIGRATIONS) {
        if version <= applied {
            continue;
        }
        db.transaction(|tx| {
            tx.script(sql)?;
            tx.execute(
                "INSERT INTO server (id, schema_version, created_at, clock_high_at)
                 VALUES (?1, ?2, ?3, ?3)
                 ON CONFLICT (id) DO UPDATE SET schema_version = excluded.schema_version",
                params![server_id, version, tx.now_ms],
            )
        })?;
    }
    Ok(())
}

/// Moves the stored mark of the clock up to now. Call it where marks are written anyway.
pub fn store_clock(tx: &Tx) -> Result<()> {
    tx.execute("UPDATE server SET clock_high_at = ?1 WHERE clock_high_at < ?1", params![tx.now_ms])
}
