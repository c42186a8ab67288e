//! A session's versions, and the artifacts that captures attached to them.
use crate::api::{Answer, Call};
use crate::domain::sessions::seen;
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{SessionId, SourceId, UploadId};
use crate::limits::{ARTIFACTS_LISTED_MAX, SAFE_INTEGER_MAX};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::Db;
use std::collections::HashMap;

#[derive(serde::Serialize)]
struct Version {
    revision: i64,
    source_id: SourceId,
    title: Option<String>,
    message_count: i64,
    created_at: i64,
    current: bool,
}

/// `GET /sessions/{session}/versions` lists the versions that are left, newest first.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, call.segment(0), &query)?;
    let below = match page.after.as_deref() {
        None => SAFE_INTEGER_MAX,
        Some(key) => key.parse().map_err(|_| crate::page::invalid_cursor())?,
    };
    let stored = seen(db, &call.who, &call.id(0)?)?;

    let versions = db.query(
        "SELECT revision, source_id, title, message_count, created_at
           FROM session_versions
          WHERE team_id = ?1 AND session_id = ?2 AND revision < ?3
          ORDER BY revision DESC
          LIMIT ?4",
        params![&call.who.team_id, &stored.session_id, below, page.limit + 1],
        |row| {
            let revision: i64 = row.get()?;
            let version = Version {
                revision,
                source_id: row.get()?,
                title: row.get()?,
                message_count: row.get()?,
                created_at: row.get()?,
                current: revision == stored.revision,
            };
            Ok((revision.to_string(), version))
        },
    )?;

    let (items, next) = page.page(versions);
    call.list(&items, next.as_deref())
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ArtifactQuery {
    revision: Option<i64>,
    limit: Option<i64>,
    cursor: Option<String>,
}

#[derive(serde::Serialize)]
struct Artifact {
    bundle_id: String,
    name: String,
    provenance: String,
    revision: i64,
    upload_id: UploadId,
    size: i64,
    media_type: String,
    sha256: String,
}

/// `GET /sessions/{session}/artifacts` lists the newest capture's artifacts of each source, or
/// those of one revision.
pub fn artifacts(db: &Db, call: &Call) -> Result<Answer> {
    let ArtifactQuery { revision, limit, cursor } = call.query()?;
    if let Some(revision) = revision {
        guard::in_range("revision", revision, 1..=SAFE_INTEGER_MAX)?;
    }
    let filters = format!("{} {revision:?}", call.segment(0));
    let page = Keyset::new(call, &filters, &PageQuery { limit, cursor })?;
    let stored = seen(db, &call.who, &call.id(0)?)?;
    if let Some(revision) = revision {
        must_have(db, call, &stored.session_id, revision)?;
    }

    // The newest first; a session's pruned versions leave few of them.
    let rows = db.query(
        "SELECT v.source_id, a.bundle_id, a.name, a.provenance, a.revision, a.upload_id, u.size,
                u.media_type, u.sha256
           FROM session_artifacts a
          CROSS JOIN session_versions v
             ON v.team_id = a.team_id AND v.session_id = a.session_id AND v.revision = a.revision
          CROSS JOIN uploads u ON u.team_id = a.team_id AND u.id = a.upload_id
          WHERE a.team_id = ?1 AND a.session_id = ?2 AND a.revision BETWEEN ?3 AND ?4
          ORDER BY a.revision DESC, a.bundle_id
          LIMIT ?5",
        params![
            &call.who.team_id,
            &stored.session_id,
            revision.unwrap_or(0),
            revision.unwrap_or(SAFE_INTEGER_MAX),
            ARTIFACTS_LISTED_MAX
        ],
        |row| {
            let source_id: String = row.get()?;
            let artifact = Artifact {
                bundle_id: row.get()?,
                name: row.get()?,
                provenance: row.get()?,
                revision: row.get()?,
                upload_id: row.get()?,
                size: row.get()?,
                media_type: row.get()?,
                sha256: row.get()?,
            };
            Ok((source_id, artifact))
        },
    )?;
    let mut newest: HashMap<String, i64> = HashMap::new();
    let mut kept: Vec<(String, Artifact)> = rows
        .into_iter()
        .filter(|(source_id, artifact)| {
            *newest.entry(source_id.clone()).or_insert(artifact.revision) == artifact.revision
        })
        .map(|(_, artifact)| {
            // Descending revisions as ascending text.
            let key = format!("{:016}{}", SAFE_INTEGER_MAX - artifact.revision, artifact.bundle_id);
            (key, artifact)
        })
        .filter(|(key, _)| key.as_str() > page.after())
        .collect();
    kept.truncate(page.limit + 1);

    let (items, next) = page.page(kept);
    call.list(&items, next.as_deref())
}

/// Refuses a revision that is not, or no longer, there.
pub fn must_have(db: &Db, call: &Call, session_id: &SessionId, revision: i64) -> Result<()> {
    let found = db.query_optional(
        "SELECT 1 FROM session_versions
          WHERE team_id = ?1 AND session_id = ?2 AND revision = ?3",
        params![&call.who.team_id, session_id, revision],
        |row| row.get::<i64>(),
    )?;
    found.map(drop).ok_or_else(Error::not_found)
}
