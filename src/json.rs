//! Bodies and query strings become structs here, and what does not fit is refused by name.
use crate::error::{Code, Error, Result};
use crate::json_strict::Strict;
use crate::text::replace_lone_surrogates;
use serde::de::DeserializeOwned;

/// A JSON body. A surrogate without its half reads as U+FFFD.
pub fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let text = text(bytes)?;
    if text.trim_start().starts_with('[') {
        return Err(Error::new(Code::InvalidRequest, "the body must be an object"));
    }
    let mut json = serde_json::Deserializer::from_str(&text);
    let value = serde_path_to_error::deserialize(Strict(&mut json));
    let value = value.map_err(|e| refusal(e, &text))?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

/// A body's text with lone surrogates replaced; parsing may still refuse it.
pub fn text(bytes: &[u8]) -> Result<std::borrow::Cow<'_, str>> {
    std::str::from_utf8(bytes).map(replace_lone_surrogates).map_err(|_| not_utf8())
}

/// A struct that borrows from JSON text, whose raw parts stay as they are.
pub fn borrowed<'a, T: serde::Deserialize<'a>>(text: &'a str) -> Result<T> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(Strict(&mut json));
    let value = value.map_err(|e| refusal(e, text))?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

/// What we made ourselves, as JSON.
pub fn to_string(value: &(impl serde::Serialize + ?Sized)) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::internal(e.to_string()))
}

/// As `borrowed`, where it must be an object: a struct would also be read from a list.
pub fn object<'a, T: serde::Deserialize<'a>>(text: &'a str) -> Result<T> {
    if text.trim_start().starts_with('[') {
        return Err(Error::new(Code::InvalidRequest, "the body must be an object"));
    }
    borrowed(text)
}

/// A refusal inside of a field, named from outside of it.
pub fn within(field: &str, mut error: Error) -> Error {
    if let Some(serde_json::Value::String(inner)) = error.details.get_mut("field") {
        *inner = format!("{field}.{inner}");
    }
    error
}

pub fn not_utf8() -> Error {
    Error::new(Code::InvalidJson, "the body is not UTF-8")
}

fn refusal(error: serde_path_to_error::Error<serde_json::Error>, text: &str) -> Error {
    let path = error.path().to_string();
    let inner = error.into_inner();
    if inner.is_data() {
        return misfit(&path, &inner.to_string());
    }
    // A number where a name is expected is reported as if the text were broken.
    let whole = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    if whole { misfit(&path, "has the wrong type") } else { malformed(&inner) }
}

/// Query parameters that are whole numbers, which `parse` would also take with a plus.
const NUMBERS: &[&str] = &["limit", "revision", "after", "updated_after"];

/// A query string, without its question mark.
pub fn query<T: DeserializeOwned>(text: &str) -> Result<T> {
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        if value.starts_with('+') && NUMBERS.contains(&&*name) {
            return Err(Error::field(name, "must be a number without a plus"));
        }
    }
    let pairs = serde_urlencoded::Deserializer::new(form_urlencoded::parse(text.as_bytes()));
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let path = error.path().to_string();
        misfit(&path, &error.into_inner().to_string())
    })
}

pub fn malformed(error: &serde_json::Error) -> Error {
    Error::new(Code::InvalidJson, format!("the body is not JSON: {error}"))
}

/// Names the field: the path that was being read, and the name between backticks where the
/// message is about one that is missing, unknown or there twice.
fn misfit(path: &str, message: &str) -> Error {
    let named = ["missing field `", "unknown field `", "duplicate field `"]
        .iter()
        .find_map(|lead| message.strip_prefix(lead))
        .and_then(|rest| rest.split('`').next());
    let path = path.trim_matches('.');
    let field = match (path, named) {
        ("" | "?", Some(name)) => name.to_owned(),
        (path, Some(name)) if path.rsplit('.').next() != Some(name) => format!("{path}.{name}"),
        (path, _) => path.to_owned(),
    };
    let message = message.split(" at line ").next().unwrap_or(message);
    Error::field(field, message)
}

/// A field of a patch: absent, null or a value. Use with `#[serde(default)]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Patch<T> {
    #[default]
    Keep,
    Clear,
    Set(T),
}

impl<'de, T: serde::Deserialize<'de>> serde::Deserialize<'de> for Patch<T> {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(d)?.map_or(Patch::Clear, Patch::Set))
    }
}

/// A field of a patch that may be absent but not null. Use with
/// `#[serde(default, deserialize_with = "json::not_null")]`.
pub fn not_null<'de, D, T>(d: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de>,
{
    T::deserialize(d).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        name: String,
        #[serde(default)]
        inner: Vec<Inner>,
        #[serde(default)]
        note: Patch<String>,
        #[serde(default)]
        choice: Option<Choice>,
    }

    #[derive(serde::Deserialize, Debug, PartialEq)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        One,
    }

    #[derive(serde::Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        n: i64,
    }

    fn field(body_text: &str) -> String {
        let error = body::<Outer>(body_text.as_bytes()).unwrap_err();
        error.details.get("field").map_or(error.code.text(), |f| f.as_str().unwrap()).to_owned()
    }

    #[test]
    fn a_misfit_names_its_field() {
        assert_eq!(field(r#"{"name":1}"#), "name");
        assert_eq!(field("{}"), "name");
        assert_eq!(field(r#"{"name":"a","x":1}"#), "x");
        assert_eq!(field(r#"{"name":"a","inner":[{"n":1},{"n":"b"}]}"#), "inner[1].n");
        assert_eq!(field(r#"{"name":"a","inner":[{"m":1}]}"#), "inner[0].m");
        assert_eq!(field(r#"{"name":"a","inner":[[1]]}"#), "inner[0]");
        assert_eq!(field(r#"["a"]"#), "invalid_request");
        assert_eq!(field(r#"{"name":"a","name":"b"}"#), "name");
        assert_eq!(field(r#"{"name":"a","choice":"two"}"#), "choice");
        assert_eq!(field(r#"{"name":"a","choice":1}"#), "choice");
        assert_eq!(field(r#"{"name":"a","choice":}"#), "invalid_json");
        assert_eq!(field(r#"{"name":"#), "invalid_json");
        assert_eq!(field(r#"{"name":"a"} x"#), "invalid_json");
    }

    #[test]
    fn a_patch_tells_absent_from_null() {
        let note = |text: &str| body::<Outer>(text.as_bytes()).unwrap().note;
        assert_eq!(note(r#"{"name":"a"}"#), Patch::Keep);
        assert_eq!(note(r#"{"name":"a","note":null}"#), Patch::Clear);
        assert_eq!(note(r#"{"name":"a","note":"\ud800"}"#), Patch::Set("\u{fffd}".into()));
    }

    #[derive(serde::Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Query {
        limit: Option<u32>,
    }

    #[test]
    fn a_query_names_its_parameter() {
        let field = |text| query::<Query>(text).unwrap_err().details["field"].clone();
        assert_eq!(query::<Query>("limit=3").unwrap().limit, Some(3));
        assert_eq!(field("limit=x"), "limit");
        assert_eq!(field("nope=1"), "nope");
        assert_eq!(field("limit=%2B5"), "limit");
        assert_eq!(field("limit=+5"), "limit");
    }
}
