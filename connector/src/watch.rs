//! Hears from the system which files are written to.
use crate::limits::FILES_MAX;
use notify::event::EventKind;
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// Paths that were written to since somebody took them. Of a burst each is there once.
#[derive(Default)]
pub struct Changes {
    paths: Mutex<HashSet<PathBuf>>,
    pub arrived: Notify,
}

impl Changes {
    pub fn take(&self) -> HashSet<PathBuf> {
        std::mem::take(&mut self.paths.lock().expect("no holder panics"))
    }

    fn add(&self, paths: Vec<PathBuf>) {
        let mut held = self.paths.lock().expect("no holder panics");
        if held.len() + paths.len() <= FILES_MAX {
            held.extend(paths);
        }
        drop(held);
        self.arrived.notify_one();
    }
}

pub struct Watcher {
    watcher: Option<RecommendedWatcher>,
    watched: HashSet<PathBuf>,
    has_failed: bool,
}

impl Watcher {
    pub fn new(changes: Arc<Changes>) -> Watcher {
        let heard = move |event: notify::Result<Event>| match event {
            // What was lost is found by the next look at all files.
            Ok(event) if matches!(event.kind, EventKind::Access(_)) => {}
            Ok(event) => changes.add(event.paths),
            Err(error) => tracing::debug!("watching: {error}"),
        };
        let watcher = notify::recommended_watcher(heard);
        if let Err(error) = &watcher {
            tracing::warn!("folders cannot be watched ({error}); they are looked through instead");
        }
        Watcher { has_failed: watcher.is_err(), watcher: watcher.ok(), watched: HashSet::new() }
    }

    /// Watches a folder once it is there.
    pub fn watch(&mut self, folder: &Path) {
        if !folder.is_dir() {
            self.watched.remove(folder);
            return;
        }
        let Some(watcher) = &mut self.watcher else { return };
        if self.watched.contains(folder) {
            return;
        }
        match watcher.watch(folder, RecursiveMode::Recursive) {
            Ok(()) => drop(self.watched.insert(folder.to_owned())),
            Err(error) => {
                if !self.has_failed {
                    let folder = folder.display();
                    tracing::warn!(
                        "{folder} cannot be watched ({error}); it is looked through instead"
                    );
                }
                self.has_failed = true;
            }
        }
    }

    /// Some folder is not watched, so that all must be looked through often.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }
}
