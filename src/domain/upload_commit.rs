//! An upload's commit: all its chunks are there, and together they are the declared file.
use crate::api::{Answer, Call, Envelope, Job};
use crate::auth::{self, Principal};
use crate::domain::publishing;
use crate::domain::upload_chunks;
use crate::domain::uploads::{self, State, Upload};
use crate::error::{Code, Error, Result};
use crate::ids::hex;
use crate::limits::SLICE_BYTES_MAX;
use crate::params;
use crate::store::{Db, Tx};
use sha2::{Digest, Sha256};

/// `POST /uploads/{upload}/commit` checks the whole file, in slices of at most 4 MiB, and makes
/// the upload fit to be named. Of two at once both answer alike, as does a later one; where one
/// died half-way the next begins anew.
///
/// `409 upload_incomplete` with the first `missing` chunks; `409 digest_mismatch` when the file is
/// not the declared one, which then goes back to pending.
pub fn commit(db: &Db, call: &Call) -> Result<Job> {
    call.no_fields()?;
    publishing::role(&call.who)?;
    let upload = uploads::load_to_write(db, &call.who, &call.id(0)?)?;

    let missing = upload_chunks::missing(db, &call.who.team_id, &upload)?;
    if !missing.is_empty() {
        return Err(incomplete(missing));
    }
    db.transaction(|tx| {
        tx.execute(
            "UPDATE uploads SET state = 'verifying'
              WHERE team_id = ?1 AND id = ?2 AND state = 'pending'",
            params![&call.who.team_id, &upload.id],
        )
    })?;

    let mut check = Check {
        who: call.who.clone(),
        envelope: call.envelope(),
        upload,
        hasher: Sha256::new(),
        next_index: 0,
    };
    Ok(Box::new(move |db| check.slice(db)))
}

/// A commit under way. What it has hashed cannot change behind it: a chunk stays until its upload
/// is removed, and an upload that is removed never comes back.
struct Check {
    who: Principal,
    envelope: Envelope,
    upload: Upload,
    hasher: Sha256,
    next_index: i64,
}

impl Check {
    fn slice(&mut self, db: &Db) -> Result<Option<Answer>> {
        if self.upload.state != State::Committed && self.hash_slice(db)? {
            return Ok(None);
        }
        let settled = db.transaction(|tx| self.settle(tx))?;
        self.envelope.one(200, &settled?.shape(Vec::new())).map(Some)
    }

    /// Whether there is more to hash. A chunk that is not there ends it too.
    fn hash_slice(&mut self, db: &Db) -> Result<bool> {
        for _ in 0..SLICE_BYTES_MAX / self.upload.chunk_size {
            if self.next_index == self.upload.chunk_count() {
                return Ok(false);
            }
            let (team_id, index) = (&self.who.team_id, self.next_index);
            let Some(bytes) = upload_chunks::bytes(db, team_id, &self.upload, index)? else {
                return Ok(false);
            };
            self.hasher.update(&bytes);
            self.next_index += 1;
        }
        Ok(true)
    }

    /// The outcome, decided on the upload as it is now. A refusal inside keeps what was written.
    fn settle(&self, tx: &Tx) -> Result<Result<Upload>> {
        let who = auth::again(tx, &self.who)?;
        publishing::role(&who)?;
        let mut upload = uploads::load_to_write(tx, &who, &self.upload.id)?;
        if upload.state == State::Committed {
            return Ok(Ok(upload));
        }

        let refusal = self.refusal(tx, &upload)?;
        let (state, committed_at) = match refusal {
            Some(_) => ("pending", None),
            None => ("committed", Some(tx.now_ms)),
        };
        tx.execute(
            "UPDATE uploads SET state = ?3, committed_at = ?4
              WHERE team_id = ?1 AND id = ?2 AND state IN ('pending', 'verifying')",
            params![&who.team_id, &upload.id, state, committed_at],
        )?;

        upload.state = State::Committed;
        Ok(refusal.map_or(Ok(upload), Err))
    }

    fn refusal(&self, db: &Db, upload: &Upload) -> Result<Option<Error>> {
        let mut missing = upload_chunks::missing(db, &self.who.team_id, upload)?;
        if missing.is_empty() && self.next_index < upload.chunk_count() {
            missing.push(self.next_index);
        }
        if !missing.is_empty() {
            return Ok(Some(incomplete(missing)));
        }
        let sha256 = hex(&self.hasher.clone().finalize());
        if sha256 == upload.sha256 {
            return Ok(None);
        }
        let message = "the chunks together are not the declared file; begin a new upload";
        Ok(Some(Error::new(Code::DigestMismatch, message).with("sha256", sha256)))
    }
}

fn incomplete(missing: Vec<i64>) -> Error {
    let message = "send the missing chunks, then commit again";
    Error::new(Code::UploadIncomplete, message).with("missing", missing)
}
