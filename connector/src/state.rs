//! What was published of each session, so that after a crash or days offline only what is new goes
//! up. One file per session; one that cannot be read costs that session a full capture, no more.
use crate::bundle::Bundle;
use crate::error::{Error, Result};
use crate::files;
use crate::scan::Stamp;
use crate::transcripts::{Harness, Turn};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::PathBuf;

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionState {
    pub path: PathBuf,
    pub harness: Option<Harness>,
    pub native_id: String,
    /// Of the rules by which rows become messages; with others all of them may differ.
    pub format: u64,
    /// Of the file when all of it, its bundle too, was published.
    pub stamp: Option<Stamp>,
    pub published: Option<Published>,
    /// A capture whose commit may have gone through.
    pub pending: Option<Pending>,
    pub bundle: Option<Bundle>,
    /// The server takes none of that size.
    pub bundle_refused: bool,
    pub redactions: u64,
    /// Why nothing of it is published any more.
    pub stopped: Option<String>,
    pub error: Option<String>,
    pub turn: Turn,
    pub updated_ms: i64,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    pub session_id: String,
    pub revision: u64,
    pub count: usize,
    pub checkpoints: Vec<(u64, u64)>,
    pub title: Option<String>,
    pub projection: String,
    pub upload_ids: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    pub capture_id: String,
    pub parts: usize,
    /// What is published once it has gone through, but for what the commit answers.
    pub then: Published,
}

impl SessionState {
    pub fn set_format(&mut self, format: u64) {
        if self.format != format {
            self.format = format;
            self.stamp = None;
            self.pending = None;
            if let Some(published) = &mut self.published {
                published.checkpoints.clear();
            }
        }
    }
}

pub struct Store {
    folder: PathBuf,
}

impl Store {
    pub fn new(folder: PathBuf) -> Store {
        Store { folder }
    }

    pub fn load(&self, harness: Harness, native_id: &str) -> SessionState {
        let found = files::read_json::<SessionState>(&self.file(harness, native_id));
        let state = found.unwrap_or_else(|error| {
            tracing::warn!("{error}; the session is published anew");
            None
        });
        let mut state = state.unwrap_or_default();
        state.harness = Some(harness);
        native_id.clone_into(&mut state.native_id);
        state
    }

    pub fn save(&self, state: &SessionState) -> Result<()> {
        let harness = state.harness.ok_or_else(|| Error::other("a state without its harness"))?;
        files::write_json(&self.file(harness, &state.native_id), state)
    }

    pub fn all(&self) -> Vec<SessionState> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let files = entries.flatten().map(|entry| entry.path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
        files.filter_map(|path| files::read_json(&path).ok().flatten()).collect()
    }

    fn file(&self, harness: Harness, native_id: &str) -> PathBuf {
        let name = Sha256::digest(format!("{}\n{native_id}", harness.name()));
        self.folder.join(format!("{}.json", files::hex(&name[..16])))
    }
}
