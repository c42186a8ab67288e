//! Full-text search: what is asked for, and how a hit is shown.
//!
//! The index keeps no text, so a snippet is cut from the message itself: its words are told apart
//! and folded as the index does it.
use crate::domain::capture_parts::Message;
use crate::error::{Error, Result};
use crate::limits::{QUERY_CHARS_MAX, SNIPPET_CHARS_MAX, SNIPPET_PHRASES_MAX};
use crate::params;
use crate::store::{Db, Tx};
use crate::text::cut;
use unicode_normalization::{UnicodeNormalization, char::is_combining_mark};

const MATCH_BEGINS: char = '\u{2}';
const MATCH_ENDS: char = '\u{3}';
const SNIPPET_CHARS_BEFORE: usize = 60;

/// Where a session was found; no ordinal means in its title.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Hit {
    pub ordinal: Option<i64>,
    pub snippet: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Syntax {
    Literal,
    Fts,
}

/// A search as the index takes it.
pub struct Search {
    /// Nothing where no word is asked for, which finds nothing.
    pub expression: Option<String>,
    phrases: Vec<Phrase>,
}

/// Words that follow each other, folded; the last one may be only the beginning of a word.
struct Phrase {
    words: Vec<String>,
    is_prefix: bool,
}

impl Search {
    pub fn new(q: &str, syntax: Syntax) -> Result<Search> {
        if q.chars().count() > QUERY_CHARS_MAX {
            return Err(Error::field(
                "q",
                format!("may have at most {QUERY_CHARS_MAX} characters"),
            ));
        }
        let q = q.replace(|c: char| c.is_control(), " ");
        let mut search = match syntax {
            Syntax::Literal => Search::literal(&q),
            Syntax::Fts if is_balanced(&q) => Search { phrases: phrases(&q), expression: Some(q) },
            Syntax::Fts => {
                return Err(Error::field("q", "has a quote or parenthesis without its other half"));
            }
        };
        search.phrases.truncate(SNIPPET_PHRASES_MAX);
        Ok(search)
    }

    /// The expression within what the caller may see; nothing where that finds nothing.
    pub fn within(&self, scope: Option<&str>) -> Option<String> {
        let (expression, scope) = (self.expression.as_ref()?, scope?);
        Some(format!("text : ({expression}) AND scope : ({scope})"))
    }

    /// Every word must be there as it stands.
    fn literal(q: &str) -> Search {
        let asked: Vec<(&str, Phrase)> = q
            .split_whitespace()
            .map(|word| (word, Phrase { words: folded(word), is_prefix: false }))
            .filter(|(_, phrase)| !phrase.words.is_empty())
            .collect();
        let quoted: Vec<String> =
            asked.iter().map(|(word, _)| format!("\"{}\"", word.replace('"', "\"\""))).collect();
        Search {
            expression: (!quoted.is_empty()).then(|| quoted.join(" ")),
            phrases: asked.into_iter().map(|(_, phrase)| phrase).collect(),
        }
    }

    /// A window of the text around its first match, which stands between two marks.
    pub fn snippet(&self, text: &str) -> String {
        let words = words(text);
        let found = words.iter().enumerate().find_map(|(at, (from, to))| {
            let first = fold(&text[*from..*to]);
            self.phrases
                .iter()
                .filter(|phrase| phrase.begins_with(&first))
                .filter_map(|phrase| phrase.ends(text, &words[at..]))
                .max()
                .map(|end| *from..end)
        });
        let Some(found) = found else { return plain(cut(text, SNIPPET_CHARS_MAX)) };
        let begin = text[..found.start]
            .char_indices()
            .rev()
            .nth(SNIPPET_CHARS_BEFORE - 1)
            .map_or(0, |(at, _)| at);
        let before = plain(&text[begin..found.start]);
        let left = SNIPPET_CHARS_MAX - 2 - before.chars().count();
        let matched = plain(cut(&text[found.clone()], left));
        let after = plain(cut(&text[found.end..], left - matched.chars().count()));
        format!("{before}{MATCH_BEGINS}{matched}{MATCH_ENDS}{after}")
    }
}

