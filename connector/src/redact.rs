//! Secrets are taken out of every line before anything of it leaves the machine: out of messages,
//! titles and bundles alike. A line stays JSON: no pattern matches a quote, and a match never
//! begins or ends inside of an escape.
use crate::error::{Error, Result};
use aho_corasick::AhoCorasick;
use regex::Regex;
use std::borrow::Cow;

/// A pattern is only tried on lines that hold one of its words.
struct Pattern {
    name: &'static str,
    words: &'static [&'static str],
    /// The group `secret` is what goes; all of the match where there is none.
    regex: &'static str,
}

/// What may stand before a secret: nothing that a name could go on with, or an escape.
macro_rules! begin {
    ($rest:literal) => {
        concat!(r"(?:\A|[^A-Za-z0-9_\\-]|\\[nrtbf]|\\u00[01][0-9a-fA-F])", $rest)
    };
}

const PATTERNS: &[Pattern] = &[
    Pattern {
        name: "private-key",
        words: &["PRIVATE KEY"],
        regex: r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[A-Za-z0-9+/=\\:,. \t\r\n-]*?-----END [A-Z ]{0,30}PRIVATE KEY-----",
    },
    Pattern { name: "anthropic-key", words: &["sk-ant-"], regex: r"sk-ant-[A-Za-z0-9_-]{20,}" },
    Pattern {
        name: "openai-key",
        words: &["sk-"],
        regex: begin!(r"(?P<secret>sk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{32,})"),
    },
    Pattern {
        name: "aws-key-id",
        words: &["AKIA", "ASIA"],
        regex: begin!(r"(?P<secret>(?:AKIA|ASIA)[0-9A-Z]{16})\b"),
    },
    Pattern {
        name: "github-token",
        words: &["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"],
        regex: r"(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})",
    },
    Pattern { name: "gitlab-token", words: &["glpat-"], regex: r"glpat-[A-Za-z0-9_-]{20,}" },
    Pattern { name: "slack-token", words: &["xox"], regex: r"xox[abposr]-[A-Za-z0-9-]{20,}" },
    Pattern { name: "google-key", words: &["AIza"], regex: r"AIza[A-Za-z0-9_-]{35}" },
    Pattern {
        name: "stripe-key",
        words: &["k_live_", "k_test_"],
        regex: r"[sr]k_(?:live|test)_[A-Za-z0-9]{20,}",
    },
    Pattern {
        name: "npm-token",
        words: &["npm_"],
        regex: begin!(r"(?P<secret>npm_[A-Za-z0-9]{36})"),
    },
    Pattern {
        name: "teamplane-token",
        words: &["tp_"],
        regex: r"tp_(?:user|machine|app)_[0-9a-f]{32}_[0-9a-f]{32}_[0-9a-f]{64}",
    },
    Pattern {
        name: "jwt",
        words: &["eyJ"],
        regex: begin!(
            r"(?P<secret>eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,})"
        ),
    },
    Pattern {
        name: "password-in-url",
        words: &["://"],
        regex: r"[a-z][a-z0-9+.]{1,20}://[A-Za-z0-9._%+~!-]{0,100}:(?P<secret>[A-Za-z0-9._%+~!#&*=^-]{3,200})@",
    },
    Pattern {
        name: "bearer-token",
        words: &["earer "],
        regex: r"[Bb]earer (?P<secret>[A-Za-z0-9._~+/-]{24,}=*)",
    },
    Pattern {
        name: "assigned-secret",
        words: &["SECRET", "TOKEN", "PASSWORD", "PASSWD", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY"],
        regex: r#"[A-Z0-9_]*(?:SECRET|TOKEN|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|PRIVATE_KEY)[A-Z0-9_]*=(?:\\*["'])?(?P<secret>[A-Za-z0-9+/=_.~-]{8,})"#,
    },
    Pattern {
        name: "aws-secret",
        words: &["aws_secret_access_key"],
        regex: r#"aws_secret_access_key(?:\\*["'])?\s*[=:]\s*(?:\\*["'])?(?P<secret>[A-Za-z0-9+/]{40})"#,
    },
];

pub struct Redactor {
    patterns: Vec<(String, Regex)>,
    /// Which patterns a found word belongs to.
    words: AhoCorasick,
    of_word: Vec<usize>,
    /// Patterns of the configuration: they name no words, so they are tried everywhere.
    always: Vec<usize>,
}

impl Redactor {
    /// With `extra` patterns besides the built-in ones.
    pub fn new(extra: &[String]) -> Result<Redactor> {
        let (mut patterns, mut words, mut of_word) = (Vec::new(), Vec::new(), Vec::new());
        for (index, pattern) in PATTERNS.iter().enumerate() {
            let regex = Regex::new(pattern.regex).expect("a test compiles every pattern");
            patterns.push((pattern.name.to_owned(), regex));
            for word in pattern.words {
                words.push(*word);
                of_word.push(index);
            }
        }
        let mut always = Vec::new();
        for text in extra {
            let regex = Regex::new(text).map_err(|error| {
                Error::usage(format!("config: redact.patterns: {text:?} is no pattern: {error}"))
            })?;
            always.push(patterns.len());
            patterns.push(("configured".to_owned(), regex));
        }
        let words = AhoCorasick::new(&words).expect("a fixed list of short words");
        Ok(Redactor { patterns, words, of_word, always })
    }

    /// The text without its secrets, and how many went.
    pub fn redact<'a>(&self, text: &'a str) -> (Cow<'a, str>, u64) {
        let mut tried = self.always.clone();
        for found in self.words.find_overlapping_iter(text) {
            let pattern = self.of_word[found.pattern().as_usize()];
            if !tried.contains(&pattern) {
                tried.push(pattern);
                if tried.len() == self.patterns.len() {
                    break;
                }
            }
        }
        tried.sort_unstable();
        let (mut text, mut count) = (Cow::Borrowed(text), 0);
        for (name, regex) in tried.into_iter().map(|index| &self.patterns[index]) {
            if let Some((redacted, hits)) = apply(name, regex, &text) {
                text = Cow::Owned(redacted);
                count += hits;
            }
        }
        (text, count)
    }

    /// The same for the bytes of a line, which may not be UTF-8.
    pub fn redact_bytes<'a>(&self, bytes: &'a [u8]) -> (Cow<'a, [u8]>, u64) {
        match std::str::from_utf8(bytes) {
            Ok(text) => match self.redact(text) {
                (Cow::Borrowed(_), _) => (Cow::Borrowed(bytes), 0),
                (Cow::Owned(text), count) => (Cow::Owned(text.into_bytes()), count),
            },
            Err(_) => match self.redact(&String::from_utf8_lossy(bytes)) {
                (_, 0) => (Cow::Borrowed(bytes), 0),
                (text, count) => (Cow::Owned(text.into_owned().into_bytes()), count),
            },
        }
    }
}

