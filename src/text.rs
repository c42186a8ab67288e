//! Texts as agents write them: surrogates without their half, NUL, titles of any length.
use crate::ids::{HEX_DIGITS, is_hex};
use crate::limits::{NAMED_UPLOADS_MAX, SEARCHED_BYTES_MAX, SHA256_DIGITS, TITLE_CHARS_MAX};
use std::borrow::Cow;
use unicode_segmentation::UnicodeSegmentation;

const REPLACEMENT: &str = "\\ufffd";

/// The JSON text with every escaped surrogate that has no other half replaced by U+FFFD, so that
/// it can be decoded. Everything else stays byte for byte.
pub fn replace_lone_surrogates(json: &str) -> Cow<'_, str> {
    let unit = |at: usize| -> Option<u32> {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u32::from_str_radix(digits, 16).ok()
    };
    let (mut out, mut kept_to, mut at) = (String::new(), 0, 0);
    while let Some(offset) = json[at..].find('\\') {
        at += offset;
        match unit(at) {
            Some(0xd800..=0xdbff) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => at += 12,
            Some(0xd800..=0xdfff) => {
                out.push_str(&json[kept_to..at]);
                out.push_str(REPLACEMENT);
                at += 6;
                kept_to = at;
            }
            // A backslash and the character it escapes, whatever that is.
            _ => at += 1 + json[at + 1..].chars().next().map_or(0, char::len_utf8),
        }
    }
    if kept_to == 0 {
        return json.into();
    }
    out.push_str(&json[kept_to..]);
    out.into()
}

/// One string token of a JSON text.
pub struct Token<'a> {
    pub is_key: bool,
    /// With its quotes.
    quoted: &'a str,
}

impl Token<'_> {
    pub fn decode(&self) -> Cow<'_, str> {
        let inner = &self.quoted[1..self.quoted.len() - 1];
        if inner.contains('\\') {
            serde_json::from_str::<String>(self.quoted).unwrap_or_default().into()
        } else {
            inner.into()
        }
    }
}

/// The string tokens of a valid JSON text in order, however deeply nested.
pub fn string_tokens(json: &str) -> impl Iterator<Item = Token<'_>> {
    let bytes = json.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + bytes[at..].iter().position(|&b| b == b'"')?;
        let mut end = start + 1;
        while *bytes.get(end)? != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        at = end + 1;
        let next = bytes[at..].iter().find(|b| !b.is_ascii_whitespace());
        Some(Token { is_key: next == Some(&b':'), quoted: &json[start..=end] })
    })
}

/// What search finds a message by: its `text` if that is a string, else all its string values.
/// NUL becomes a space, because SQL text ends there.
pub fn searched_text(message: &str, text: Option<&str>) -> String {
    let mut out = String::new();
    if let Some(text) = text {
        out.push_str(up_to_bytes(text, SEARCHED_BYTES_MAX));
    } else {
        for token in string_tokens(message).filter(|token| !token.is_key) {
            if !out.is_empty() {
                out.push(' ');
            }
            let left = SEARCHED_BYTES_MAX.saturating_sub(out.len());
            out.push_str(up_to_bytes(&token.decode(), left));
            if out.len() >= SEARCHED_BYTES_MAX - 3 {
                break;
            }
        }
    }
    out.replace('\0', " ")
}

