//! What runs all day: hears of files that grow, brings each up, holds the link.
//!
//! A file that may have something new is *due*: soon after it was last written to, later where the
//! plane could not be reached. Nothing else is remembered here that is not in the files' states, so
//! that a crash at any point costs a look at every file and no more.
use crate::account::{self, Machine};
use crate::client::{Backoff, Body, Client};
use crate::commands::account::Issued;
use crate::config::Config;
use crate::discover::{self, Root, Transcript};
use crate::effects::Runner;
use crate::error::{Error, Result};
use crate::files::{self, Lock, Paths, now_ms};
use crate::limits::{
    BACKOFF_MAX, CONFIGURATION, FOLLOWED_FILES_MAX, GOODBYE, OPEN_AGE_MS, RESCAN, RESCAN_NEW,
    RESCAN_UNWATCHED, RESCANS_NEW, RETRY_AFTER_MAX, SETTLE, SETTLE_MAX, TOKEN_LEFT_MS, WORKERS,
};
use crate::link::{Heard, Link};
use crate::presence::{Open, Presence};
use crate::scan::{Scan, Stamp};
use crate::state::Store;
use crate::sync::{NoProgress, Options, Outcome, Synced, Syncer};
use crate::watch::{Changes, Watcher};
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// How old the rules may be by which something is published.
const RULES_AGE_MAX: Duration = Duration::from_secs(10);

/// A file that may have something new.
struct Due {
    first_at: Instant,
    at: Instant,
}

#[derive(Deserialize)]
struct Renewed {
    credential: Issued,
}

struct Daemon {
    syncer: Arc<Syncer>,
    client: Arc<Client>,
    machine: Machine,
    paths: Paths,
    config: Config,
    presence: Arc<Presence>,
    renewed: Arc<Notify>,
    roots: Vec<Root>,
    watcher: Watcher,
    due: HashMap<PathBuf, Due>,
    running: HashSet<PathBuf>,
    workers: JoinSet<(Transcript, Result<Synced>)>,
    failures: HashMap<PathBuf, Backoff>,
    /// Files as they were when nothing more of them was to be done.
    seen: HashMap<PathBuf, Stamp>,
    excluded: HashSet<PathBuf>,
    /// What was read of files that grow, newest last.
    followed: Vec<(PathBuf, Scan)>,
    configured_at: Option<Instant>,
    /// How often to look soon at all files, because of a folder that came to be.
    new_folders: u8,
    /// The source is active.
    may_publish: bool,
    /// While the plane cannot be reached nothing is begun.
    offline_until: Option<Instant>,
    offline: Backoff,
}

pub async fn run(paths: Paths) -> Result<()> {
    let (machine, client) = account::machine_client(&paths)?;
    let _lock = Lock::take(&paths.state)?.ok_or_else(|| {
        Error::Running(format!(
            "a connector already runs with the state in {}",
            paths.state.display()
        ))
    })?;
    let config = Config::read(&paths.config)?;
    let client = Arc::new(client);
    let store = Store::new(paths.sessions(&machine.machine_id));
    let seen = store.all().into_iter().filter_map(|s| Some((s.path, s.stamp?))).collect();
    let syncer = Arc::new(Syncer::new(Arc::clone(&client), store, &config)?);
    let presence = Arc::new(Presence::new());
    let changes = Arc::new(Changes::default());
    let daemon = Daemon {
        syncer,
        client,
        machine,
        paths,
        config,
        presence,
        renewed: Arc::default(),
        roots: Vec::new(),
        watcher: Watcher::new(Arc::clone(&changes)),
        due: HashMap::new(),
        running: HashSet::new(),
        workers: JoinSet::new(),
        failures: HashMap::new(),
        seen,
        excluded: HashSet::new(),
        followed: Vec::new(),
        configured_at: None,
        new_folders: 0,
        may_publish: false,
        offline_until: None,
        offline: Backoff::default(),
    };
    daemon.serve(&changes).await
}

