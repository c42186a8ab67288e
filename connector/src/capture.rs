//! Publishes a session: begin, parts, commit, as often as it takes. Only messages behind those that
//! the plane has are sent; where it has something else than thought, all of them.
use crate::client::{Body, Client};
use crate::error::{Error, Result};
use crate::files::random_hex;
use crate::limits::{CAPTURE_BYTES_MAX, CAPTURE_MESSAGES_MAX, PART_BYTES_AIM, PART_MESSAGES_MAX};
use crate::outline::Outline;
use crate::redact::Redactor;
use crate::scan::read_row;
use crate::state::{Pending, Published, SessionState, Store};
use crate::transcripts::{self, Harness};
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::fs::File;
use std::path::Path;

/// How often the plane may turn out to have something else before this is given up for now.
const FULL_TRIES: u32 = 3;

pub struct Publisher<'a> {
    pub client: &'a Client,
    pub store: &'a Store,
    pub redactor: &'a Redactor,
    pub path: &'a Path,
    pub harness: Harness,
    pub title: Option<String>,
    /// A JSON object.
    pub projection: String,
    /// Begins a session anew that was deleted on the plane.
    pub restore: bool,
    pub progress: &'a (dyn Fn(usize) + Send + Sync),
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub captures: usize,
    pub messages: usize,
}

#[derive(Deserialize)]
struct Begun {
    id: String,
}

#[derive(Deserialize)]
struct Committed {
    session_id: String,
    revision: u64,
}

