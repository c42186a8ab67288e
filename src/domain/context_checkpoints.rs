//! Checkpoints: the committed states of a working context. Which of them may go is decided here,
//! and when the next one may is kept in its context's row by every write that can change it.
use crate::api::{Answer, Call};
use crate::domain::bodies;
use crate::domain::context_values::Stored;
use crate::domain::contexts::{Binding, Context, Revision};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{BodyId, TeamId, hex};
use crate::limits::{
    ALGORITHM_BYTES_MAX, CHECKPOINT_AGE_MS, CHECKPOINTS_KEPT, IDENTIFIER_BYTES_MAX,
    LABEL_BYTES_MAX, SAFE_INTEGER_MAX, SUMMARY_BYTES_MAX,
};
use crate::params;
use crate::store::{Db, Tx};
use serde_json::json;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// A checkpoint as a commit sends it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent<'a> {
    pub turn_id: i64,
    pub algorithm: String,
    pub schema_version: i64,
    #[serde(default)]
    pub summary_model: Option<String>,
    #[serde(default, borrow)]
    pub summary_metadata: Option<&'a RawValue>,
    pub source_start: i64,
    /// Any JSON value but null, kept as it was sent.
    #[serde(default, borrow)]
    pub active_context: Option<&'a RawValue>,
    /// Or the payload whose bytes it is.
    #[serde(default)]
    pub active_context_ref: Option<String>,
}

impl Sent<'_> {
    /// `first` is the place of the first new event, or the last one where there is none.
    pub fn validate(&self, first: i64) -> Result<()> {
        let at = |name: &str| format!("checkpoint.{name}");
        guard::in_range(&at("turn_id"), self.turn_id, 1..=SAFE_INTEGER_MAX)?;
        guard::label(at("algorithm"), &self.algorithm, ALGORITHM_BYTES_MAX)?;
        guard::in_range(&at("schema_version"), self.schema_version, 1..=SAFE_INTEGER_MAX)?;
        if let Some(model) = self.summary_model.as_deref().filter(|model| !model.is_empty()) {
            guard::label(at("summary_model"), model, IDENTIFIER_BYTES_MAX)?;
        }
        if self.summary_metadata.is_some_and(|raw| raw.get().len() > SUMMARY_BYTES_MAX) {
            let message = format!("may have at most {SUMMARY_BYTES_MAX} bytes");
            return Err(Error::field(at("summary_metadata"), message));
        }
        if self.source_start < 0 || self.source_start > first {
            let message = format!("must be from 0 to {first}: not behind the first new event");
            return Err(Error::field(at("source_start"), message));
        }
        match (self.active_context, &self.active_context_ref) {
            (Some(raw), None) if matches!(raw.get(), "null" | r#""""#) => {
                Err(Error::field(at("active_context"), "must not be empty"))
            }
            (Some(_), None) => Ok(()),
            (None, Some(name)) => guard::label(at("active_context_ref"), name, LABEL_BYTES_MAX),
            _ => {
                let message = "send either active_context or active_context_ref";
                Err(Error::field(at("active_context"), message))
            }
        }
    }

    /// The id of what was committed by that operation.
    pub fn id(&self, context_id: &str, operation_id: &str, source_end: i64) -> String {
        let identity = json!([
            context_id,
            self.source_start,
            source_end,
            self.algorithm,
            self.schema_version,
            self.summary_model,
            operation_id,
        ]);
        format!("ctxc_{}", hex(&Sha256::digest(identity.to_string())))
    }
}