impl Daemon {
    async fn serve(mut self, changes: &Changes) -> Result<()> {
        let (sender, mut heard) = mpsc::channel(64);
        let (stop, stopped) = watch::channel(false);
        self.rescan();
        let link = Link {
            client: Arc::clone(&self.client),
            machine_id: self.machine.machine_id.clone(),
            presence: Arc::clone(&self.presence),
            heard: sender,
            renewed: Arc::clone(&self.renewed),
        };
        let link = tokio::spawn(link.hold(stopped));
        let effects = Arc::new(Runner::new(
            Arc::clone(&self.client),
            Arc::clone(&self.presence),
            self.config.effects.clone(),
            self.paths.clone(),
            self.machine.machine_id.clone(),
        ));
        tracing::info!("publishing as {} to {}", self.machine.name, self.machine.server);

        let mut signals = Signals::new()?;
        let mut rescan_at = Instant::now() + RESCAN;
        let ended = loop {
            if let Err(error @ Error::Rejected(_)) = self.start_due().await {
                break Err(error);
            }
            let next_at = self.next_at().min(rescan_at);
            tokio::select! {
                () = signals.ended() => break Ok(()),
                () = changes.arrived.notified() => {
                    changes.take().iter().for_each(|path| self.changed(path));
                }
                Some(result) = self.workers.join_next() => match result {
                    Ok((transcript, result)) => {
                        if let Err(error) = self.finished(&transcript, result) {
                            break Err(error);
                        }
                    }
                    Err(error) => tracing::error!("a worker ended: {error}"),
                },
                Some(heard) = heard.recv() => match heard {
                    Heard::Time(at_ms) => self.renew(at_ms).await,
                    Heard::ConfigurationChanged => self.configured_at = None,
                    Heard::Effect(effect) => {
                        let effects = Arc::clone(&effects);
                        tokio::spawn(async move { effects.run(effect).await });
                    }
                    Heard::Rejected(error) => break Err(error),
                },
                () = sleep_until(next_at) => {}
            }
            if Instant::now() >= rescan_at {
                self.rescan();
                self.new_folders = self.new_folders.saturating_sub(1);
                let often = self.watcher.has_failed();
                rescan_at = Instant::now() + if often { RESCAN_UNWATCHED } else { RESCAN };
            }
            if self.new_folders > 0 {
                rescan_at = rescan_at.min(Instant::now() + RESCAN_NEW);
            }
        };

        tracing::info!("stopping");
        if ended.is_ok() {
            let workers = &mut self.workers;
            let finishing = async { while workers.join_next().await.is_some() {} };
            if timeout(GOODBYE, finishing).await.is_err() {
                tracing::info!("what was under way goes on at the next start");
            }
        }
        self.workers.abort_all();
        stop.send(true).ok();
        timeout(GOODBYE, link).await.ok();
        ended
    }

    /// Looks at every file of every root; what the watcher missed is found here.
    fn rescan(&mut self) {
        self.roots = discover::roots(&self.config);
        self.presence.set_roots(&self.roots);
        for root in self.roots.clone() {
            self.watcher.watch(&root.path);
            for transcript in discover::find(&root, &root.path) {
                self.look_at(&transcript.path);
            }
        }
        let gone: Vec<_> = self.seen.keys().filter(|path| !path.exists()).cloned().collect();
        for path in gone {
            self.seen.remove(&path);
            self.excluded.remove(&path);
            self.followed.retain(|(known, _)| *known != path);
        }
    }

    fn look_at(&mut self, path: &Path) {
        let stamp = std::fs::metadata(path).map(|metadata| Stamp::of(&metadata));
        if let Ok(stamp) = stamp
            && self.seen.get(path) != Some(&stamp)
            && !self.due.contains_key(path)
        {
            self.mark(path, Duration::ZERO);
        }
    }

    /// A file was written to, or a folder came to be, whose files may have been there before it was
    /// watched.
    fn changed(&mut self, path: &Path) {
        if path.is_dir() {
            self.new_folders = RESCANS_NEW;
            let root = self.roots.iter().find(|root| path.starts_with(&root.path)).cloned();
            for transcript in root.iter().flat_map(|root| discover::find(root, path)) {
                self.look_at(&transcript.path);
            }
        } else if discover::classify(&self.roots, path).is_some() && path.exists() {
            self.failures.remove(path);
            self.mark(path, SETTLE);
        }
    }