impl Phrase {
    fn begins_with(&self, word: &str) -> bool {
        match &self.words[..] {
            [only] if self.is_prefix => word.starts_with(only.as_str()),
            [first, ..] => first == word,
            [] => false,
        }
    }

    /// Where the phrase ends if it stands at the beginning of these words.
    fn ends(&self, text: &str, words: &[(usize, usize)]) -> Option<usize> {
        let last = self.words.len().checked_sub(1)?;
        for (index, wanted) in self.words.iter().enumerate() {
            let (from, to) = *words.get(index)?;
            let word = fold(&text[from..to]);
            let fits = if index == last && self.is_prefix {
                word.starts_with(wanted.as_str())
            } else {
                word == *wanted
            };
            if !fits {
                return None;
            }
        }
        words.get(last).map(|(_, to)| *to)
    }
}

/// The phrases of an expression in the index's own syntax, as far as a snippet needs them.
fn phrases(expression: &str) -> Vec<Phrase> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(begin) = rest.find(|c: char| c == '"' || is_word(c)) {
        let quoted = rest[begin..].starts_with('"');
        let inner = &rest[begin + usize::from(quoted)..];
        let end = if quoted { inner.find('"') } else { inner.find(|c: char| !is_word(c)) };
        let (text, behind) = inner.split_at(end.unwrap_or(inner.len()));
        rest = if quoted { behind.get(1..).unwrap_or_default() } else { behind };
        let operator = !quoted && matches!(text, "AND" | "OR" | "NOT" | "NEAR");
        let words = folded(text);
        if !operator && !words.is_empty() {
            found.push(Phrase { words, is_prefix: rest.trim_start().starts_with('*') });
        }
    }
    found
}

/// Whether every quote and parenthesis has its other half, so that what is put around the
/// expression stays around it.
fn is_balanced(expression: &str) -> bool {
    let (mut depth, mut quoted) = (0_i32, false);
    for c in expression.chars() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return false;
        }
    }
    depth == 0 && !quoted
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || is_combining_mark(c)
}

/// Where the words of a text begin and end.
fn words(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut begin = None;
    for (at, c) in text.char_indices() {
        match (begin, is_word(c)) {
            (None, true) => begin = Some(at),
            (Some(from), false) => {
                found.push((from, at));
                begin = None;
            }
            _ => {}
        }
    }
    found.extend(begin.map(|from| (from, text.len())));
    found
}

fn folded(text: &str) -> Vec<String> {
    words(text).into_iter().map(|(from, to)| fold(&text[from..to])).collect()
}

fn fold(word: &str) -> String {
    if word.is_ascii() {
        return word.to_ascii_lowercase();
    }
    word.nfd().filter(|c| !is_combining_mark(*c)).flat_map(char::to_lowercase).collect()
}

/// On one line, and without characters that could pass for a mark.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A message that the index found, newest first.
pub struct Found {
    pub row_id: i64,
    pub session_id: String,
}

/// At most `count` hits older than `before`, and where to go on if there may be more. The index goes
/// straight to an integer; from a number with a fraction, as all are bound, it would begin anew.
pub fn messages(
    db: &Db,
    expression: &str,
    before: i64,
    count: usize,
) -> Result<(Vec<Found>, Option<i64>)> {
    let hits = db.query(
        "SELECT f.rowid, m.session_id
           FROM (SELECT rowid FROM message_search
                  WHERE message_search MATCH ?1 AND rowid < CAST(?2 AS INTEGER)
                  ORDER BY rowid DESC
                  LIMIT ?3) f
          CROSS JOIN messages m ON m.id = f.rowid",
        params![expression, before, count],
        |row| Ok(Found { row_id: row.get()?, session_id: row.get()? }),
    );
    let found = hits.map_err(expression_refused)?;
    let more = found.last().filter(|_| found.len() == count).map(|last| last.row_id);
    Ok((found, more))
}

