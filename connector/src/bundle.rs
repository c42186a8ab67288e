//! A bundle: the native file without its secrets, as the plane keeps it beside a session. Its
//! chunks are hashed in one pass over the file and those that the plane lacks sent in a second.
use crate::client::{Body, Client};
use crate::error::{Error, Result};
use crate::files::hex;
use crate::limits::{ARTIFACTS_MAX, CHUNK_BYTES, CHUNKS_NAMED_MAX, UPLOAD_BYTES_MAX};
use crate::lines::Lines;
use crate::redact::Redactor;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

type Hash = [u8; 32];

/// What goes into one upload: a file beyond an upload's limit takes several.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Part {
    pub size: u64,
    pub sha256: Hash,
    pub chunks: Vec<Hash>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Digested {
    pub parts: Vec<Part>,
    pub redactions: u64,
}

/// A part as a capture names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    pub bundle_id: String,
    pub upload_id: String,
    pub name: String,
}

/// What was uploaded last.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    pub artifacts: Vec<Artifact>,
    /// Of each part, to tell whether the file is another one now.
    sha256s: Vec<String>,
    pub at_ms: i64,
}

impl Bundle {
    pub fn is_of(&self, digested: &Digested) -> bool {
        let now = digested.parts.iter().map(|part| hex(&part.sha256));
        !self.artifacts.is_empty() && self.sha256s.iter().eq(now.collect::<Vec<_>>().iter())
    }
}

#[derive(Default)]
pub struct Digester {
    done: Vec<Part>,
    part: Part,
    whole: Sha256,
    chunk: Sha256,
    in_chunk: usize,
    redactions: u64,
}

impl Digester {
    pub fn add(&mut self, mut bytes: &[u8], redactions: u64) {
        self.redactions += redactions;
        while !bytes.is_empty() {
            let taken = (CHUNK_BYTES - self.in_chunk).min(bytes.len());
            let (piece, rest) = bytes.split_at(taken);
            self.whole.update(piece);
            self.chunk.update(piece);
            self.in_chunk += taken;
            self.part.size += taken as u64;
            bytes = rest;
            if self.in_chunk == CHUNK_BYTES {
                self.end_chunk();
            }
            if self.part.size == UPLOAD_BYTES_MAX {
                self.end_part();
            }
        }
    }

    fn end_chunk(&mut self) {
        if self.in_chunk > 0 {
            self.part.chunks.push(self.chunk.finalize_reset().into());
            self.in_chunk = 0;
        }
    }

    fn end_part(&mut self) {
        self.end_chunk();
        self.part.sha256 = self.whole.finalize_reset().into();
        self.done.push(std::mem::take(&mut self.part));
    }

    /// None for a file that is too large to be kept beside a session.
    pub fn finish(mut self) -> Option<Digested> {
        if self.part.size > 0 || self.done.is_empty() {
            self.end_part();
        }
        let fits = self.done.len() <= ARTIFACTS_MAX;
        fits.then_some(Digested { parts: self.done, redactions: self.redactions })
    }
}

#[derive(Deserialize)]
struct Created {
    id: String,
}

#[derive(Deserialize)]
struct Attached {
    missing: Vec<usize>,
}

