//! The lines of a file, one at a time, with where each is. A line longer than may be held comes in
//! pieces, each cut behind a quote if there is one, so that a secret is not cut in two.
use crate::limits::LINE_BYTES_MAX;
use std::io::{self, BufRead};

/// A line, or a piece of one, with the newline that ends it.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    pub offset: u64,
    pub bytes: &'a [u8],
    pub starts_line: bool,
    /// Whether the line is complete with this piece. The last line of a file may never be.
    pub ends_line: bool,
}

impl Piece<'_> {
    /// Without the newline.
    pub fn content(&self) -> &[u8] {
        let bytes = self.bytes.strip_suffix(b"\n").unwrap_or(self.bytes);
        bytes.strip_suffix(b"\r").unwrap_or(bytes)
    }
}

pub struct Lines<R> {
    reader: R,
    offset: u64,
    /// Nothing behind this is read.
    end: u64,
    buffer: Vec<u8>,
    /// What of the buffer has been handed out.
    used: usize,
    in_line: bool,
    line_bytes_max: usize,
}

impl<R: BufRead> Lines<R> {
    /// Of what `reader` gives from `offset` on, up to `end`.
    pub fn new(reader: R, offset: u64, end: u64) -> Lines<R> {
        Lines {
            reader,
            offset,
            end,
            buffer: Vec::new(),
            used: 0,
            in_line: false,
            line_bytes_max: LINE_BYTES_MAX,
        }
    }

    pub fn next(&mut self) -> io::Result<Option<Piece<'_>>> {
        self.buffer.drain(..self.used);
        self.used = 0;
        let ends_line = self.fill()?;
        if self.buffer.is_empty() {
            return Ok(None);
        }
        // A piece that ends in no line is cut, and what is behind the cut stays for the next.
        let at_end = self.offset + self.buffer.len() as u64 >= self.end;
        self.used = if ends_line || at_end || self.buffer.len() < self.line_bytes_max {
            self.buffer.len()
        } else {
            memchr::memrchr(b'"', &self.buffer).map_or(self.buffer.len(), |quote| quote + 1)
        };
        let piece = Piece {
            offset: self.offset,
            bytes: &self.buffer[..self.used],
            starts_line: !self.in_line,
            ends_line,
        };
        self.offset += self.used as u64;
        self.in_line = !ends_line;
        Ok(Some(piece))
    }

    /// Reads on until a line is complete, the buffer full or the end there.
    fn fill(&mut self) -> io::Result<bool> {
        while self.buffer.len() < self.line_bytes_max {
            let left = self.end.saturating_sub(self.offset + self.buffer.len() as u64);
            let available = self.reader.fill_buf()?;
            let room = (self.line_bytes_max - self.buffer.len()).min(available.len());
            let room = usize::try_from(left).map_or(room, |left| room.min(left));
            if room == 0 {
                return Ok(false);
            }
            let newline = memchr::memchr(b'\n', &available[..room]);
            let taken = newline.map_or(room, |at| at + 1);
            self.buffer.extend_from_slice(&available[..taken]);
            self.reader.consume(taken);
            if newline.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str, end: u64, line_bytes_max: usize) -> Vec<(u64, String, bool, bool)> {
        let mut lines = Lines { line_bytes_max, ..Lines::new(text.as_bytes(), 0, end) };
        let mut all = Vec::new();
        while let Some(piece) = lines.next().unwrap() {
            let text = String::from_utf8(piece.content().to_vec()).unwrap();
            all.push((piece.offset, text, piece.starts_line, piece.ends_line));
        }
        all
    }

    #[test]
    fn lines_come_with_their_offset_and_a_partial_last_one_says_so() {
        assert_eq!(
            pieces("ab\r\n\ncd", 99, 10),
            [
                (0, "ab".into(), true, true),
                (4, String::new(), true, true),
                (5, "cd".into(), true, false)
            ]
        );
        assert!(pieces("", 99, 10).is_empty());
    }

    #[test]
    fn nothing_behind_the_end_is_read() {
        assert_eq!(pieces("ab\ncd\n", 4, 10)[1], (3, "c".into(), true, false));
    }

    #[test]
    fn a_long_line_comes_in_pieces_cut_behind_a_quote() {
        assert_eq!(
            pieces("{\"a\":12345678}\nx\n", 99, 8),
            [
                (0, "{\"a\"".into(), true, false),
                (4, ":1234567".into(), false, false),
                (12, "8}".into(), false, true),
                (15, "x".into(), true, true)
            ]
        );
    }
}