    /// Due so much after it was last written to, and in the end however often that is.
    fn mark(&mut self, path: &Path, after: Duration) {
        let now = Instant::now();
        let due = self.due.entry(path.to_owned()).or_insert(Due { first_at: now, at: now });
        // One that is put off was first due in the future: what is new of it is due now.
        due.first_at = due.first_at.min(now);
        due.at = (now + after).min(due.first_at + SETTLE_MAX);
    }

    /// Due later than a burst would be.
    fn mark_later(&mut self, path: &Path, after: Duration) {
        let at = Instant::now() + after;
        self.due.entry(path.to_owned()).or_insert(Due { first_at: at, at });
    }

    fn next_at(&self) -> Instant {
        let now = Instant::now();
        let far = now + CONFIGURATION;
        let has_room = self.running.len() < WORKERS;
        let waiting = self.due.iter().filter(|(path, _)| !self.running.contains(*path));
        let due = waiting.map(|(_, due)| due.at).min().filter(|_| has_room).unwrap_or(far);
        let configured = self.configured_at.map_or(now, |at| at + CONFIGURATION);
        let held = !self.may_publish && self.configured_at.is_some();
        let next = if held { configured } else { due.min(configured) };
        next.max(self.offline_until.unwrap_or(now))
    }

    /// Starts on what is due, by rules that are new enough.
    async fn start_due(&mut self) -> Result<()> {
        let now = Instant::now();
        if self.offline_until.is_some_and(|until| until > now) {
            return Ok(());
        }
        let mut ready: Vec<(Instant, PathBuf)> = self
            .due
            .iter()
            .filter(|(path, due)| due.at <= now && !self.running.contains(*path))
            .map(|(path, due)| (due.at, path.clone()))
            .collect();
        let age = self.configured_at.map(|at| now - at);
        let is_old = age
            .is_none_or(|age| age >= CONFIGURATION || (!ready.is_empty() && age >= RULES_AGE_MAX));
        if is_old {
            self.configure().await?;
        }
        if !self.may_publish || self.configured_at.is_none() {
            return Ok(());
        }
        ready.sort();
        for (_, path) in ready {
            if self.running.len() >= WORKERS {
                break;
            }
            self.due.remove(&path);
            let Some(transcript) = discover::classify(&self.roots, &path) else { continue };
            let known = self.followed.iter().position(|(known, _)| *known == path);
            let known = known.map(|at| self.followed.remove(at).1);
            self.running.insert(path);
            let syncer = Arc::clone(&self.syncer);
            self.workers.spawn(async move {
                let result = syncer.sync(&transcript, known, Options::default(), &NoProgress).await;
                (transcript, result)
            });
        }
        Ok(())
    }

    async fn configure(&mut self) -> Result<()> {
        match self.syncer.refresh_rules(&self.machine.machine_id, &self.config).await {
            Ok((configuration, has_changed)) => {
                self.offline_until = None;
                self.offline.reset();
                self.configured_at = Some(Instant::now());
                let may_publish = configuration.source.state == "active";
                if self.may_publish != may_publish {
                    tracing::info!("the source is {}", configuration.source.state);
                }
                self.may_publish = may_publish;
                if has_changed {
                    for path in std::mem::take(&mut self.excluded) {
                        self.mark(&path, Duration::ZERO);
                    }
                }
                Ok(())
            }
            Err(error @ Error::Rejected(_)) => Err(error),
            Err(error) if error.code() == "forbidden" => Err(Error::Rejected(error.to_string())),
            Err(error) => {
                self.go_offline(&error);
                Ok(())
            }
        }
    }

    fn go_offline(&mut self, error: &Error) {
        if self.offline_until.is_none() {
            tracing::warn!("{error}; trying again until it can be");
        }
        self.offline_until = Some(Instant::now() + self.offline.next());
    }

