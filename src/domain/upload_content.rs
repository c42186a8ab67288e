//! A committed upload's bytes, whole or one range of them (RFC 9110, section 14).
use crate::api::{Answer, Body, Call, Chunks};
use crate::auth;
use crate::domain::upload_chunks;
use crate::domain::uploads::{self, State};
use crate::error::{Code, Error, Result};
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

    let tag = format!("\"{}\"", upload.sha256);
    if call.names_tag("if-none-match", &tag) == Some(true) {
        return Ok(Answer { status: 304, ..Answer::default() }.with("ETag", tag));
    }
    let asked =
        call.header("range").filter(|_| call.header("if-range").is_none_or(|one| one == tag));
    let range = asked.map_or(Ok(None), |header| range(header, upload.size));
    let range = range
        .map_err(|error| error.with_header("Content-Range", format!("bytes */{}", upload.size)))?;
    let (first, end) = range.unwrap_or((0, upload.size));

    let status = if range.is_some() { 206 } else { 200 };
    let mut answer = Answer { status, ..Answer::default() }
        .with("Content-Type", &upload.media_type)
        .with("Content-Length", (end - first).to_string())
        .with("Accept-Ranges", "bytes")
        .with("ETag", tag)
        // A bundle is what a client sent: no browser shall show or run it.
        .with("Content-Disposition", "attachment")
        .with("X-Content-Type-Options", "nosniff");
    if range.is_some() {
        let content_range = format!("bytes {first}-{}/{}", end - 1, upload.size);
        answer = answer.with("Content-Range", content_range);
    }
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

/// The first byte and the end of the one range that the header asks for, if it does.
fn range(header: &str, size: i64) -> Result<Option<(i64, i64)>> {
    let Some((unit, set)) = header.split_once('=') else { return Ok(None) };
    let Some((first, last)) = set.split_once('-') else { return Ok(None) };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Ok(None);
    }
    match (first.trim(), last.trim()) {
        ("", suffix) => match position(suffix) {
            Some(0) => Err(unsatisfiable()),
            // Of an empty file no range can be named, so it is sent whole.
            Some(length) if size > 0 => Ok(Some(((size - length).max(0), size))),
            _ => Ok(None),
        },
        (first, last) => {
            let last = if last.is_empty() { Some(i64::MAX) } else { position(last) };
            match (position(first), last) {
                (Some(first), Some(last)) if last < first => Ok(None),
                (Some(first), Some(_)) if first >= size => Err(unsatisfiable()),
                (Some(first), Some(last)) => Ok(Some((first, last.saturating_add(1).min(size)))),
                _ => Ok(None),
            }
        }
    }
}

/// Digits; what does not fit is behind every end.
fn position(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(i64::MAX))
}

fn unsatisfiable() -> Error {
    Error::new(Code::RangeNotSatisfiable, "the range begins behind the end of the file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_read_as_written() {
        for (header, expected) in [
            ("bytes=0-0", Some((0, 1))),
            ("bytes=2-5", Some((2, 6))),
            ("Bytes= 2-5", Some((2, 6))),
            ("bytes=9-", Some((9, 10))),
            ("bytes=5-99999999999999999999", Some((5, 10))),
            ("bytes=-3", Some((7, 10))),
            ("bytes=-99999999999999999999", Some((0, 10))),
            ("bytes=0-1,3-4", None),
            ("bytes=5-2", None),
            ("bytes=-", None),
            ("bytes=a-b", None),
            ("bytes=+1-2", None),
            ("bytes", None),
            ("lines=1-2", None),
        ] {
            assert_eq!(range(header, 10), Ok(expected), "{header}");
        }
    }

    #[test]
    fn a_range_behind_the_end_cannot_be_satisfied() {
        for (header, size) in
            [("bytes=10-", 10), ("bytes=10-12", 10), ("bytes=-0", 10), ("bytes=0-0", 0)]
        {
            let code = range(header, size).map_err(|error| error.code);
            assert_eq!(code, Err(Code::RangeNotSatisfiable), "{header} of {size}");
        }
        assert_eq!(range("bytes=-5", 0), Ok(None));
        assert_eq!(
            range("bytes=99999999999999999999-", 10).map_err(|e| e.code),
            Err(Code::RangeNotSatisfiable)
        );
    }
}
