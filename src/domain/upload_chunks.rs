//! An upload's chunks. A reference says which bytes a chunk holds; the bytes are kept once per
//! team, under their SHA-256, as long as a reference names them.
use crate::api::{Answer, Call};
use crate::domain::publishing;
use crate::domain::uploads::{self, State, Upload};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{TeamId, hex};
use crate::limits::{CHUNKS_ATTACHED_MAX, CHUNKS_MAX, CHUNKS_MISSING_LISTED_MAX};
use crate::params;
use crate::store::{Db, Tx};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

const CONTENT_DIGEST: &str = "Content-Digest";

/// `PUT /uploads/{upload}/chunks/{index}` stores a chunk's bytes; the same bytes again change
/// nothing, whatever has become of the upload meanwhile.
///
/// `400` without a SHA-256 in `Content-Digest`, for an `index` beyond the end and for a `body` of
/// another length than that chunk's; `409 digest_mismatch` when the bytes are not what the header
/// says, `409 conflict` when the chunk holds other bytes.
pub fn put(tx: &Tx, call: &Call) -> Result<Answer> {
    let index = call.number(1)?;
    let declared = sha256_of(call.header("content-digest"))?;
    publishing::role(&call.who)?;
    let upload = uploads::load_to_write(tx, &call.who, &call.id(0)?)?;
    let length = upload.chunk_length(index)?;
    if usize::try_from(length) != Ok(call.bytes().len()) {
        let sent = call.bytes().len();
        let message = format!("chunk {index} has {length} bytes, and {sent} were sent");
        return Err(Error::field("body", message));
    }
    if Sha256::digest(call.bytes())[..] != declared {
        let message = "the bytes are not those that Content-Digest is of; send them again";
        return Err(Error::new(Code::DigestMismatch, message));
    }

    let (team_id, sha256) = (&call.who.team_id, hex(&declared));
    tx.execute(
        "INSERT INTO artifact_chunk_refs
             (team_id, upload_id, chunk_index, sha256, size, source_id)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (team_id, upload_id, chunk_index) DO NOTHING",
        params![team_id, &upload.id, index, &sha256, length, &upload.source_id],
    )?;
    let held = tx.query_one(
        "SELECT sha256
           FROM artifact_chunk_refs
          WHERE team_id = ?1 AND upload_id = ?2 AND chunk_index = ?3",
        params![team_id, &upload.id, index],
        |row| row.get::<String>(),
    )?;
    if held != sha256 {
        return Err(holds_other_bytes(index));
    }
    tx.execute(
        "INSERT INTO artifact_blobs (team_id, sha256, size, bytes)
         VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (team_id, sha256) DO NOTHING",
        params![team_id, &sha256, length, call.bytes()],
    )?;

    Ok(Answer::no_content())
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct AttachChunks {
    chunks: Vec<NamedChunk>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedChunk {
    index: i64,
    sha256: String,
}

impl AttachChunks {
    fn validate(&self) -> Result<()> {
        guard::at_most("chunks", self.chunks.len(), CHUNKS_ATTACHED_MAX)?;
        let mut seen = BTreeSet::new();
        for (at, chunk) in self.chunks.iter().enumerate() {
            guard::in_range(&format!("chunks[{at}].index"), chunk.index, 0..=CHUNKS_MAX - 1)?;
            guard::sha256(format!("chunks[{at}].sha256"), &chunk.sha256)?;
            if !seen.insert(chunk.index) {
                return Err(Error::field(format!("chunks[{at}].index"), "is there twice"));
            }
        }
        Ok(())
    }
}

/// `POST /uploads/{upload}/chunks` attaches those of the named chunks whose bytes an upload of the
/// same source already holds, and says which are still to be sent.
///
/// `400` for an index beyond the end; `409 conflict`, and nothing attached, when one of the
/// chunks holds other bytes.
pub fn attach(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: AttachChunks = call.json()?;
    body.validate()?;
    publishing::role(&call.who)?;
    let upload = uploads::load_to_write(tx, &call.who, &call.id(0)?)?;
    let mut wanted = Vec::new();
    for (at, NamedChunk { index, sha256 }) in body.chunks.iter().enumerate() {
        let length = upload.chunk_length(*index);
        let length = length.map_err(|e| e.with("field", format!("chunks[{at}].index")))?;
        wanted.push(json!([index, sha256, length]));
    }

    let (team_id, wanted) = (&call.who.team_id, json!(wanted).to_string());
    // Any reference tells the size of its bytes, so one of them is asked, by
    // artifact_chunk_refs_by_blob.
    tx.execute(
        "INSERT INTO artifact_chunk_refs
             (team_id, upload_id, chunk_index, sha256, size, source_id)
         SELECT ?1, ?2, w.value ->> 0, w.value ->> 1, w.value ->> 2, ?3
           FROM json_each(?4) w
          WHERE w.value ->> 2 =
                (SELECT held.size
                   FROM artifact_chunk_refs held
                  WHERE held.team_id = ?1 AND held.sha256 = w.value ->> 1 AND held.source_id = ?3
                  LIMIT 1)
         ON CONFLICT (team_id, upload_id, chunk_index) DO NOTHING",
        params![team_id, &upload.id, &upload.source_id, &wanted],
    )?;
    let held = tx.query(
        "SELECT held.chunk_index, held.sha256
           FROM json_each(?3) w
          CROSS JOIN artifact_chunk_refs held
             ON held.team_id = ?1 AND held.upload_id = ?2 AND held.chunk_index = w.value ->> 0",
        params![team_id, &upload.id, &wanted],
        |row| Ok((row.get::<i64>()?, row.get::<String>()?)),
    )?;

    let held: BTreeMap<i64, String> = held.into_iter().collect();
    let (mut attached, mut missing) = (Vec::new(), Vec::new());
    for NamedChunk { index, sha256 } in &body.chunks {
        match held.get(index) {
            Some(held) if held == sha256 => attached.push(index),
            Some(_) => return Err(holds_other_bytes(*index)),
            None => missing.push(index),
        }
    }
    call.one(200, &json!({ "attached": attached, "missing": missing }))
}

/// The first indexes that an upload misses.
pub fn missing(db: &Db, team_id: &TeamId, upload: &Upload) -> Result<Vec<i64>> {
    if upload.state == State::Committed {
        return Ok(Vec::new());
    }
    let held = db.query(
        "SELECT chunk_index
           FROM artifact_chunk_refs
          WHERE team_id = ?1 AND upload_id = ?2
          ORDER BY chunk_index
          LIMIT ?3",
        params![team_id, &upload.id, CHUNKS_MAX],
        |row| row.get::<i64>(),
    )?;
    let mut held = held.into_iter().peekable();
    let missing = (0..upload.chunk_count()).filter(|index| held.next_if_eq(index).is_none());
    Ok(missing.take(CHUNKS_MISSING_LISTED_MAX).collect())
}

/// A chunk's bytes, while its upload is there.
pub fn bytes(db: &Db, team_id: &TeamId, upload: &Upload, index: i64) -> Result<Option<Vec<u8>>> {
    db.query_optional(
        "SELECT b.bytes
           FROM uploads u
          CROSS JOIN artifact_chunk_refs r
             ON r.team_id = u.team_id AND r.upload_id = u.id AND r.chunk_index = ?3
          CROSS JOIN artifact_blobs b ON b.team_id = r.team_id AND b.sha256 = r.sha256
          WHERE u.team_id = ?1 AND u.id = ?2 AND u.state <> 'removing'",
        params![team_id, &upload.id, index],
        |row| row.get(),
    )
}

fn holds_other_bytes(index: i64) -> Error {
    let message = format!("chunk {index} holds other bytes, and a chunk never changes");
    Error::conflict(message).with("index", index)
}

/// The SHA-256 among a `Content-Digest` header's digests, as RFC 9530 writes them.
fn sha256_of(header: Option<&str>) -> Result<[u8; 32]> {
    let Some(header) = header else {
        return Err(Error::field(CONTENT_DIGEST, "send the bytes' digest as sha-256=:<base64>:"));
    };
    // A digest has no comma; of two with the same name the last one counts.
    let mut value = header.split(',').filter_map(|member| member.trim().strip_prefix("sha-256="));
    value
        .next_back()
        .and_then(byte_sequence)
        .ok_or_else(|| Error::field(CONTENT_DIGEST, "must hold sha-256=:<base64 of the 32 bytes>:"))
}

/// A byte sequence between colons, without its parameters.
fn byte_sequence(text: &str) -> Option<[u8; 32]> {
    let (base64, parameters) = text.strip_prefix(':')?.split_once(':')?;
    if !(parameters.is_empty() || parameters.starts_with(';')) {
        return None;
    }
    STANDARD_NO_PAD.decode(base64.trim_end_matches('=')).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_found_among_others() {
        let base64 = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
        for header in [
            format!("sha-256=:{base64}:"),
            format!("sha-512=:AAAA:, sha-256=:{base64}:;q=1"),
            format!("sha-256=:AAAA:,sha-256=:{}:", base64.trim_end_matches('=')),
        ] {
            assert_eq!(sha256_of(Some(&header)).unwrap()[..], Sha256::digest([])[..], "{header}");
        }
    }

    #[test]
    fn what_is_no_digest_names_the_header() {
        for header in [
            None,
            Some(""),
            Some("sha-256"),
            Some("sha-512=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"),
            Some("sha-256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="),
            Some("sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:x"),
            Some("sha-256=:47DEQpj8HBSa:"),
            Some("sha-256=:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855:"),
        ] {
            let error = sha256_of(header).unwrap_err();
            assert_eq!(error.details["field"], CONTENT_DIGEST, "{header:?}");
        }
    }
}
