//! What may be published. The machine's own `exclude` always holds. The server's rules: a root that
//! has none is published whole; of one that has some, what an active rule takes in and none keeps
//! out. A session is kept out if any folder that it worked in is.
use crate::config::expand;
use crate::error::{Error, Result};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::Deserialize;
use std::path::Path;

#[derive(Debug, Clone, Deserialize)]
pub struct Rule {
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub revision: i64,
    pub root_id: String,
    pub harnesses: Vec<String>,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    pub state: String,
}

#[derive(Default)]
pub struct Rules {
    own: Patterns,
    rules: Vec<Compiled>,
    /// Of each rule, to tell whether they changed.
    pub revisions: Vec<(String, i64)>,
}

struct Compiled {
    root_id: String,
    harnesses: Vec<String>,
    /// None: everything.
    include: Option<Patterns>,
    exclude: Patterns,
    is_active: bool,
}

/// What is asked about.
pub struct Subject<'a> {
    pub root_id: &'a str,
    pub harness: &'a str,
    pub file: &'a Path,
    /// The file's path below its root.
    pub below: &'a Path,
    pub cwds: &'a [String],
}

impl Rules {
    /// `own` are the machine's. A pattern of the server's that is none keeps everything of its rule
    /// out, since what it was meant to keep out is unknown.
    pub fn new(own: &[String], rules: &[Rule]) -> Result<Rules> {
        let own = Patterns::new(own)
            .map_err(|error| Error::usage(format!("config: exclude: {error}")))?;
        let revisions = rules.iter().map(|rule| (rule.id.clone(), rule.revision)).collect();
        let rules = rules.iter().map(|rule| {
            let broken = |error| {
                tracing::warn!(
                    "a rule of {}: {error}; nothing it is about is published",
                    rule.root_id
                );
                Patterns { everything: true, ..Patterns::default() }
            };
            let include = (!rule.include.is_empty())
                .then(|| Patterns::new(&rule.include).unwrap_or_default());
            Compiled {
                root_id: rule.root_id.clone(),
                harnesses: rule.harnesses.clone(),
                include,
                exclude: Patterns::new(&rule.exclude).unwrap_or_else(broken),
                is_active: rule.state == "active",
            }
        });
        Ok(Rules { own, rules: rules.collect(), revisions })
    }

    /// Why it may not be published; None if it may.
    pub fn refuse(&self, subject: &Subject) -> Option<&'static str> {
        if self.own.match_any(subject) {
            return Some("excluded by this machine's configuration");
        }
        let mut of_root =
            self.rules.iter().filter(|rule| rule.root_id == subject.root_id).peekable();
        of_root.peek()?;
        let of_harness = of_root.filter(|rule| {
            let all = rule.harnesses.is_empty();
            rule.is_active && (all || rule.harnesses.iter().any(|name| name == subject.harness))
        });
        let mut is_in = false;
        for rule in of_harness {
            if rule.exclude.match_any(subject) {
                return Some("excluded by a rule");
            }
            is_in |= rule.include.as_ref().is_none_or(|include| include.match_any(subject));
        }
        if is_in { None } else { Some("included by no rule") }
    }
}

#[derive(Default)]
struct Patterns {
    set: GlobSet,
    everything: bool,
}

impl Patterns {
    /// A pattern is of a path, and of all that is below it. `~` is this machine's home; a pattern
    /// without a slash is of a folder or file of that name anywhere.
    fn new(patterns: &[String]) -> Result<Patterns, globset::Error> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            let trimmed = pattern.trim_end_matches('/');
            let whole = match trimmed {
                "" => "/".to_owned(),
                name if !name.contains('/') && name != "~" => format!("**/{name}"),
                path => expand(path).to_string_lossy().into_owned(),
            };
            for glob in [whole.clone(), format!("{}/**", whole.trim_end_matches('/'))] {
                set.add(GlobBuilder::new(&glob).literal_separator(true).build()?);
            }
        }
        Ok(Patterns { set: set.build()?, everything: false })
    }

    fn match_any(&self, subject: &Subject) -> bool {
        self.everything
            || self.set.is_match(subject.file)
            || self.set.is_match(subject.below)
            || subject.cwds.iter().any(|cwd| self.set.is_match(cwd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(include: &[&str], exclude: &[&str], state: &str) -> Rule {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.into()).collect();
        Rule {
            id: "rule".into(),
            revision: 1,
            root_id: "claude-code".into(),
            harnesses: vec![],
            include: texts(include),
            exclude: texts(exclude),
            state: state.into(),
        }
    }

    fn published(own: &[&str], rules: &[Rule], cwds: &[&str]) -> bool {
        let own: Vec<String> = own.iter().map(|&text| text.into()).collect();
        let cwds: Vec<String> = cwds.iter().map(|&text| text.into()).collect();
        let subject = Subject {
            root_id: "claude-code",
            harness: "claude-code",
            file: Path::new("/home/ada/.claude/projects/-work-shop/a.jsonl"),
            below: Path::new("-work-shop/a.jsonl"),
            cwds: &cwds,
        };
        Rules::new(&own, rules).unwrap().refuse(&subject).is_none()
    }

    #[test]
    fn without_rules_a_root_is_published_whole_and_a_paused_one_takes_nothing_in() {
        assert!(published(&[], &[], &["/work/shop"]));
        assert!(!published(&[], &[rule(&[], &[], "paused")], &["/work/shop"]));
        assert!(published(&[], &[rule(&[], &[], "active")], &["/work/shop"]));
        let other = Rule { root_id: "codex".into(), ..rule(&["/x"], &[], "active") };
        assert!(published(&[], &[other], &["/work/shop"]));
    }

    #[test]
    fn a_rule_takes_in_a_folder_and_what_is_below_it() {
        for (include, expected) in [
            ("/work/shop", true),
            ("/work", true),
            ("/work/*", true),
            ("shop", true),
            ("**/shop/**", true),
            ("-work-shop", true),
            ("/work/sho", false),
            ("/other", false),
        ] {
            let rules = [rule(&[include], &[], "active")];
            assert_eq!(published(&[], &rules, &["/work/shop/api"]), expected, "{include}");
        }
    }

    #[test]
    fn what_is_excluded_anywhere_stays_out() {
        let cwds = ["/work/shop", "/work/shop/secret/x"];
        assert!(!published(&[], &[rule(&[], &["secret"], "active")], &cwds));
        let both = [rule(&[], &["secret"], "active"), rule(&["/work"], &[], "active")];
        assert!(!published(&[], &both, &cwds));
        assert!(!published(&["/work"], &[], &cwds));
        assert!(published(&[], &both, &cwds[..1]));
    }

    #[test]
    fn a_rule_is_of_its_harnesses_and_a_broken_pattern_keeps_all_out() {
        let codex = Rule { harnesses: vec!["codex".into()], ..rule(&[], &[], "active") };
        assert!(!published(&[], &[codex], &[]));
        assert!(!published(&[], &[rule(&[], &["a{"], "active")], &[]));
        assert!(!published(&[], &[rule(&["a{"], &[], "active")], &[]));
    }
}