fn apply(name: &str, regex: &Regex, text: &str) -> Option<(String, u64)> {
    let (mut out, mut kept_to, mut count) = (String::new(), 0, 0);
    for captures in regex.captures_iter(text) {
        let Some(secret) = captures.name("secret").or_else(|| captures.get(0)) else { continue };
        let is_done = secret.as_str().contains("[redacted");
        if secret.is_empty() || is_done || secret.as_str().contains('"') && name == "configured" {
            continue;
        }
        out.push_str(&text[kept_to..secret.start()]);
        out.push_str("[redacted ");
        out.push_str(name);
        out.push(']');
        kept_to = secret.end();
        count += 1;
    }
    if count == 0 {
        return None;
    }
    out.push_str(&text[kept_to..]);
    Some((out, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redact(text: &str) -> (String, u64) {
        let (text, count) = Redactor::new(&[]).unwrap().redact(text);
        (text.into_owned(), count)
    }

    #[test]
    fn each_kind_of_secret_goes() {
        let x = |n| "x1Y".repeat(n);
        for secret in [
            format!("sk-ant-api03-{}", x(20)),
            format!("sk-proj-{}", x(20)),
            "AKIAIOSFODNN7EXAMPLE".into(),
            format!("ghp_{}", x(12)),
            format!("github_pat_{}", x(20)),
            format!("glpat-{}", x(7)),
            format!("xoxb-{}", x(10)),
            format!("AIza{}xy", x(11)),
            format!("sk_live_{}", x(8)),
            format!("npm_{}", x(12)),
            format!("tp_machine_{0}_{0}_{0}{0}", "0123456789abcdef".repeat(2)),
            format!("eyJ{}.eyJ{}.{}", x(8), x(8), x(8)),
            r"-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----".into(),
        ] {
            for (before, after) in
                [("", ""), (r#"{"text":"key: "#, r#" ok"}"#), (r#"{"t":"a\n"#, r#"\n"}"#)]
            {
                let (text, count) = redact(&format!("{before}{secret}{after}"));
                assert!(!text.contains(&secret[..secret.len() - 2]), "{text}");
                assert!(count >= 1 && text.starts_with(before) && text.ends_with(after), "{text}");
            }
        }
    }

    #[test]
    fn what_gives_a_secret_away_stays_and_the_line_stays_json() {
        for (line, expected) in [
            (
                r#"{"a":"postgres://ada:hunter22@db/x"}"#,
                r#"{"a":"postgres://ada:[redacted password-in-url]@db/x"}"#,
            ),
            (
                r#"{"a":"export DB_PASSWORD=hunter2hunter\nls"}"#,
                r#"{"a":"export DB_PASSWORD=[redacted assigned-secret]\nls"}"#,
            ),
            (
                r#"{"a":"aws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12"}"#,
                r#"{"a":"aws_secret_access_key = [redacted aws-secret]"}"#,
            ),
            (
                r#"{"a":"Authorization: Bearer abcdefghijklmnopqrstuvwxyz012345"}"#,
                r#"{"a":"Authorization: Bearer [redacted bearer-token]"}"#,
            ),
        ] {
            assert_eq!(redact(line), (expected.to_owned(), 1));
            assert!(crate::json::is_valid(expected));
        }
    }

    #[test]
    fn what_only_looks_like_one_stays() {
        for text in [
            "task-abcdefghijklmnopqrstuvwxyzabcdefghijkl",
            "PASSWORD=$DB_PASSWORD and https://example.com:8080/a@b",
            "BAKIAIOSFODNN7EXAMPLE",
            "the TOKEN= of eyJ.eyJ.x, sk-short",
        ] {
            assert_eq!(redact(text), (text.to_owned(), 0));
        }
    }

    #[test]
    fn a_second_time_nothing_goes() {
        let once =
            redact("API_TOKEN=abcdefghijkl and https://a:bcdefg@h and AKIAIOSFODNN7EXAMPLE").0;
        assert_eq!(redact(&once), (once.clone(), 0));
    }

    #[test]
    fn configured_patterns_join_in() {
        let redactor = Redactor::new(&["orchard-[0-9]+".into()]).unwrap();
        assert_eq!(redactor.redact("x orchard-12").0, "x [redacted configured]");
        assert!(Redactor::new(&["(".into()]).is_err());
    }
}