/// Rows of sessions whose titles match, as `messages`.
pub fn titles(
    db: &Db,
    expression: &str,
    before: i64,
    count: usize,
) -> Result<(Vec<i64>, Option<i64>)> {
    let hits = db.query(
        "SELECT rowid FROM title_search
          WHERE title_search MATCH ?1 AND rowid < CAST(?2 AS INTEGER)
          ORDER BY rowid DESC
          LIMIT ?3",
        params![expression, before, count],
        |row| row.get::<i64>(),
    );
    let hits = hits.map_err(expression_refused)?;
    let more = hits.last().copied().filter(|_| hits.len() == count);
    Ok((hits, more))
}

/// What the index says of an expression that it cannot read is the caller's fault.
fn expression_refused(error: Error) -> Error {
    let known = ["fts5:", "no such column", "unterminated string", "unknown special query"];
    let said = error.message.split(" in: ").next().unwrap_or_default();
    if known.iter().any(|part| said.contains(part)) {
        let said = said.trim_end_matches(": SQLITE_ERROR");
        return Error::field("q", format!("is no full-text expression: {said}"));
    }
    error
}

/// Puts a session's title into the index, in place of the one before.
pub fn put_title(tx: &Tx, session_row_id: i64, title: Option<&str>, scope: &str) -> Result<()> {
    tx.execute("DELETE FROM title_search WHERE rowid = ?1", params![session_row_id])?;
    match title {
        None => Ok(()),
        Some(title) => tx.execute(
            "INSERT INTO title_search (rowid, text, scope) VALUES (?1, ?2, ?3)",
            params![session_row_id, title, scope],
        ),
    }
}

/// How a message is shown as a hit.
pub fn hit(search: &Search, sent: &str) -> Result<Hit> {
    let message = Message::read(sent)?;
    let snippet = search.snippet(&message.searched_text(sent));
    Ok(Hit { ordinal: Some(message.ordinal), snippet })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snippet(q: &str, syntax: Syntax, text: &str) -> String {
        Search::new(q, syntax).unwrap().snippet(text)
    }

    #[test]
    fn a_snippet_marks_the_first_match_however_it_is_written() {
        let literal = |q, text| snippet(q, Syntax::Literal, text);
        assert_eq!(literal("login", "Fix the login"), "Fix the \u{2}login\u{3}");
        assert_eq!(literal("uber", "Die Über-Sache"), "Die \u{2}Über\u{3}-Sache");
        assert_eq!(literal("foo-bar", "a foo b foo/bar\nc"), "a foo b \u{2}foo/bar\u{3} c");
        assert_eq!(literal("none", "nothing here"), "nothing here");
        let fts = |q, text| snippet(q, Syntax::Fts, text);
        assert_eq!(fts("NOT a OR log*", "the logins"), "the \u{2}logins\u{3}");
        assert_eq!(fts("\"two words\"", "one two words"), "one \u{2}two words\u{3}");
    }

    #[test]
    fn a_snippet_has_at_most_its_characters() {
        let text = format!("{} needle {}", "é".repeat(500), "😀".repeat(500));
        let snippet = snippet("needle", Syntax::Literal, &text);
        assert_eq!(snippet.chars().count(), SNIPPET_CHARS_MAX);
        assert!(snippet.contains("\u{2}needle\u{3}"));
        let long = "x".repeat(1000);
        let snippet = Search::new(&long, Syntax::Literal).unwrap().snippet(&long);
        assert!(snippet.chars().count() <= SNIPPET_CHARS_MAX);
    }

    #[test]
    fn words_are_literal_whatever_they_contain() {
        let expression = |q| Search::new(q, Syntax::Literal).unwrap().expression;
        assert_eq!(expression("a\"b NEAR(x)").unwrap(), "\"a\"\"b\" \"NEAR(x)\"");
        assert_eq!(expression("% _ * \" \\"), None);
        assert_eq!(expression(""), None);
    }
}