    /// An error ends the daemon.
    fn finished(&mut self, transcript: &Transcript, result: Result<Synced>) -> Result<()> {
        let path = &transcript.path;
        self.running.remove(path);
        let synced = match result {
            Ok(synced) => synced,
            Err(error @ Error::Rejected(_)) => return Err(error),
            Err(error) => {
                self.failed(path, &error);
                return Ok(());
            }
        };
        self.failures.remove(path);
        self.offline_until = None;
        self.offline.reset();
        let Synced { outcome, state, scan, bundle_is_due } = synced;
        let native_id = &state.native_id;
        match &outcome {
            Outcome::Published(sent) => tracing::debug!("{native_id}: {} messages", sent.messages),
            Outcome::Excluded(why) => {
                self.excluded.insert(path.clone());
                tracing::debug!("{}: {why}", path.display());
            }
            Outcome::Stopped => tracing::debug!("{native_id}: deleted on the server"),
            Outcome::Unchanged | Outcome::Empty => {}
        }
        let is_open = scan.stamp.modified_ms >= now_ms() - OPEN_AGE_MS;
        if matches!(outcome, Outcome::Published(_) | Outcome::Unchanged) && is_open {
            self.presence.note(Open {
                harness: transcript.harness(),
                native_id: native_id.clone(),
                turn: state.turn,
                since_ms: scan.stamp.modified_ms,
                cwd: scan.reader.facts.cwds.last().cloned(),
            });
        } else {
            self.presence.forget(transcript.harness(), native_id);
        }
        self.seen.insert(path.clone(), scan.stamp);
        // It may have grown while it was read.
        self.look_at(path);
        if bundle_is_due {
            self.mark_later(path, self.config.quiet() + SETTLE);
        }
        if is_open {
            self.followed.push((path.clone(), scan));
            let excess = self.followed.len().saturating_sub(FOLLOWED_FILES_MAX);
            self.followed.drain(..excess);
        }
        Ok(())
    }

    fn failed(&mut self, path: &Path, error: &Error) {
        let wait = match error {
            Error::Changed => SETTLE,
            Error::Unreachable(_) => {
                self.go_offline(error);
                Duration::ZERO
            }
            _ if !path.exists() => return,
            Error::Refused(refusal) => {
                tracing::warn!("{}: {error}", path.display());
                // Its rules or its source may be others now.
                self.configured_at = None;
                let least = self.failures.entry(path.to_owned()).or_default().next();
                let wait = refusal.retry_after.unwrap_or(BACKOFF_MAX);
                if refusal.status >= 500 { RETRY_AFTER_MAX.min(wait * 2) } else { least + wait }
            }
            _ => {
                tracing::warn!("{}: {error}", path.display());
                BACKOFF_MAX + self.failures.entry(path.to_owned()).or_default().next()
            }
        };
        self.mark_later(path, wait);
    }

    /// The token is renewed long before it ends, by the server's clock.
    async fn renew(&mut self, server_now_ms: i64) {
        if self.machine.expires_at - server_now_ms >= TOKEN_LEFT_MS {
            return;
        }
        let path = format!("/machines/{}/token", self.machine.machine_id);
        let answer = self.client.json::<Renewed>(Method::POST, &path, Body::json(&json!({}))).await;
        let Renewed { credential: Issued { token: Some(token), expires_at } } = (match answer {
            Ok(renewed) => renewed,
            Err(error) => return tracing::warn!("the token was not renewed: {error}"),
        }) else {
            return;
        };
        // First the file: the old token lives some minutes more, the new one must not be lost.
        let machine = Machine { token: token.clone(), expires_at, ..self.machine.clone() };
        if let Err(error) = files::write_json(&self.paths.machine(), &machine) {
            return tracing::error!("the renewed token cannot be kept: {error}");
        }
        self.machine = machine;
        self.client.set_token(&token);
        self.renewed.notify_one();
        tracing::info!("the machine's token was renewed");
    }
}

/// What asks the daemon to end.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        Ok(Signals {
            #[cfg(unix)]
            terminate: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
                .map_err(|error| Error::io("signals", error))?,
        })
    }

    async fn ended(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        #[cfg(not(unix))]
        tokio::signal::ctrl_c().await.ok();
    }
}