impl Publisher<'_> {
    /// Makes what the plane has what the outline is. Each capture that went through is in `state`,
    /// and in its file, whatever happens afterwards.
    pub async fn publish(&self, outline: &Outline, state: &mut SessionState) -> Result<Sent> {
        self.settle_pending(state).await?;
        let mut sent = Sent::default();
        let mut mismatches = 0;
        loop {
            let keep = state.published.as_ref().map_or(0, |p| outline.common(&p.checkpoints));
            if self.is_published(outline, state, keep) || outline.is_empty() {
                return Ok(sent);
            }
            match self.capture(outline, state, keep).await {
                Ok(messages) => {
                    sent.captures += 1;
                    sent.messages += messages;
                }
                Err(error) if error.code() == "revision_mismatch" && mismatches < FULL_TRIES => {
                    tracing::info!("{}: the plane has another revision", self.path.display());
                    mismatches += 1;
                    state.published = None;
                    state.pending = None;
                }
                Err(error) if is_about_bundle(&error) && state.bundle.is_some() => {
                    // Retention took it before a version named it; the next quiet brings another.
                    tracing::info!("{}: the bundle is gone: {error}", self.path.display());
                    state.bundle = None;
                    state.stamp = None;
                }
                Err(error) if error.code() == "session_deleted" => {
                    state.stopped = Some("session_deleted".into());
                    state.published = None;
                    state.pending = None;
                    self.store.save(state)?;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn is_published(&self, outline: &Outline, state: &SessionState, keep: usize) -> bool {
        state.published.as_ref().is_some_and(|published| {
            keep == outline.len()
                && published.count == keep
                && published.title == self.title
                && published.projection == self.projection
                && published.upload_ids == upload_ids(state)
        })
    }

    /// One capture of what comes after `keep`, as far as a capture goes.
    async fn capture(
        &self,
        outline: &Outline,
        state: &mut SessionState,
        keep: usize,
    ) -> Result<usize> {
        let capture_id = self.begin(state, keep).await?;
        let (parts, end) = match self.send_parts(outline, &capture_id, keep, state).await {
            Ok(sent) => sent,
            Err(error) => {
                // It would expire in a day; what cannot be reached now need not know.
                let path = format!("/captures/{capture_id}");
                self.client.send(Method::DELETE, &path, Body::none()).await.ok();
                return Err(error);
            }
        };
        let then = Published {
            count: end,
            checkpoints: outline.checkpoints(end),
            title: self.title.clone(),
            projection: self.projection.clone(),
            upload_ids: upload_ids(state),
            ..Published::default()
        };
        state.pending = Some(Pending { capture_id, parts, then });
        self.store.save(state)?;
        self.commit(state).await?;
        Ok(end - keep)
    }

    async fn begin(&self, state: &SessionState, keep: usize) -> Result<String> {
        let mut begin = json!({ "harness": self.harness.name(), "native_id": state.native_id });
        if let Some(title) = &self.title {
            begin["title"] = json!(title);
        }
        if let Some(bundle) = &state.bundle {
            begin["artifacts"] = json!(bundle.artifacts);
        }
        if let Some(published) = &state.published {
            begin["base"] = json!({ "revision": published.revision, "keep": keep });
        }
        if self.restore {
            begin["restore"] = json!(true);
        }
        // The projection is kept as it was written.
        let begin = begin.to_string();
        let projection = RawValue::from_string(self.projection.clone())
            .map_err(|error| Error::other(error.to_string()))?;
        let begin = format!(r#"{},"projection":{projection}}}"#, &begin[..begin.len() - 1]);
        let body = Body::raw_json(begin).with("idempotency-key", random_hex());
        self.client.json::<Begun>(Method::POST, "/captures", body).await.map(|begun| begun.id)
    }

    /// Answers how many parts were sent and up to which message.
    async fn send_parts(
        &self,
        outline: &Outline,
        capture_id: &str,
        keep: usize,
        state: &mut SessionState,
    ) -> Result<(usize, usize)> {
        let mut file =
            File::open(self.path).map_err(|error| Error::io(self.path.display(), error))?;
        let mut part = Part::default();
        let (mut parts, mut bytes, mut end) = (0, 0, keep);
        for (ordinal, entry) in outline.entries().iter().enumerate().skip(keep) {
            let row = read_row(&mut file, entry)
                .map_err(|error| Error::io(self.path.display(), error))?
                .ok_or(Error::Changed)?;
            let row = String::from_utf8_lossy(&row);
            let (row, redactions) = self.redactor.redact(&row);
            let message = transcripts::message(self.harness, ordinal, entry, &row);
            let is_full = bytes + message.len() > CAPTURE_BYTES_MAX;
            if is_full || ordinal - keep == CAPTURE_MESSAGES_MAX {
                break;
            }
            if !part.has_room_for(&message) {
                self.send_part(capture_id, parts, &mut part).await?;
                parts += 1;
            }
            state.redactions += redactions;
            bytes += message.len() + 1;
            part.add(&message);
            end = ordinal + 1;
        }
        if part.count > 0 {
            self.send_part(capture_id, parts, &mut part).await?;
            parts += 1;
        }
        Ok((parts, end))
    }

    async fn send_part(&self, capture_id: &str, index: usize, part: &mut Part) -> Result<()> {
        let Part { messages, count } = std::mem::take(part);
        let path = format!("/captures/{capture_id}/parts/{index}");
        let body = Body::raw_json(format!(r#"{{"messages":[{messages}]}}"#));
        self.client.send(Method::PUT, &path, body).await?;
        (self.progress)(count);
        Ok(())
    }

    /// Commits the pending capture; again, it answers the same.
    async fn commit(&self, state: &mut SessionState) -> Result<()> {
        let Some(pending) = state.pending.clone() else { return Ok(()) };
        let path = format!("/captures/{}/commit", pending.capture_id);
        let body = Body::json(&json!({ "parts": pending.parts }));
        let answer = self.client.json::<Committed>(Method::POST, &path, body).await;
        if matches!(answer, Err(Error::Unreachable(_))) {
            // Whether it went through is asked again, the next time.
            return answer.map(drop);
        }
        state.pending = None;
        let Committed { session_id, revision } = answer?;
        state.published = Some(Published { session_id, revision, ..pending.then });
        self.store.save(state)
    }

    /// A capture that was about to be committed when the connector or the network went away.
    async fn settle_pending(&self, state: &mut SessionState) -> Result<()> {
        match self.commit(state).await {
            Err(error @ (Error::Unreachable(_) | Error::Rejected(_))) => Err(error),
            Err(error) if error.code() == "session_deleted" => {
                state.published = None;
                Ok(())
            }
            Err(error) => {
                tracing::debug!("{}: {error}", self.path.display());
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

fn is_about_bundle(error: &Error) -> bool {
    let Error::Refused(refusal) = error else { return false };
    match refusal.code.as_str() {
        "upload_incomplete" => true,
        "not_found" => refusal.details.get("field").is_some_and(|field| field == "artifacts"),
        _ => false,
    }
}

fn upload_ids(state: &SessionState) -> Vec<String> {
    let artifacts = state.bundle.iter().flat_map(|bundle| &bundle.artifacts);
    artifacts.map(|artifact| artifact.upload_id.clone()).collect()
}

/// Messages with commas between them.
#[derive(Default)]
struct Part {
    messages: String,
    count: usize,
}

impl Part {
    fn has_room_for(&self, message: &str) -> bool {
        let fits = self.messages.len() + message.len() < PART_BYTES_AIM;
        self.count == 0 || fits && self.count < PART_MESSAGES_MAX
    }

    fn add(&mut self, message: &str) {
        if self.count > 0 {
            self.messages.push(',');
        }
        self.messages.push_str(message);
        self.count += 1;
    }
}
