//! Brings one transcript up: reads what is new of it, asks the rules, publishes.
use crate::bundle;
use crate::capture::{Publisher, Sent};
use crate::client::Client;
use crate::config::Config;
use crate::discover::Transcript;
use crate::error::{Error, Result};
use crate::files::now_ms;
use crate::limits::{BUNDLE_AGE_MAX, LARGE_FILE_BYTES};
use crate::outline;
use crate::redact::Redactor;
use crate::rules::{Rules, Subject};
use crate::scan::{self, Scan, Stamp};
use crate::state::{SessionState, Store};
use crate::transcripts::Facts;
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::sync::Mutex;

/// Raised when the same row would become another message.
const FORMAT: &str = "1";

pub struct Syncer {
    pub client: Arc<Client>,
    pub store: Store,
    pub rules: RwLock<Rules>,
    redactor: Arc<Redactor>,
    format: u64,
    quiet: Duration,
    large: Mutex<()>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Takes the bundle along even if the file is still being written.
    pub with_bundle: bool,
    pub restore: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Published(Sent),
    Unchanged,
    Empty,
    Excluded(&'static str),
    /// The session was deleted on the plane.
    Stopped,
}

pub struct Synced {
    pub outcome: Outcome,
    pub state: SessionState,
    /// To go on from, when the file grows.
    pub scan: Scan,
    /// Whether the native file is still to follow, once it is quiet.
    pub bundle_is_due: bool,
}

pub trait Progress: Send + Sync {
    fn messages(&self, _sent: usize, _of: usize) {}
    fn bytes(&self, _sent: u64) {}
}

pub struct NoProgress;
impl Progress for NoProgress {}

impl Syncer {
    pub fn new(client: Arc<Client>, store: Store, config: &Config) -> Result<Syncer> {
        let format = format!("{FORMAT}\n{}", config.redact.patterns.join("\n"));
        Ok(Syncer {
            client,
            store,
            rules: RwLock::new(Rules::new(&config.exclude, &[])?),
            redactor: Arc::new(Redactor::new(&config.redact.patterns)?),
            format: outline::digest(format.as_bytes()),
            quiet: config.quiet(),
            large: Mutex::new(()),
        })
    }

    /// `known` is what was read of the file before.
    pub async fn sync(
        &self,
        transcript: &Transcript,
        known: Option<Scan>,
        options: Options,
        progress: &dyn Progress,
    ) -> Result<Synced> {
        let size = std::fs::metadata(&transcript.path).map_or(0, |metadata| metadata.len());
        // The outline of a large file is large too: one at a time keeps memory bounded.
        let _turn = if size > LARGE_FILE_BYTES { Some(self.large.lock().await) } else { None };
        let scan = self.read(transcript, known, options).await?;
        let facts = &scan.reader.facts;
        let native_id = self.native_id(transcript, facts);
        let mut state = self.store.load(transcript.harness(), &native_id);
        state.set_format(self.format);
        state.path.clone_from(&transcript.path);
        state.turn = facts.turn;
        if options.restore {
            state.stopped = None;
        }

        let refused = self.refuse(transcript, facts);
        let outcome = match refused {
            _ if state.stopped.is_some() => Ok(Outcome::Stopped),
            Some(why) => Ok(Outcome::Excluded(why)),
            None if scan.reader.outline.is_empty() => Ok(Outcome::Empty),
            None => self.publish(transcript, &scan, &mut state, options, progress).await,
        };
        let outcome = match outcome {
            Err(error) if error.code() == "session_deleted" => Outcome::Stopped,
            Err(error) => {
                if !matches!(error, Error::Unreachable(_) | Error::Changed) {
                    state.error = Some(error.to_string());
                    self.store.save(&state)?;
                }
                return Err(error);
            }
            Ok(outcome) => outcome,
        };
        let is_published = matches!(outcome, Outcome::Published(_) | Outcome::Unchanged);
        let has_bundle = state.bundle.is_some() || scan.bundle.is_none() || state.bundle_refused;
        let is_done = scan.for_bundle && has_bundle;
        if is_published && is_done {
            state.stamp = Some(scan.stamp);
        }
        let bundle_is_due = is_published && state.stamp.as_ref() != Some(&scan.stamp);
        if is_published || outcome == Outcome::Stopped {
            state.error = None;
            state.updated_ms = scan.stamp.modified_ms;
            self.store.save(&state)?;
        }
        Ok(Synced { outcome, state, scan, bundle_is_due })
    }

    /// Reads on where it can be, otherwise all of it; with the bundle when the file is at rest.
    async fn read(
        &self,
        transcript: &Transcript,
        known: Option<Scan>,
        options: Options,
    ) -> Result<Scan> {
        let (path, harness) = (transcript.path.clone(), transcript.harness());
        let redactor = Arc::clone(&self.redactor);
        let with_bundle = options.with_bundle || self.is_quiet(&path);
        let read = tokio::task::spawn_blocking(move || {
            if let Some(mut scan) = known.filter(|_| !with_bundle)
                && scan.follow(&path)?
            {
                return Ok(scan);
            }
            scan::full(&path, harness, with_bundle.then_some(&redactor))
        });
        let scan = read.await.map_err(|error| Error::other(error.to_string()))?;
        scan.map_err(|error| Error::io(transcript.path.display(), error))
    }

