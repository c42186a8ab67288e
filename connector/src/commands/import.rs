//! Publishes transcripts once.
use crate::account;
use crate::config::Config;
use crate::discover::{self, Root, Transcript};
use crate::error::{Error, Result};
use crate::files::{Lock, Paths};
use crate::output::Output;
use crate::state::Store;
use crate::sync::{NoProgress, Options, Outcome, Progress, Synced, Syncer};
use crate::transcripts::Harness;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default, serde::Serialize)]
struct Totals {
    published: usize,
    unchanged: usize,
    excluded: usize,
    empty: usize,
    stopped: usize,
    failed: usize,
    messages: usize,
    secrets_redacted: u64,
}

pub async fn import(
    paths: &Paths,
    output: Output,
    files: &[PathBuf],
    harness: Option<&str>,
    restore: bool,
) -> Result<()> {
    let (machine, client) = account::machine_client(paths)?;
    // The daemon's states are these too: two writers would publish each message twice over.
    let _lock = Lock::take(&paths.state)?.ok_or_else(|| {
        Error::Running(
            "teamplane run is at work here and publishes by itself; stop it to import by hand"
                .into(),
        )
    })?;
    let config = Config::read(&paths.config)?;
    let transcripts = find(&config, files, harness.and_then(Harness::parse))?;
    let store = Store::new(paths.sessions(&machine.machine_id));
    let syncer = Syncer::new(Arc::new(client), store, &config)?;
    syncer.refresh_rules(&machine.machine_id, &config).await?;

    let bars = Bars::new(output, transcripts.len());
    let mut totals = Totals::default();
    let mut last_error = None;
    for transcript in &transcripts {
        let options = Options { with_bundle: true, restore };
        let progress = bars.start(&transcript.path);
        let result = sync(&syncer, transcript, options, progress.as_ref()).await;
        bars.finished();
        match result {
            Ok(done) => totals.add(output, &done),
            Err(error @ (Error::Rejected(_) | Error::Unreachable(_))) => return Err(error),
            Err(error) => {
                totals.failed += 1;
                tracing::error!("{}: {error}", transcript.path.display());
                last_error = Some(error);
            }
        }
    }
    drop(bars);
    output.say(&totals.text(), &json!({ "totals": totals }));
    match last_error {
        Some(_) if totals.failed > 1 => {
            Err(Error::other(format!("{} transcripts were not published", totals.failed)))
        }
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// A file that changes under it is read once more.
async fn sync(
    syncer: &Syncer,
    transcript: &Transcript,
    options: Options,
    progress: &dyn Progress,
) -> Result<Synced> {
    match syncer.sync(transcript, None, options, progress).await {
        Err(Error::Changed) => syncer.sync(transcript, None, options, progress).await,
        other => other,
    }
}

/// Of the agents' folders if none is named.
fn find(config: &Config, files: &[PathBuf], harness: Option<Harness>) -> Result<Vec<Transcript>> {
    let roots = discover::roots(config);
    let mut found: Vec<Transcript> = Vec::new();
    if files.is_empty() {
        let wanted = roots.iter().filter(|root| harness.is_none_or(|h| h == root.harness));
        found.extend(wanted.flat_map(|root| discover::find(root, &root.path)));
    }
    for file in files {
        let path = std::fs::canonicalize(file).map_err(|error| Error::io(file.display(), error))?;
        let root = root_of(&roots, &path, harness)?;
        let before = found.len();
        found.extend(discover::find(&root, &path));
        if found.len() == before && path.is_file() {
            let name = root.harness.name();
            return Err(Error::usage(format!("{}: is no transcript of {name}", file.display())));
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.dedup_by(|a, b| a.path == b.path);
    Ok(found)
}

fn root_of(roots: &[Root], path: &Path, harness: Option<Harness>) -> Result<Root> {
    let known = roots.iter().find(|root| path.starts_with(&root.path));
    if let Some(root) = known.filter(|root| harness.is_none_or(|h| h == root.harness)) {
        return Ok(root.clone());
    }
    let harness = harness.or_else(|| discover::guess(path)).ok_or_else(|| {
        Error::usage(format!("{}: say whose it is with --harness", path.display()))
    })?;
    // Rules of the agent's own folder hold for what lies elsewhere.
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    Ok(Root { id: harness.name().into(), path: folder.to_owned(), harness })
}

impl Totals {
    fn add(&mut self, output: Output, synced: &Synced) {
        let state = &synced.state;
        self.secrets_redacted += state.redactions;
        let (word, messages) = match &synced.outcome {
            Outcome::Published(sent) => {
                self.published += 1;
                self.messages += sent.messages;
                ("published", sent.messages)
            }
            Outcome::Unchanged => {
                self.unchanged += 1;
                ("unchanged", 0)
            }
            Outcome::Empty => {
                self.empty += 1;
                ("empty", 0)
            }
            Outcome::Excluded(why) => {
                self.excluded += 1;
                (*why, 0)
            }
            Outcome::Stopped => {
                self.stopped += 1;
                ("deleted on the server (--restore publishes it again)", 0)
            }
        };
        let session_id = state.published.as_ref().map(|published| &published.session_id);
        if output.json {
            output.value(&json!({
                "path": state.path, "native_id": state.native_id, "session_id": session_id,
                "outcome": word, "messages": messages, "secrets_redacted": state.redactions,
            }));
        } else {
            tracing::debug!("{}: {word}, {messages} messages", state.path.display());
        }
    }

    fn text(&self) -> String {
        let Totals { published, unchanged, messages, secrets_redacted, .. } = self;
        let mut text =
            format!("{published} sessions published ({messages} messages), {unchanged} unchanged");
        for (count, what) in [
            (self.excluded, "excluded"),
            (self.empty, "empty"),
            (self.stopped, "deleted on the server"),
            (self.failed, "failed"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        if *secrets_redacted > 0 {
            text.push_str(&format!("; {secrets_redacted} secrets were redacted"));
        }
        text
    }
}

/// One bar for all files, one for the file under way.
struct Bars(Option<(MultiProgress, ProgressBar)>);

impl Bars {
    fn new(output: Output, files: usize) -> Bars {
        if !output.shows_progress() {
            return Bars(None);
        }
        let bars = MultiProgress::new();
        let all = bars.add(ProgressBar::new(files as u64));
        all.set_style(style("{bar:30} {pos}/{len} transcripts, {eta} left"));
        Bars(Some((bars, all)))
    }

    fn start(&self, path: &Path) -> Box<dyn Progress> {
        let Some((bars, all)) = &self.0 else { return Box::new(NoProgress) };
        let bar = bars.insert_before(all, ProgressBar::new(0));
        bar.set_style(style("{bar:30} {pos}/{len} messages  {msg}"));
        bar.set_message(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        Box::new(Bar(bar, AtomicU64::new(0)))
    }

    fn finished(&self) {
        if let Some((_, all)) = &self.0 {
            all.inc(1);
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

struct Bar(ProgressBar, AtomicU64);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn messages(&self, sent: usize, of: usize) {
        self.0.set_length(of as u64);
        self.0.set_position(sent as u64);
    }

    fn bytes(&self, sent: u64) {
        let sent = self.1.fetch_add(sent, Ordering::Relaxed) + sent;
        self.0.set_message(format!("{} MiB of the native file", sent >> 20));
    }
}
