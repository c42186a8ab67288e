//! Large bodies, taken in as they come and kept in chunks, so that none is ever whole in memory.
//!
//! A body on its way is *staged*. To publish it is to name it elsewhere and take away the row that
//! says so, in one transaction. What nobody publishes goes after `STAGED_BODY_AGE_MS`.
use crate::answer::{Answer, Chunks, Intake};
use crate::auth::{self, Principal};
use crate::call::Call;
use crate::error::{Code, Error, Result};
use crate::ids::{BodyId, TeamId, hex};
use crate::limits::{BODY_CHUNK_BYTES, STAGED_BODY_AGE_MS};
use crate::params;
use crate::store::{Db, Tx};
use sha2::{Digest, Sha256};

/// A body that is there, to its last byte.
pub struct Taken<'a> {
    pub body_id: &'a BodyId,
    pub size: i64,
    pub sha256: &'a str,
}

pub enum Published {
    /// Something names the body now.
    Kept(Answer),
    /// Nothing does, so it goes.
    Unused(Answer),
}

/// Takes a request's body in and has it published in the transaction of its last chunk.
///
/// `413 too_large`; `410 expired` for one that takes longer than a body may be staged. A token
/// that is revoked meanwhile ends it.
pub fn intake(
    call: &Call,
    bytes_max: usize,
    mut publish: impl FnMut(&Tx, &Principal, &Taken) -> Result<Published> + 'static,
) -> Intake {
    let mut incoming = Incoming {
        who: call.who.clone(),
        bytes_max,
        body_id: None,
        buffer: Vec::new(),
        size: 0,
        chunk_count: 0,
        hash: Sha256::new(),
    };
    Box::new(move |db, piece| {
        let done = match piece {
            Some(piece) => incoming.take(db, piece).map(|()| None),
            None => incoming.finish(db, &mut publish).map(Some),
        };
        if done.is_err() {
            incoming.give_up(db)?;
        }
        done
    })
}

/// The bytes from `first` to `end`, chunk by chunk.
pub fn chunks(who: &Principal, body_id: BodyId, first: i64, end: i64) -> Chunks {
    let (who, mut at) = (who.clone(), first);
    Box::new(move |db| {
        if at >= end {
            return Ok(None);
        }
        auth::again(db, &who)?;
        let (index, skipped) = (at / BODY_CHUNK_BYTES, at % BODY_CHUNK_BYTES);
        let taken = (BODY_CHUNK_BYTES - skipped).min(end - at);
        let bytes = db.query_optional(
            "SELECT substr(bytes, CAST(?4 AS INTEGER) + 1, CAST(?5 AS INTEGER))
               FROM body_chunks WHERE team_id = ?1 AND body_id = ?2 AND chunk_index = ?3",
            params![&who.team_id, &body_id, index, skipped, taken],
            |row| row.get::<Vec<u8>>(),
        )?;
        let bytes = bytes.ok_or_else(Error::not_found)?;
        at += taken;
        Ok(Some(bytes))
    })
}

/// Stores what is in memory already; whoever calls it names it in the same transaction.
pub fn write(tx: &Tx, team_id: &TeamId, bytes: &[u8]) -> Result<BodyId> {
    let body_id: BodyId = tx.new_id();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A small constant.
    for (index, chunk) in bytes.chunks(BODY_CHUNK_BYTES as usize).enumerate() {
        write_chunk(tx, team_id, &body_id, index, chunk)?;
    }
    Ok(body_id)
}

fn write_chunk(
    tx: &Tx,
    team_id: &TeamId,
    body_id: &BodyId,
    index: usize,
    bytes: &[u8],
) -> Result<()> {
    tx.execute(
        "INSERT INTO body_chunks (team_id, body_id, chunk_index, bytes)
         VALUES (?1, ?2, ?3, ?4)",
        params![team_id, body_id, index, bytes],
    )
}

/// One chunk, if there is one of that index.
pub fn chunk(db: &Db, team_id: &TeamId, body_id: &BodyId, index: i64) -> Result<Option<Vec<u8>>> {
    db.query_optional(
        "SELECT bytes FROM body_chunks
          WHERE team_id = ?1 AND body_id = ?2 AND chunk_index = ?3",
        params![team_id, body_id, index],
        |row| row.get(),
    )
}

/// Nothing names the body any more: retention removes its chunks.
pub fn release(tx: &Tx, team_id: &TeamId, body_id: &BodyId) -> Result<()> {
    tx.execute(
        "INSERT INTO body_prune_queue (team_id, body_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
        params![team_id, body_id],
    )
}