    fn is_quiet(&self, path: &Path) -> bool {
        let Ok(metadata) = std::fs::metadata(path) else { return false };
        let quiet_ms = i64::try_from(self.quiet.as_millis()).unwrap_or(i64::MAX);
        now_ms() - Stamp::of(&metadata).modified_ms >= quiet_ms
    }

    /// Two files may name one session: the one that was there first keeps the name.
    fn native_id(&self, transcript: &Transcript, facts: &Facts) -> String {
        let native_id = transcript.native_id(facts);
        let state = self.store.load(transcript.harness(), &native_id);
        let is_anothers = !state.path.as_os_str().is_empty()
            && state.path != transcript.path
            // A document whose log took over is the same session.
            && state.path.with_extension("jsonl") != transcript.path
            && state.path.exists();
        if !is_anothers {
            return native_id;
        }
        let stem = transcript.path.file_stem().unwrap_or_default().to_string_lossy();
        format!("{native_id}/{stem}")
    }

    fn refuse(&self, transcript: &Transcript, facts: &Facts) -> Option<&'static str> {
        let rules = self.rules.read().expect("no holder panics");
        rules.refuse(&Subject {
            root_id: &transcript.root.id,
            harness: transcript.harness().name(),
            file: &transcript.path,
            below: transcript.path.strip_prefix(&transcript.root.path).unwrap_or(&transcript.path),
            cwds: &facts.cwds,
        })
    }

    async fn publish(
        &self,
        transcript: &Transcript,
        scan: &Scan,
        state: &mut SessionState,
        options: Options,
        progress: &dyn Progress,
    ) -> Result<Outcome> {
        let mut redactions = None;
        let due_at = state.bundle.as_ref().map_or(0, |bundle| bundle.at_ms)
            + i64::try_from(BUNDLE_AGE_MAX.as_millis()).unwrap_or(i64::MAX);
        let overdue;
        let mut whole = scan;
        if scan.bundle.is_none() && state.bundle.is_some() && now_ms() > due_at {
            // Never quiet: its bundle would stay an old one.
            overdue = self.read_whole(transcript).await?;
            whole = &overdue;
        }
        if let Some(digested) = &whole.bundle {
            redactions = Some(digested.redactions);
            if !state.bundle.as_ref().is_some_and(|bundle| bundle.is_of(digested)) {
                let size = whole.stamp.size;
                let sent = |bytes| progress.bytes(bytes);
                match bundle::upload(
                    &self.client,
                    &transcript.path,
                    size,
                    digested,
                    &self.redactor,
                    &sent,
                )
                .await
                {
                    Ok(bundle) => {
                        state.bundle = Some(bundle);
                        state.bundle_refused = false;
                    }
                    // The server takes no upload of this size; the messages go up all the same.
                    Err(error) if error.code() == "too_large" => {
                        tracing::warn!("{}: no bundle: {error}", transcript.path.display());
                        state.bundle = None;
                        state.bundle_refused = true;
                    }
                    Err(error) => return Err(error),
                }
            }
        }

        let facts = &scan.reader.facts;
        let total = scan.reader.outline.len();
        let done = std::sync::atomic::AtomicUsize::new(0);
        let publisher = Publisher {
            client: &self.client,
            store: &self.store,
            redactor: &self.redactor,
            path: &transcript.path,
            harness: transcript.harness(),
            title: facts.title().map(|title| self.redactor.redact(title).0.into_owned()),
            projection: self.projection(transcript, facts),
            restore: options.restore,
            progress: &|count| {
                let before = done.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
                progress.messages(before + count, total);
            },
        };
        let sent = publisher.publish(&scan.reader.outline, state).await?;
        if let Some(redactions) = redactions {
            // Counted over all of the file.
            state.redactions = redactions;
        }
        Ok(if sent.captures == 0 { Outcome::Unchanged } else { Outcome::Published(sent) })
    }

    async fn read_whole(&self, transcript: &Transcript) -> Result<Scan> {
        self.read(transcript, None, Options { with_bundle: true, ..Options::default() }).await
    }

    /// What is known of the session besides its messages.
    fn projection(&self, transcript: &Transcript, facts: &Facts) -> String {
        let projection = json!({ "connector": {
            "cwd": facts.cwds.first(),
            "branch": facts.branch,
            "agent_version": facts.version,
            "is_subagent": transcript.is_subagent(facts),
            "parent_native_id": transcript.parent(facts),
        }});
        self.redactor.redact(&projection.to_string()).0.into_owned()
    }
}

#[derive(serde::Deserialize)]
pub struct Configuration {
    pub source: Source,
    pub rules: Vec<crate::rules::Rule>,
}

#[derive(serde::Deserialize)]
pub struct Source {
    pub state: String,
}

impl Syncer {
    /// Takes the server's rules over; says whether they are others than before. Nothing may be
    /// published before that.
    pub async fn refresh_rules(
        &self,
        machine_id: &str,
        config: &Config,
    ) -> Result<(Configuration, bool)> {
        let path = format!("/machines/{machine_id}/configuration");
        let configuration: Configuration =
            self.client.json(reqwest::Method::GET, &path, crate::client::Body::none()).await?;
        let rules = Rules::new(&config.exclude, &configuration.rules)?;
        let mut held = self.rules.write().expect("no holder panics");
        let has_changed = held.revisions != rules.revisions;
        *held = rules;
        Ok((configuration, has_changed))
    }
}
