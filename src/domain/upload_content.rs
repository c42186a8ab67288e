//! A committed upload's bytes, whole or one range of them.
use crate::api::{Answer, Body, Call, Chunks};
use crate::auth;
use crate::domain::upload_chunks;
use crate::domain::uploads::{self, State};
use crate::error::{Code, Error, Result};
use crate::ranges::{self, File};
use crate::store::Db;

/// `GET /uploads/{upload}/content` sends the file, or the one range of bytes that `Range` asks
/// for; several ranges, and what is no range, get the whole.
///
/// `409 upload_incomplete` before the commit; `416 range_not_satisfiable` behind the end. The body
/// breaks off when the upload is removed or the token revoked while it is sent.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    uploads::reads(&call.who)?;
    let upload = uploads::load(db, &call.who, &call.id(0)?)?;
    if upload.state != State::Committed {
        let message = "the upload is not committed; its content is there once it is";
        return Err(Error::new(Code::UploadIncomplete, message));
    }

    let file = File { size: upload.size, sha256: &upload.sha256, media_type: &upload.media_type };
    let (answer, sent) = ranges::answer(call, &file)?;
    let Some((first, end)) = sent else { return Ok(answer) };
    let (who, mut at) = (call.who.clone(), first);
    let chunks: Chunks = Box::new(move |db| {
        if at >= end {
            return Ok(None);
        }
        auth::again(db, &who)?;
        let (index, skipped) = (at / upload.chunk_size, at % upload.chunk_size);
        let taken = (upload.chunk_size - skipped).min(end - at);
        let chunk = upload_chunks::bytes(db, &who.team_id, &upload, index)?;
        let chunk = chunk.and_then(|bytes| part(bytes, skipped, taken));
        let chunk = chunk.ok_or_else(Error::not_found)?;
        at += taken;
        Ok(Some(chunk))
    });
    Ok(Answer { body: Body::Chunks(chunks), ..answer })
}

fn part(mut bytes: Vec<u8>, first: i64, length: i64) -> Option<Vec<u8>> {
    let (first, end) = (usize::try_from(first).ok()?, usize::try_from(first + length).ok()?);
    if bytes.len() < end {
        return None;
    }
    bytes.truncate(end);
    bytes.drain(..first);
    Some(bytes)
}
