//! Uploads: native bundles, sent in chunks and checked as a whole by a commit.
//!
//! pending → verifying → committed, and `removing` from when retention took an upload until its
//! rows are gone. A chunk of an upload that is not being removed is never taken away or changed,
//! so a complete upload stays complete. Chunks: `upload_chunks`; commit: `upload_commit`;
//! content: `upload_content`.
use crate::api::{Answer, Call};
use crate::auth::{Kind, Principal};
use crate::domain::visibility::{self, Access, READ_SCOPE};
use crate::domain::{captures, continuations, publishing, upload_chunks};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{Id, PrincipalId, SessionId, SourceId, UploadId};
use crate::limits::{
    CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, CHUNKS_MAX, MEDIA_TYPE_CHARS_MAX,
    SAFE_INTEGER_MAX, UPLOAD_AGE_MS, UPLOAD_SESSIONS_ASKED_MAX,
};
use crate::params;
use crate::scopes;
use crate::store::{Cell, Db, FromCell, Tx};

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateUpload {
    size: i64,
    sha256: String,
    media_type: String,
    chunk_size: Option<i64>,
    source_id: Option<SourceId>,
}

impl CreateUpload {
    fn validate(&self, config_bytes_max: i64) -> Result<i64> {
        guard::in_range("size", self.size, 0..=SAFE_INTEGER_MAX)?;
        guard::sha256("sha256", &self.sha256)?;
        media_type(&self.media_type)?;
        let bytes_max = config_bytes_max.min(CHUNKS_MAX * CHUNK_BYTES_MAX);
        if self.size > bytes_max {
            return Err(Error::too_large(usize::try_from(bytes_max).unwrap_or(0), "an upload"));
        }
        let least = CHUNK_BYTES_MIN.max(quotient_up(self.size, CHUNKS_MAX));
        let chunk_size = self.chunk_size.unwrap_or(CHUNK_BYTES_DEFAULT.max(least));
        guard::in_range("chunk_size", chunk_size, least..=CHUNK_BYTES_MAX)?;
        Ok(chunk_size)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Pending,
    Verifying,
    Committed,
    Removing,
}

impl FromCell for State {
    fn from_cell(cell: Cell) -> Result<State> {
        match String::from_cell(cell)?.as_str() {
            "pending" => Ok(State::Pending),
            "verifying" => Ok(State::Verifying),
            "committed" => Ok(State::Committed),
            "removing" => Ok(State::Removing),
            other => Err(Error::internal(format!("an upload's state is {other}"))),
        }
    }
}

/// An upload's row.
pub struct Upload {
    pub id: UploadId,
    pub source_id: SourceId,
    pub media_type: String,
    pub size: i64,
    pub sha256: String,
    pub chunk_size: i64,
    pub state: State,
    committed_at: Option<i64>,
    created_at: i64,
    /// Of its source.
    custodian_id: Option<PrincipalId>,
}

impl Upload {
    pub fn chunk_count(&self) -> i64 {
        quotient_up(self.size, self.chunk_size)
    }

    /// The length of the chunk at `index`: the last one holds the rest.
    pub fn chunk_length(&self, index: i64) -> Result<i64> {
        let count = self.chunk_count();
        if index >= count {
            return Err(Error::field("index", format!("this upload has {count} chunks, from 0")));
        }
        Ok(self.chunk_size.min(self.size - index * self.chunk_size))
    }

    pub fn shape(&self, missing: Vec<i64>) -> Shape<'_> {
        Shape {
            id: &self.id,
            state: self.state,
            size: self.size,
            sha256: &self.sha256,
            media_type: &self.media_type,
            chunk_size: self.chunk_size,
            missing,
            created_at: self.created_at,
            expires_at: (self.state != State::Committed).then_some(self.expires_at()),
        }
    }

    /// When it ends unless it is committed.
    fn expires_at(&self) -> i64 {
        self.created_at + UPLOAD_AGE_MS
    }
}

/// An upload as its reader sees it.
#[derive(serde::Serialize)]
pub struct Shape<'a> {
    id: &'a UploadId,
    state: State,
    size: i64,
    sha256: &'a str,
    media_type: &'a str,
    chunk_size: i64,
    /// The first of the indexes that are still to come.
    missing: Vec<i64>,
    created_at: i64,
    expires_at: Option<i64>,
}

fn quotient_up(dividend: i64, divisor: i64) -> i64 {
    (dividend + divisor - 1) / divisor
}

/// A type and a subtype, and perhaps parameters, fit for a header.
fn media_type(text: &str) -> Result<()> {
    guard::line("media_type", text, MEDIA_TYPE_CHARS_MAX)?;
    let of_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let token = |part: &str| !part.is_empty() && part.bytes().all(of_token);
    let essence = text.split(';').next().unwrap_or_default().trim_end();
    let typed = essence.split_once('/').is_some_and(|(kind, sub)| token(kind) && token(sub));
    if typed && text.is_ascii() {
        return Ok(());
    }
    Err(Error::field("media_type", "must be a media type as in application/zip"))
}