fn up_to_bytes(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// A captured title: one line, no control characters, cut between characters as a reader sees
/// them. Nothing where nothing is left.
pub fn title(text: &str) -> Option<String> {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    let cut = cut(&line, TITLE_CHARS_MAX).trim_end();
    (!cut.is_empty()).then(|| cut.to_owned())
}

/// The longest beginning of at most `chars_max` characters that ends between two characters as
/// a reader sees them.
pub fn cut(text: &str, chars_max: usize) -> &str {
    let Some((limit, _)) = text.char_indices().nth(chars_max) else {
        return text;
    };
    let whole = text.grapheme_indices(true).take_while(|(at, g)| at + g.len() <= limit);
    &text[..whole.last().map_or(0, |(at, g)| at + g.len())]
}

/// Every upload's id that a JSON text names, in any string or key, without repeats; one more than
/// `NAMED_UPLOADS_MAX` where there are more.
pub fn upload_ids(json: &str) -> Vec<String> {
    const PREFIX: &str = "upload_";
    let mut found = Vec::new();
    for token in string_tokens(json) {
        let text = token.decode();
        for (at, _) in text.match_indices(PREFIX) {
            let end = at + PREFIX.len() + HEX_DIGITS;
            let id = text.get(at..end).filter(|id| is_hex(&id[PREFIX.len()..], HEX_DIGITS));
            if let Some(id) = id.filter(|id| !found.iter().any(|known| known == id)) {
                found.push(id.to_owned());
                if found.len() > NAMED_UPLOADS_MAX {
                    return found;
                }
            }
        }
    }
    found
}

/// Every content reference that a JSON text names, in any string or key, without repeats:
/// `sha256:` or `ref:<output, error or message>:`, and 64 lowercase hex digits.
pub fn content_refs(json: &str) -> Vec<String> {
    const PREFIXES: [&str; 4] = ["sha256:", "ref:output:", "ref:error:", "ref:message:"];
    let mut found = std::collections::BTreeSet::new();
    if !json.contains(':') && !json.contains("\\u") {
        return Vec::new();
    }
    for token in string_tokens(&replace_lone_surrogates(json)) {
        let text = token.decode();
        for (at, prefix) in PREFIXES.iter().flat_map(|prefix| text.match_indices(prefix)) {
            let digits = at + prefix.len();
            let hex = text.get(digits..digits + SHA256_DIGITS);
            if hex.is_some_and(|hex| is_hex(hex, SHA256_DIGITS)) {
                found.insert(text[at..digits + SHA256_DIGITS].to_owned());
            }
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_surrogates_without_their_half_are_replaced() {
        let json = r#""\ud83d\ude00 \ud99c \udc00 \\ud99c \u0000 現""#;
        let expected = r#""\ud83d\ude00 \ufffd \ufffd \\ud99c \u0000 現""#;
        assert_eq!(replace_lone_surrogates(json), expected);
        assert_eq!(replace_lone_surrogates(r#""\ud83d\ud83d\ude00""#), r#""\ufffd\ud83d\ude00""#);
        assert_eq!(replace_lone_surrogates(r#""\"#), r#""\"#);
    }

    #[test]
    fn a_text_wins_over_other_strings_and_keys_are_not_searched() {
        let message = r#"{"role":"user","a":{"k":["x\ny",1,{"deep":"z\u0000w"}]}}"#;
        assert_eq!(searched_text(message, None), "user x\ny z w");
        assert_eq!(searched_text(message, Some("only")), "only");
    }

    #[test]
    fn searched_text_ends_within_its_limit_between_characters() {
        let long = "é".repeat(SEARCHED_BYTES_MAX);
        assert_eq!(searched_text("{}", Some(&long)).len(), SEARCHED_BYTES_MAX);
    }

    #[test]
    fn titles_are_cut_between_characters_as_a_reader_sees_them() {
        let family = "👨‍👩‍👧‍👦";
        let text = ["a".repeat(TITLE_CHARS_MAX - 3), family.into()].concat();
        assert_eq!(title(&text).unwrap(), "a".repeat(TITLE_CHARS_MAX - 3));
        assert_eq!(title(" \n\t "), None);
        assert_eq!(title("one\ntwo\u{0}three").unwrap(), "one two three");
        assert_eq!(title(&"é".repeat(10_000)).unwrap().chars().count(), TITLE_CHARS_MAX);
        assert_eq!(cut("aaa😀😀😀", 5), "aaa😀😀");
    }

    #[test]
    fn every_upload_named_anywhere_is_found_once() {
        let (a, b) = ("a".repeat(32), "b".repeat(32));
        let json = format!(
            r#"{{"upload_{a}":"upload_notes.txt and upload_{b}upload_{a}","x":"upload_\u0061{}"}}"#,
            "a".repeat(31)
        );
        assert_eq!(upload_ids(&json), [format!("upload_{a}"), format!("upload_{b}")]);
    }

    #[test]
    fn every_content_reference_named_anywhere_is_found_once() {
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        let json = format!(
            r#"{{"ref:output:{a}":["see sha256:{b}b, \ud800sha256:{b}","ref:\u006dessage:{a}"],
                "x":"ref:other:{a} sha256:{} SHA256:{a} ref:error:{}"}}"#,
            "A".repeat(64),
            "b".repeat(63)
        );
        let expected =
            [format!("ref:message:{a}"), format!("ref:output:{a}"), format!("sha256:{b}")];
        assert_eq!(content_refs(&json), expected);
    }
}