/// Writes the checkpoint of a commit and answers its id. `payload` is what `active_context_ref`
/// names: its digest and size.
pub fn insert(
    tx: &Tx,
    context: &Context,
    team_id: &TeamId,
    sent: &Sent,
    operation_id: &str,
    (revision, binding): (Revision, &Binding),
    payload: Option<(String, i64)>,
) -> Result<String> {
    let id = sent.id(&context.id, operation_id, revision.source);
    let inline = sent.active_context.map(|raw| raw.get().as_bytes());
    let body_id = match inline {
        Some(bytes) => Some(bodies::write(tx, team_id, bytes)?),
        None => None,
    };
    let (sha256, size) = payload.unwrap_or_else(|| {
        let bytes = inline.unwrap_or_default();
        (hex(&Sha256::digest(bytes)), i64::try_from(bytes.len()).unwrap_or(0))
    });
    let inserted = tx.execute_counted(
        "INSERT INTO context_checkpoints
             (team_id, context_id, durable_revision, id, session_revision, source_start,
              source_end, turn_id, algorithm, schema_version, summary_model, summary_json,
              provider, model, generation, payload_ref, body_id, sha256, size, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
                 ?19, ?20)
         ON CONFLICT (team_id, context_id, id) DO NOTHING",
        params![
            team_id,
            &context.id,
            revision.durable,
            &id,
            revision.session,
            sent.source_start,
            revision.source,
            sent.turn_id,
            &sent.algorithm,
            sent.schema_version,
            sent.summary_model.as_ref(),
            sent.summary_metadata.map(RawValue::get),
            &binding.provider,
            &binding.model,
            binding.generation,
            sent.active_context_ref.as_ref(),
            body_id.as_ref(),
            &sha256,
            size,
            tx.now_ms
        ],
    )?;
    guard::changed_one(inserted, conflict("this checkpoint was committed before"))?;
    Ok(id)
}

pub fn conflict(message: impl Into<String>) -> Error {
    Error::new(Code::CheckpointConflict, message)
}

/// The durable revision of a checkpoint that the head may be set to.
pub fn selectable(db: &Db, team_id: &TeamId, context: &Context, id: &str) -> Result<i64> {
    let found = db.query_optional(
        "SELECT durable_revision FROM context_checkpoints
          WHERE team_id = ?1 AND context_id = ?2 AND id = ?3 AND source_end <= ?4",
        params![team_id, &context.id, id, context.revision.source],
        |row| row.get(),
    )?;
    found.ok_or_else(|| {
        conflict("the context has no such checkpoint").with("field", "checkpoint_id")
    })
}

/// A checkpoint, and where its working context is.
pub struct Working {
    /// Its fields as a JSON object, without the working context.
    meta: String,
    pub payload_ref: Option<String>,
    /// Nothing where a payload's bytes are gone.
    pub stored: Option<Stored>,
    pub size: i64,
}

macro_rules! read_working {
    ($db:expr, $team_id:expr, $where:literal, $params:expr) => {
        $db.query_optional(
            concat!(
                "SELECT k.id, k.turn_id, k.algorithm, k.schema_version, k.summary_model,
                        k.source_start, k.source_end, k.session_revision, k.durable_revision,
                        k.provider, k.model, k.generation, k.payload_ref, k.sha256, k.size,
                        k.created_at, k.summary_json, coalesce(k.body_id, p.body_id)
                   FROM context_checkpoints AS k
                   LEFT JOIN context_payloads AS p
                     ON p.team_id = k.team_id AND p.context_id = k.context_id
                    AND p.ref = k.payload_ref
                  WHERE k.team_id = ?1 AND k.context_id = ?2 ",
                $where
            ),
            $params,
            |row| working($team_id, row),
        )
    };
}