/// Uploads the file of which `size` bytes were digested; `progress` hears of the bytes sent.
pub async fn upload(
    client: &Client,
    path: &Path,
    size: u64,
    digested: &Digested,
    redactor: &Arc<Redactor>,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<Bundle> {
    let name: String = path.file_name().unwrap_or_default().to_string_lossy().into();
    let name: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
    let mut uploads = Vec::new();
    let mut missing = BTreeSet::new();
    for (index, part) in digested.parts.iter().enumerate() {
        let body = json!({
            "size": part.size,
            "sha256": hex(&part.sha256),
            "media_type": "application/x-ndjson",
            "chunk_size": CHUNK_BYTES,
        });
        let created: Created = client.json(Method::POST, "/uploads", Body::json(&body)).await?;
        let path = format!("/uploads/{}/chunks", created.id);
        for (at, hashes) in part.chunks.chunks(CHUNKS_NAMED_MAX).enumerate() {
            let first = at * CHUNKS_NAMED_MAX;
            let named: Vec<_> = hashes
                .iter()
                .enumerate()
                .map(|(i, hash)| json!({ "index": first + i, "sha256": hex(hash) }))
                .collect();
            let body = Body::json(&json!({ "chunks": named }));
            let attached: Attached = client.json(Method::POST, &path, body).await?;
            missing.extend(attached.missing.into_iter().map(|chunk| (index, chunk)));
        }
        uploads.push(created.id);
    }
    if !missing.is_empty() {
        let wanted = Wanted { missing, parts: digested.parts.clone(), size };
        send_missing(client, path, wanted, redactor, &uploads, progress).await?;
    }

    let count = uploads.len();
    let mut artifacts = Vec::new();
    for (index, upload_id) in uploads.into_iter().enumerate() {
        let path = format!("/uploads/{upload_id}/commit");
        client.json::<Created>(Method::POST, &path, Body::json(&json!({}))).await?;
        let (bundle_id, name) = match count {
            1 => ("native".to_owned(), name.clone()),
            _ => (format!("native-{index}"), format!("{name} ({} of {count})", index + 1)),
        };
        artifacts.push(Artifact { bundle_id, upload_id, name });
    }
    let sha256s = digested.parts.iter().map(|part| hex(&part.sha256)).collect();
    Ok(Bundle { artifacts, sha256s, at_ms: crate::files::now_ms() })
}

struct Wanted {
    missing: BTreeSet<(usize, usize)>,
    parts: Vec<Part>,
    size: u64,
}

struct Chunk {
    part: usize,
    index: usize,
    sha256: Hash,
    bytes: Vec<u8>,
}

async fn send_missing(
    client: &Client,
    path: &Path,
    wanted: Wanted,
    redactor: &Arc<Redactor>,
    uploads: &[String],
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<()> {
    let (sender, mut chunks) = mpsc::channel(2);
    let (owned_path, redactor) = (path.to_owned(), Arc::clone(redactor));
    let reading =
        tokio::task::spawn_blocking(move || read_missing(&owned_path, &wanted, &redactor, &sender));
    while let Some(Chunk { part, index, sha256, bytes }) = chunks.recv().await {
        let path = format!("/uploads/{}/chunks/{index}", uploads[part]);
        let digest = format!("sha-256=:{}:", STANDARD.encode(sha256));
        let sent = bytes.len() as u64;
        let body = Body::bytes(bytes).with("content-digest", digest);
        client.send(Method::PUT, &path, body).await?;
        progress(sent);
    }
    let all = reading.await.map_err(|error| Error::other(error.to_string()))?;
    let all = all.map_err(|error| Error::io(path.display(), error))?;
    if all { Ok(()) } else { Err(Error::Changed) }
}

/// False when the file is no longer what was digested.
fn read_missing(
    path: &Path,
    wanted: &Wanted,
    redactor: &Redactor,
    sender: &mpsc::Sender<Chunk>,
) -> io::Result<bool> {
    let file = File::open(path)?;
    let mut lines = Lines::new(BufReader::with_capacity(128 << 10, file), 0, wanted.size);
    let (mut part, mut index) = (0, 0);
    let mut buffer: Vec<u8> = Vec::with_capacity(CHUNK_BYTES);
    let mut deliver = |buffer: &mut Vec<u8>| -> bool {
        let Some(expected) = wanted.parts.get(part).and_then(|part| part.chunks.get(index)) else {
            return false;
        };
        let bytes = std::mem::replace(buffer, Vec::with_capacity(CHUNK_BYTES));
        if wanted.missing.contains(&(part, index)) {
            if Hash::from(Sha256::digest(&bytes)) != *expected {
                return false;
            }
            let chunk = Chunk { part, index, sha256: *expected, bytes };
            if sender.blocking_send(chunk).is_err() {
                return false;
            }
        }
        index += 1;
        if index == wanted.parts[part].chunks.len() {
            (part, index) = (part + 1, 0);
        }
        true
    };
    while let Some(piece) = lines.next()? {
        let (bytes, _) = redactor.redact_bytes(piece.bytes);
        let mut bytes: &[u8] = &bytes;
        while !bytes.is_empty() {
            let (taken, rest) = bytes.split_at((CHUNK_BYTES - buffer.len()).min(bytes.len()));
            buffer.extend_from_slice(taken);
            bytes = rest;
            if buffer.len() == CHUNK_BYTES && !deliver(&mut buffer) {
                return Ok(false);
            }
        }
    }
    if !buffer.is_empty() && !deliver(&mut buffer) {
        return Ok(false);
    }
    Ok(part == wanted.parts.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_those_of_the_bytes_however_they_come() {
        let bytes: Vec<u8> =
            (0..CHUNK_BYTES * 2 + 5).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let mut whole = Digester::default();
        whole.add(&bytes, 1);
        let mut pieces = Digester::default();
        bytes.chunks(1_000).for_each(|piece| pieces.add(piece, 0));
        let (whole, pieces) = (whole.finish().unwrap(), pieces.finish().unwrap());
        assert_eq!((&whole.parts, whole.redactions, pieces.redactions), (&pieces.parts, 1, 0));
        let [part] = &whole.parts[..] else { panic!() };
        assert_eq!((part.size, part.chunks.len()), (bytes.len() as u64, 3));
        assert_eq!(part.sha256, Hash::from(Sha256::digest(&bytes)));
        assert_eq!(part.chunks[2], Hash::from(Sha256::digest(&bytes[CHUNK_BYTES * 2..])));
    }

    #[test]
    fn an_empty_file_is_one_empty_part() {
        let digested = Digester::default().finish().unwrap();
        assert_eq!((digested.parts.len(), digested.parts[0].size), (1, 0));
    }
}