/// `POST /uploads` begins an upload to a machine's own source, or to the one that is named.
///
/// `413 too_large` above the server's limit; `403`, `404` and `409` as `publishing::source`.
pub fn create(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: CreateUpload = call.json()?;
    let chunk_size = body.validate(call.config.upload_bytes_max)?;
    let source_id = publishing::source(tx, &call.who, body.source_id.as_ref())?;

    let upload_id: UploadId = tx.new_id();
    tx.execute(
        "INSERT INTO uploads
             (team_id, id, source_id, media_type, size, sha256, chunk_size, state, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'pending', ?8)",
        params![
            &call.who.team_id,
            &upload_id,
            &source_id,
            &body.media_type,
            body.size,
            &body.sha256,
            chunk_size,
            tx.now_ms
        ],
    )?;

    let upload = load(tx, &call.who, &upload_id)?;
    let missing = upload_chunks::missing(tx, &call.who.team_id, &upload)?;
    call.one(201, &upload.shape(missing))
}

/// `GET /uploads/{upload}` is the upload and which chunks it still misses, the first 512 of them.
///
/// `410 expired` once it is a day old and not committed.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    reads(&call.who)?;
    let upload = load(db, &call.who, &call.id(0)?)?;

    let missing = upload_chunks::missing(db, &call.who.team_id, &upload)?;
    call.one(200, &upload.shape(missing))
}

/// The caller may read uploads at all.
pub fn reads(who: &Principal) -> Result<()> {
    guard::reads(who, READ_SCOPE).or_else(|error| match who.kind {
        Kind::App => guard::app_scope(who, scopes::CAPTURES_WRITE),
        Kind::User | Kind::Machine => Err(error),
    })
}

/// An upload that the caller may read.
///
/// `404` for one that is unknown, not the caller's to see or gone unnamed; `410 expired` for one
/// that ran out.
pub fn load(db: &Db, who: &Principal, upload_id: &UploadId) -> Result<Upload> {
    let found = db.query_optional(
        "SELECT u.source_id, u.media_type, u.size, u.sha256, u.chunk_size, u.state,
                u.committed_at, u.created_at, s.custodian_id
           FROM uploads u
           LEFT JOIN sources s ON s.team_id = u.team_id AND s.id = u.source_id
          WHERE u.team_id = ?1 AND u.id = ?2",
        params![&who.team_id, upload_id],
        |row| {
            Ok(Upload {
                id: upload_id.clone(),
                source_id: row.get()?,
                media_type: row.get()?,
                size: row.get()?,
                sha256: row.get()?,
                chunk_size: row.get()?,
                state: row.get()?,
                committed_at: row.get()?,
                created_at: row.get()?,
                custodian_id: row.get()?,
            })
        },
    )?;
    let Some(upload) = found else {
        let ran_out = captures::expired_uncommitted(db, who, upload_id.as_str())?;
        return Err(if ran_out { expired() } else { Error::not_found() });
    };
    if !readable(db, who, &upload)? {
        return Err(Error::not_found());
    }
    let removing = upload.state == State::Removing;
    if upload.committed_at.is_none() && (removing || upload.expires_at() <= db.now_ms) {
        return Err(expired());
    }
    if removing { Err(Error::not_found()) } else { Ok(upload) }
}

/// An upload that the caller may add to and commit.
///
/// As [`load`]; `403` for one that the caller only reads, `409 conflict` while its source is not
/// active.
pub fn load_to_write(db: &Db, who: &Principal, upload_id: &UploadId) -> Result<Upload> {
    let upload = load(db, who, upload_id)?;
    if !published_by(&upload, who) {
        return Err(Error::forbidden("only its source's custodian may add to this upload"));
    }
    publishing::source(db, who, Some(&upload.source_id))?;
    Ok(upload)
}

/// Whoever publishes to its source may read an upload, and whoever may see a session that has it
/// as an artifact; a machine also what a continuation hands on to it.
fn readable(db: &Db, who: &Principal, upload: &Upload) -> Result<bool> {
    if published_by(upload, who) {
        return Ok(true);
    }
    if guard::reads(who, READ_SCOPE).is_err() {
        return Ok(false);
    }
    if continuations::hands_on(db, who, &upload.id)? {
        return Ok(true);
    }
    let mut asked = String::new();
    for _ in 0..UPLOAD_SESSIONS_ASKED_MAX {
        // session_artifacts_by_upload; a version more of the same session is stepped over.
        let next = db.query_optional(
            "SELECT a.session_id
               FROM session_artifacts a
              CROSS JOIN sessions s
                 ON s.team_id = a.team_id AND s.id = a.session_id AND s.deleted_at IS NULL
              WHERE a.team_id = ?1 AND a.upload_id = ?2 AND a.session_id > ?3
              ORDER BY a.session_id
              LIMIT 1",
            params![&who.team_id, &upload.id, &asked],
            |row| row.get::<SessionId>(),
        )?;
        let Some(session_id) = next else { return Ok(false) };
        if visibility::access(db, who, &session_id)? != Access::None {
            return Ok(true);
        }
        asked = session_id.to_string();
    }
    Ok(false)
}

/// The caller is the custodian of the upload's source, or a machine of that custodian.
fn published_by(upload: &Upload, who: &Principal) -> bool {
    upload.custodian_id.as_ref() == Some(&who.principal_id)
}

fn expired() -> Error {
    Error::new(Code::Expired, "the upload was not committed within a day; begin a new one")
}
