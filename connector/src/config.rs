//! `config.toml`: everything in it is optional.
use crate::error::{Error, Result};
use crate::limits::QUIET;
use crate::transcripts::Harness;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const EXAMPLE: &str = r#"# What `teamplane run` reads besides the usual folders of each agent.
# [[roots]]
# id = "work"                      # rules name it
# path = "/srv/agents/claude"
# harness = "claude-code"          # claude-code, codex or gemini

# Folders of projects whose sessions never leave this machine, whatever the server's rules say.
# exclude = ["~/private", "**/secret-*"]

# [redact]
# patterns = ["orchard-[0-9]{8}"]  # besides the built-in ones

# What the team may ask this machine to do. Nothing, unless it is named here.
# [effects]
# allow = ["message", "interrupt"]
# [effects.commands]
# claude-code = ["claude", "-p", "--resume", "{native_id}", "{text}"]

# [sync]
# quiet_ms = 10000                 # the native file follows once it was not written for so long
"#;

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub roots: Vec<ExtraRoot>,
    /// Replaces the usual folders of an agent; an empty text reads none.
    pub folders: BTreeMap<Harness, String>,
    pub exclude: Vec<String>,
    pub redact: Redact,
    pub effects: Effects,
    pub sync: Sync,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtraRoot {
    pub id: String,
    pub path: String,
    pub harness: Harness,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Redact {
    pub patterns: Vec<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Effects {
    pub allow: Vec<String>,
    pub commands: BTreeMap<Harness, Vec<String>>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sync {
    quiet_ms: Option<u64>,
}

impl Config {
    pub fn read(path: &Path) -> Result<Config> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Config::default());
            }
            Err(error) => return Err(Error::io(path.display(), error)),
        };
        let config: Config = toml::from_str(&text)
            .map_err(|error| Error::usage(format!("{}: {error}", path.display())))?;
        for kind in &config.effects.allow {
            if !["message", "interrupt"].contains(&kind.as_str()) {
                let path = path.display();
                let message =
                    format!("{path}: effects.allow: {kind:?} is neither message nor interrupt");
                return Err(Error::usage(message));
            }
        }
        Ok(config)
    }

    pub fn quiet(&self) -> Duration {
        self.sync.quiet_ms.map_or(QUIET, Duration::from_millis)
    }
}

/// A path that may begin with `~`.
pub fn expand(path: &str) -> PathBuf {
    match (path.strip_prefix('~'), home()) {
        (Some(""), Some(home)) => home,
        (Some(rest), Some(home)) if rest.starts_with('/') => home.join(&rest[1..]),
        _ => PathBuf::from(path),
    }
}

pub fn home() -> Option<PathBuf> {
    directories::BaseDirs::new().map(|places| places.home_dir().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_parses_and_what_is_unknown_is_refused() {
        toml::from_str::<Config>(EXAMPLE).unwrap();
        let all = r#"
            exclude = ["~/private"]
            folders = { codex = "" }
            [[roots]]
            id = "work"
            path = "/srv/agents/claude"
            harness = "claude-code"
            [redact]
            patterns = ["orchard-[0-9]{8}"]
            [effects]
            allow = ["message", "interrupt"]
            [effects.commands]
            claude-code = ["claude", "-p", "--resume", "{native_id}", "{text}"]
            [sync]
            quiet_ms = 10000"#;
        assert_eq!(toml::from_str::<Config>(all).unwrap().quiet(), QUIET);
        assert!(toml::from_str::<Config>("no = 1").is_err());
    }
}
