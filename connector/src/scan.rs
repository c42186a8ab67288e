//! Reads transcripts: whole, or what a file has grown by. Nothing of their text is held.
use crate::bundle::{Digested, Digester};
use crate::json;
use crate::limits::{DOCUMENT_BYTES_MAX, LINE_HEAD_BYTES, TAIL_BYTES};
use crate::lines::{Lines, Piece};
use crate::outline::{Entry, digest, first_bytes};
use crate::redact::Redactor;
use crate::transcripts::{Harness, Reader, Row};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{File, Metadata};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Tells whether a file may have changed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub size: u64,
    pub modified_ms: i64,
    modified_ns: u32,
    inode: u64,
}

impl Stamp {
    pub fn of(metadata: &Metadata) -> Stamp {
        let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Stamp {
            size: metadata.len(),
            modified_ms: modified.map_or(0, |m| i64::try_from(m.as_millis()).unwrap_or(i64::MAX)),
            modified_ns: modified.map_or(0, |modified| modified.subsec_nanos()),
            inode,
        }
    }
}

pub struct Scan {
    pub reader: Reader,
    /// As the file was when it was opened; nothing that came later is in.
    pub stamp: Stamp,
    /// Up to where its rows are in.
    consumed: u64,
    /// What was before that, so that a file that was written anew is told from one that grew.
    tail: Vec<u8>,
    /// None too for a file that is too large for one, although it was read for it.
    pub bundle: Option<Digested>,
    pub for_bundle: bool,
}