struct Incoming {
    who: Principal,
    bytes_max: usize,
    /// Once its first chunk is there.
    body_id: Option<BodyId>,
    buffer: Vec<u8>,
    size: usize,
    chunk_count: i64,
    hash: Sha256,
}

impl Incoming {
    fn take(&mut self, db: &Db, piece: &[u8]) -> Result<()> {
        self.size += piece.len();
        if self.size > self.bytes_max {
            return Err(Error::too_large(self.bytes_max, "the body"));
        }
        self.hash.update(piece);
        self.buffer.extend_from_slice(piece);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A small constant.
        let chunk_bytes = BODY_CHUNK_BYTES as usize;
        while self.buffer.len() >= chunk_bytes {
            let rest = self.buffer.split_off(chunk_bytes);
            let chunk = std::mem::replace(&mut self.buffer, rest);
            db.transaction(|tx| {
                let who = auth::again(tx, &self.who)?;
                self.store(tx, &who.team_id, &chunk)
            })?;
        }
        Ok(())
    }

    /// Stores the next chunk, of a body that is still staged.
    fn store(&mut self, tx: &Tx, team_id: &TeamId, chunk: &[u8]) -> Result<()> {
        let body_id = if let Some(body_id) = &self.body_id {
            must_be_staged(tx, team_id, body_id)?;
            body_id.clone()
        } else {
            let body_id: BodyId = tx.new_id();
            tx.execute(
                "INSERT INTO staged_bodies (team_id, id, created_at) VALUES (?1, ?2, ?3)",
                params![team_id, &body_id, tx.now_ms],
            )?;
            body_id
        };
        tx.execute(
            "INSERT INTO body_chunks (team_id, body_id, chunk_index, bytes)
             VALUES (?1, ?2, ?3, ?4)",
            params![team_id, &body_id, self.chunk_count, chunk],
        )?;
        self.body_id = Some(body_id);
        self.chunk_count += 1;
        Ok(())
    }

    fn finish(
        &mut self,
        db: &Db,
        publish: &mut impl FnMut(&Tx, &Principal, &Taken) -> Result<Published>,
    ) -> Result<Answer> {
        let sha256 = hex(&std::mem::take(&mut self.hash).finalize());
        let size = i64::try_from(self.size).unwrap_or(i64::MAX);
        let last = std::mem::take(&mut self.buffer);
        // Undone with the transaction, so that what was staged before can still be given up.
        let staged = self.body_id.clone();
        let answer = db.transaction(|tx| {
            let who = auth::again(tx, &self.who)?;
            // An empty body has one empty chunk, so that every body has an id.
            self.store(tx, &who.team_id, &last)?;
            let body_id = self.body_id.as_ref().ok_or_else(Error::not_found)?;
            let published = publish(tx, &who, &Taken { body_id, size, sha256: &sha256 })?;
            tx.execute(
                "DELETE FROM staged_bodies WHERE team_id = ?1 AND id = ?2",
                params![&who.team_id, body_id],
            )?;
            match published {
                Published::Kept(answer) => Ok(answer),
                Published::Unused(answer) => {
                    release(tx, &who.team_id, body_id)?;
                    Ok(answer)
                }
            }
        });
        if answer.is_err() {
            self.body_id = staged;
        }
        answer
    }

    fn give_up(&self, db: &Db) -> Result<()> {
        let Some(body_id) = &self.body_id else { return Ok(()) };
        db.transaction(|tx| {
            let staged = tx.execute_counted(
                "DELETE FROM staged_bodies WHERE team_id = ?1 AND id = ?2",
                params![&self.who.team_id, body_id],
            )?;
            if staged > 0 { release(tx, &self.who.team_id, body_id) } else { Ok(()) }
        })
    }
}

/// Retention, or a wipe, may have come in between.
fn must_be_staged(db: &Db, team_id: &TeamId, body_id: &BodyId) -> Result<()> {
    let staged = db.query_optional(
        "SELECT 1 FROM staged_bodies WHERE team_id = ?1 AND id = ?2 AND created_at > ?3",
        params![team_id, body_id, db.now_ms - STAGED_BODY_AGE_MS],
        |row| row.get::<i64>(),
    )?;
    if staged.is_some() {
        return Ok(());
    }
    Err(Error::new(Code::Expired, "the body took too long, or its team was wiped; send it again"))
}
