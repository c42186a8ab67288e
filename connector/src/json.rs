//! Lenient reading of what agents wrote: fields may be missing, doubled or of another type, and
//! strings may hold halves of surrogates. What is passed on is the raw text, never a copy that was
//! parsed and written again.
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

const REPLACEMENT: &str = "\\ufffd";

/// The fields of a JSON object, in order. Of a field that is there twice the last one counts.
pub struct Object<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Object<'a> {
    /// None for everything that is no object.
    pub fn parse(json: &'a str) -> Option<Object<'a>> {
        // A list would be read as a map's fields by position.
        json.trim_start().starts_with('{').then(|| serde_json::from_str(json).ok())?
    }

    pub fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(name, _)| name == key).map(|(_, value)| *value)
    }

    pub fn text(&self, key: &str) -> Option<Cow<'a, str>> {
        self.get(key).and_then(string)
    }

    pub fn object(&self, key: &str) -> Option<Object<'a>> {
        Object::parse(self.get(key)?.get())
    }

    pub fn list(&self, key: &str) -> Vec<&'a RawValue> {
        self.get(key).map(list).unwrap_or_default()
    }

    pub fn is_true(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value.get() == "true")
    }

    pub fn fields(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), *value))
    }
}

#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object<'a>, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((Text(key), value)) = map.next_entry()? {
                    fields.push((key, value));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Fields).map(Object)
    }
}

pub fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text>(value.get()).ok().map(|Text(text)| text)
}

pub fn list(value: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(value.get()).unwrap_or_default()
}

pub fn is_valid(json: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(json).is_ok()
}

pub fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// The JSON text with every escaped surrogate that has no other half replaced by U+FFFD, so that
/// it can be decoded. Everything else stays byte for byte.
pub fn replace_lone_surrogates(json: &str) -> Cow<'_, str> {
    let unit = |at: usize| -> Option<u32> {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u32::from_str_radix(digits, 16).ok()
    };
    if memchr::memmem::find(json.as_bytes(), b"\\ud").is_none()
        && memchr::memmem::find(json.as_bytes(), b"\\uD").is_none()
    {
        return json.into();
    }
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
            _ => at += 1 + json[at + 1..].chars().next().map_or(0, char::len_utf8),
        }
    }
    if kept_to == 0 {
        return json.into();
    }
    out.push_str(&json[kept_to..]);
    out.into()
}

/// The JSON text with every string of more than `bytes_max` cut, between characters and escapes.
pub fn cut_strings(json: &str, bytes_max: usize) -> Cow<'_, str> {
    let bytes = json.as_bytes();
    let (mut out, mut kept_to, mut at) = (String::new(), 0, 0);
    while let Some(offset) = memchr::memchr(b'"', &bytes[at..]) {
        let start = at + offset + 1;
        let mut end = start;
        // The last place where the string may be cut.
        let mut cut = start;
        while let Some(&byte) = bytes.get(end) {
            if end - start <= bytes_max && json.is_char_boundary(end) {
                cut = end;
            }
            match byte {
                b'"' => break,
                b'\\' => end += if bytes.get(end + 1) == Some(&b'u') { 6 } else { 2 },
                _ => end += 1,
            }
        }
        let end = end.min(bytes.len());
        if end - start > bytes_max {
            // A surrogate does not lose its other half.
            if is_high_surrogate(&bytes[start..cut]) {
                cut -= 6;
            }
            out.push_str(&json[kept_to..cut]);
            out.push_str(&format!("… [cut here: {} more bytes in the bundle]", end - cut));
            kept_to = end;
        }
        at = (end + 1).min(bytes.len());
    }
    if kept_to == 0 {
        return json.into();
    }
    out.push_str(&json[kept_to..]);
    out.into()
}

fn is_high_surrogate(before: &[u8]) -> bool {
    let Some(escape) = before.len().checked_sub(6).map(|at| &before[at..]) else { return false };
    let digits = escape.strip_prefix(b"\\u").and_then(|d| std::str::from_utf8(d).ok());
    let unit = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    matches!(unit, Some(0xd800..=0xdbff))
}

/// The longest beginning of at most `bytes_max` that ends between two characters.
pub fn up_to(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_doubled_field_the_last_counts_and_wrong_types_are_nothing() {
        let object = Object::parse(r#"{"a":1,"a":"x","b":[1],"\u0063":true}"#).unwrap();
        assert_eq!(object.text("a").unwrap(), "x");
        assert!(object.text("b").is_none() && object.is_true("c") && object.get("d").is_none());
        assert!(Object::parse("[1]").is_none() && Object::parse("{").is_none());
    }

    #[test]
    fn only_surrogates_without_their_half_are_replaced() {
        let json = r#""\ud83d\ude00 \ud99c \udc00 \\ud99c \u0000 現""#;
        let expected = r#""\ud83d\ude00 \ufffd \ufffd \\ud99c \u0000 現""#;
        assert_eq!(replace_lone_surrogates(json), expected);
        assert_eq!(replace_lone_surrogates(r#""\uD99C""#), r#""\ufffd""#);
    }

    #[test]
    fn long_strings_are_cut_between_characters_and_escapes() {
        let cut = |json: &str, max| cut_strings(json, max).into_owned();
        assert_eq!(cut(r#"{"a":"xyz"}"#, 3), r#"{"a":"xyz"}"#);
        for json in [r#"{"a":"éééé"}"#, r#"["\n\n\n\n"]"#, r#"["\u00e9\u00e9\u00e9"]"#] {
            for max in 0..12 {
                assert!(is_valid(&cut(json, max)), "{json} at {max}: {}", cut(json, max));
            }
        }
        let pair = r#"["a\ud83d\ude00bcdefghijk"]"#;
        for max in 0..20 {
            let cut = cut(pair, max);
            assert_eq!(replace_lone_surrogates(&cut), cut);
        }
    }
}