fn working(team_id: &TeamId, row: &mut crate::store::Row) -> Result<Working> {
    let mut meta = json!({
        "id": row.get::<String>()?,
        "turn_id": row.get::<i64>()?,
        "algorithm": row.get::<String>()?,
        "schema_version": row.get::<i64>()?,
        "summary_model": row.get::<Option<String>>()?,
        "source_start": row.get::<i64>()?,
        "source_end": row.get::<i64>()?,
    });
    let (session, durable): (i64, i64) = (row.get()?, row.get()?);
    meta["revision"] = json!({ "session": session, "durable": durable,
                               "source": meta["source_end"] });
    meta["binding"] =
        json!(Binding { provider: row.get()?, model: row.get()?, generation: row.get()? });
    let payload_ref: Option<String> = row.get()?;
    meta["active_context_ref"] = json!(payload_ref);
    meta["sha256"] = json!(row.get::<String>()?);
    let size: i64 = row.get()?;
    meta["size"] = json!(size);
    meta["created_at"] = json!(row.get::<i64>()?);
    let summary = row.get::<Option<String>>()?.unwrap_or_else(|| "null".into());
    let body_id: Option<BodyId> = row.get()?;
    let mut meta = meta.to_string();
    meta.truncate(meta.len() - 1);
    let meta = format!(r#"{meta},"summary_metadata":{summary}"#);
    let stored = body_id.map(|body_id| Stored { team_id: team_id.clone(), body_id, size });
    Ok(Working { meta, payload_ref, stored, size })
}

/// The active checkpoint, if there is one.
pub fn active(db: &Db, team_id: &TeamId, context: &Context) -> Result<Option<Working>> {
    let Some(durable) = context.checkpoint_revision else { return Ok(None) };
    read_working!(
        db,
        team_id,
        "AND k.durable_revision = ?3",
        params![team_id, &context.id, durable]
    )
}

pub fn earliest(db: &Db, team_id: &TeamId, context_id: &str) -> Result<Option<Working>> {
    read_working!(
        db,
        team_id,
        "ORDER BY k.source_start, k.durable_revision LIMIT 1",
        params![team_id, context_id]
    )
}

/// A head with its active checkpoint: the working context stands in it as it was committed; one
/// that is a payload is named only.
pub fn answer(
    db: &Db,
    call: &Call,
    context: &Context,
    shape: &serde_json::Value,
) -> Result<Answer> {
    let mut shape = shape.to_string();
    shape.truncate(shape.len() - 1);
    match active(db, &call.who.team_id, context)? {
        None => call.raw(format!(r#"{shape},"checkpoint":null}}"#)),
        Some(Working { meta, payload_ref: None, stored: Some(stored), .. }) => {
            let lead = format!(r#"{shape},"checkpoint":{meta},"active_context":"#);
            stored.enclosed(db, call, call.opened(&lead), "}}}")
        }
        Some(Working { meta, .. }) => {
            call.raw(format!(r#"{shape},"checkpoint":{meta},"active_context":null}}}}"#))
        }
    }
}

/// A checkpoint that nothing keeps: neither is it active, nor the earliest, nor among the newest.
pub struct Prunable {
    pub durable_revision: i64,
    pub payload_ref: Option<String>,
    pub created_at: i64,
}

/// The oldest of those that nothing keeps.
pub fn prunable(
    db: &Db,
    team_id: &TeamId,
    context_id: &str,
    limit: usize,
) -> Result<Vec<Prunable>> {
    db.query(
        "WITH kept (durable_revision) AS MATERIALIZED (
             SELECT checkpoint_revision FROM contexts
              WHERE team_id = ?1 AND id = ?2 AND checkpoint_revision IS NOT NULL
             UNION ALL
             SELECT durable_revision FROM (
                 SELECT durable_revision FROM context_checkpoints
                  WHERE team_id = ?1 AND context_id = ?2
                  ORDER BY source_start, durable_revision LIMIT 1)
             UNION ALL
             SELECT durable_revision FROM (
                 SELECT durable_revision FROM context_checkpoints
                  WHERE team_id = ?1 AND context_id = ?2
                  ORDER BY durable_revision DESC LIMIT ?3))
         SELECT durable_revision, payload_ref, created_at
           FROM context_checkpoints
          WHERE team_id = ?1 AND context_id = ?2
            AND durable_revision NOT IN (SELECT durable_revision FROM kept)
          ORDER BY durable_revision
          LIMIT ?4",
        params![team_id, context_id, CHECKPOINTS_KEPT, limit],
        |row| {
            Ok(Prunable {
                durable_revision: row.get()?,
                payload_ref: row.get()?,
                created_at: row.get()?,
            })
        },
    )
}

/// Notes when the next checkpoint of a context may go. Checkpoints age in the order in which they
/// were committed.
pub fn schedule(tx: &Tx, team_id: &TeamId, context_id: &str) -> Result<()> {
    let next = prunable(tx, team_id, context_id, 1)?;
    tx.execute(
        "UPDATE contexts SET prune_at = ?3
          WHERE team_id = ?1 AND id = ?2 AND prune_at IS NOT ?3",
        params![
            team_id,
            context_id,
            next.first().map(|prunable| prunable.created_at + CHECKPOINT_AGE_MS)
        ],
    )
}