/// Reads all of it; with a `redactor` also what its bundle would be.
pub fn full(path: &Path, harness: Harness, redactor: Option<&Redactor>) -> io::Result<Scan> {
    let mut file = File::open(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    let mut scan = Scan {
        reader: Reader::new(harness),
        stamp,
        consumed: 0,
        tail: Vec::new(),
        bundle: None,
        for_bundle: redactor.is_some(),
    };
    if is_document(path) {
        scan.bundle = read_document(&mut scan.reader, file, &stamp, redactor)?;
        scan.consumed = stamp.size;
        return Ok(scan);
    }
    let mut digester = redactor.map(|redactor| (redactor, Digester::default()));
    scan.consumed = read_rows(&mut scan.reader, &mut file, 0, stamp.size, |piece| {
        if let Some((redactor, digester)) = &mut digester {
            let (bytes, count) = redactor.redact_bytes(piece.bytes);
            digester.add(&bytes, count);
        }
    })?;
    scan.tail = read_tail(&mut file, scan.consumed)?;
    scan.bundle = digester.and_then(|(_, digester)| digester.finish());
    Ok(scan)
}

impl Scan {
    /// Reads on where the file has grown. False where it did something else: it must be read anew.
    pub fn follow(&mut self, path: &Path) -> io::Result<bool> {
        let mut file = File::open(path)?;
        let stamp = Stamp::of(&file.metadata()?);
        let grew = stamp.inode == self.stamp.inode && stamp.size > self.stamp.size;
        if stamp == self.stamp {
            return Ok(true);
        }
        if !grew || is_document(path) || read_tail(&mut file, self.consumed)? != self.tail {
            return Ok(false);
        }
        self.consumed = read_rows(&mut self.reader, &mut file, self.consumed, stamp.size, |_| {})?;
        self.tail = read_tail(&mut file, self.consumed)?;
        self.stamp = stamp;
        self.bundle = None;
        self.for_bundle = false;
        Ok(true)
    }
}

fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

fn read_document(
    reader: &mut Reader,
    file: File,
    stamp: &Stamp,
    redactor: Option<&Redactor>,
) -> io::Result<Option<Digested>> {
    if stamp.size > DOCUMENT_BYTES_MAX {
        let message = format!("a transcript in one document may have {DOCUMENT_BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    let mut bytes = Vec::new();
    file.take(stamp.size).read_to_end(&mut bytes)?;
    // Offsets are those of the file, so nothing of it is replaced.
    let Ok(text) = std::str::from_utf8(&bytes) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the transcript is not UTF-8"));
    };
    reader.take_document(text);
    let Some(redactor) = redactor else { return Ok(None) };
    let mut digester = Digester::default();
    let mut lines = Lines::new(bytes.as_slice(), 0, stamp.size);
    while let Some(piece) = lines.next()? {
        let (bytes, count) = redactor.redact_bytes(piece.bytes);
        digester.add(&bytes, count);
    }
    Ok(digester.finish())
}

/// Reads the rows from `from` to `to`, and answers where the first row begins that is not in.
fn read_rows(
    reader: &mut Reader,
    file: &mut File,
    from: u64,
    to: u64,
    mut each: impl FnMut(&Piece),
) -> io::Result<u64> {
    file.seek(SeekFrom::Start(from))?;
    let mut lines = Lines::new(BufReader::with_capacity(128 << 10, file), from, to);
    let mut long: Option<Long> = None;
    let mut consumed = from;
    while let Some(piece) = lines.next()? {
        each(&piece);
        let end = piece.offset + piece.bytes.len() as u64;
        if piece.starts_line && (piece.ends_line || end == to) {
            if !piece.ends_line && !is_whole(piece.content()) {
                // Somebody is still writing it, or never ended it.
                break;
            }
            take(reader, &piece);
            consumed = end;
            continue;
        }
        let line = long.get_or_insert_with(|| Long::new(piece.offset));
        line.add(&piece);
        if piece.ends_line {
            line.take(reader);
            long = None;
            consumed = end;
        }
    }
    Ok(consumed)
}

/// A last line without its newline counts once it cannot become anything else.
fn is_whole(line: &[u8]) -> bool {
    let text = std::str::from_utf8(line).map(str::trim);
    text.is_ok_and(|text| text.starts_with('{') && json::is_valid(text))
}

fn take(reader: &mut Reader, piece: &Piece) {
    let content = piece.content();
    reader.take(&Row {
        offset: piece.offset,
        len: u32::try_from(content.len()).unwrap_or(u32::MAX),
        text: &String::from_utf8_lossy(content),
        digest: digest(content),
        is_head: false,
    });
}

/// A line that comes in pieces.
struct Long {
    offset: u64,
    len: u64,
    head: Vec<u8>,
    hasher: Sha256,
}

impl Long {
    fn new(offset: u64) -> Long {
        Long { offset, len: 0, head: Vec::new(), hasher: Sha256::new() }
    }

    fn add(&mut self, piece: &Piece) {
        let content = piece.content();
        self.len += content.len() as u64;
        let room = LINE_HEAD_BYTES.saturating_sub(self.head.len()).min(content.len());
        self.head.extend_from_slice(&content[..room]);
        self.hasher.update(content);
    }

    fn take(&mut self, reader: &mut Reader) {
        reader.take(&Row {
            offset: self.offset,
            len: u32::try_from(self.len).unwrap_or(u32::MAX),
            text: &String::from_utf8_lossy(&self.head),
            digest: first_bytes(&self.hasher.finalize_reset()),
            is_head: true,
        });
    }
}

fn read_tail(file: &mut File, end: u64) -> io::Result<Vec<u8>> {
    let start = end.saturating_sub(TAIL_BYTES as u64);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(end - start).read_to_end(&mut tail)?;
    Ok(tail)
}

/// A message's row as the file has it now; None where that is another one. Of a line that is too
/// long only its beginning.
pub fn read_row(file: &mut File, entry: &Entry) -> io::Result<Option<Vec<u8>>> {
    let is_head = entry.is_oversize();
    let len = if is_head { LINE_HEAD_BYTES } else { entry.len as usize };
    let mut bytes = vec![0; len];
    file.seek(SeekFrom::Start(entry.offset))?;
    match file.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    Ok((is_head || digest(&bytes) == entry.digest).then_some(bytes))
}
