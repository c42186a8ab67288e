//! Files, whole or one range of them (RFC 9110, section 14), and conditional requests for them.
use crate::api::{Answer, Call};
use crate::error::{Code, Error, Result};

pub struct File<'a> {
    pub size: i64,
    /// Its content's digest: the file of an address never changes.
    pub sha256: &'a str,
    pub media_type: &'a str,
}

/// The head of the answer to a GET, and the first byte and the end of what is to be sent; nothing
/// where the caller has the file already.
///
/// Several ranges, and what is no range, get the whole. `416 range_not_satisfiable` behind the end.
pub fn answer(call: &Call, file: &File) -> Result<(Answer, Option<(i64, i64)>)> {
    let tag = format!("\"{}\"", file.sha256);
    if call.names_tag("if-none-match", &tag) == Some(true) {
        let answer = Answer { status: 304, ..Answer::default() }.with("ETag", tag);
        return Ok((answer, None));
    }
    let asked =
        call.header("range").filter(|_| call.header("if-range").is_none_or(|one| one == tag));
    let range = asked.map_or(Ok(None), |header| range(header, file.size));
    let range = range
        .map_err(|error| error.with_header("Content-Range", format!("bytes */{}", file.size)))?;
    let (first, end) = range.unwrap_or((0, file.size));

    let status = if range.is_some() { 206 } else { 200 };
    let mut answer = Answer { status, ..Answer::default() }
        .with("Content-Type", file.media_type)
        .with("Content-Length", (end - first).to_string())
        .with("Accept-Ranges", "bytes")
        .with("ETag", tag)
        // It is what a client sent: no browser shall show or run it.
        .with("Content-Disposition", "attachment")
        .with("X-Content-Type-Options", "nosniff");
    if range.is_some() {
        let content_range = format!("bytes {first}-{}/{}", end - 1, file.size);
        answer = answer.with("Content-Range", content_range);
    }
    Ok((answer, Some((first, end))))
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
