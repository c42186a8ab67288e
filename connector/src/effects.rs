//! What the team asks this machine to do: nothing, unless its configuration allows it. A message is
//! given to the agent's own command line; an interrupt ends such a command.
use crate::client::{Body, Client};
use crate::config::Effects;
use crate::files::{self, Paths};
use crate::json::{Object, up_to};
use crate::limits::{EFFECT, EFFECT_OUTPUT_BYTES_MAX, EFFECTS_REMEMBERED_MAX};
use crate::link::Effect;
use crate::presence::{Open, Presence};
use crate::transcripts::Harness;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use tokio::process::Command;
use tokio::sync::Notify;
use tokio::time::timeout;

pub struct Runner {
    pub client: Arc<Client>,
    pub presence: Arc<Presence>,
    pub config: Effects,
    pub paths: Paths,
    pub machine_id: String,
    /// Commands under way, by binding.
    running: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// Effects that were begun, so that one that comes again is not carried out again.
    begun: Mutex<Vec<String>>,
}

type Outcome = Result<Value, (&'static str, String)>;

impl Runner {
    pub fn new(
        client: Arc<Client>,
        presence: Arc<Presence>,
        config: Effects,
        paths: Paths,
        machine_id: String,
    ) -> Runner {
        let begun = files::read_json(&paths.effects()).ok().flatten().unwrap_or_default();
        let (running, begun) = (Mutex::default(), Mutex::new(begun));
        Runner { client, presence, config, paths, machine_id, running, begun }
    }

    /// Carries an effect out, and says what became of it.
    pub async fn run(&self, effect: Effect) {
        let outcome = if self.begin(&effect.effect_id) {
            self.carry_out(&effect).await
        } else if self.running.lock().expect("no holder panics").values().next().is_some() {
            // Most likely that one; its own answer is to come.
            return;
        } else {
            Err((
                "interrupted",
                "the connector ended while it did this; look before asking again".into(),
            ))
        };
        let body = match outcome {
            Ok(result) => json!({ "state": "succeeded", "result": result }),
            Err((code, message)) => {
                json!({ "state": "failed", "error": { "code": code, "message": message } })
            }
        };
        let path = format!("/machines/{}/effects/{}", self.machine_id, effect.effect_id);
        if let Err(error) = self.client.send(Method::POST, &path, Body::json(&body)).await {
            tracing::warn!("the answer to {} was not taken: {error}", effect.effect_id);
        }
    }

    /// False for one that was begun before.
    fn begin(&self, effect_id: &str) -> bool {
        let mut begun = self.begun.lock().expect("no holder panics");
        if begun.iter().any(|known| known == effect_id) {
            return false;
        }
        if begun.len() == EFFECTS_REMEMBERED_MAX {
            begun.remove(0);
        }
        begun.push(effect_id.to_owned());
        files::write_json(&self.paths.effects(), &*begun).is_ok()
    }

    async fn carry_out(&self, effect: &Effect) -> Outcome {
        let unsupported = |message: &str| Err(("unsupported", message.to_owned()));
        if !["message", "interrupt"].contains(&effect.kind.as_str()) {
            return unsupported("this connector does not know that kind");
        }
        if !self.config.allow.contains(&effect.kind) {
            return unsupported("this machine's configuration does not allow it (effects.allow)");
        }
        let Some(binding_id) = &effect.binding_id else {
            return unsupported("name the session by its binding");
        };
        if effect.kind == "interrupt" {
            let running = self.running.lock().expect("no holder panics").get(binding_id).cloned();
            return match running {
                Some(running) => {
                    running.notify_one();
                    Ok(json!({ "interrupted": true }))
                }
                None => unsupported("only what a message of the team began can be interrupted"),
            };
        }
        let Some(open) = self.presence.binding(binding_id) else {
            return Err(("gone", "that session is not open any more".into()));
        };
        let text = effect
            .input
            .as_ref()
            .and_then(|input| Object::parse(input.get())?.text("text").map(Into::into));
        let Some(text): Option<String> = text else {
            return Err(("invalid_request", "input.text is missing".into()));
        };
        self.message(binding_id, &open, &text).await
    }

    async fn message(&self, binding_id: &str, open: &Open, text: &str) -> Outcome {
        let ended = Arc::new(Notify::new());
        {
            let mut running = self.running.lock().expect("no holder panics");
            if running.contains_key(binding_id) {
                return Err(("busy", "a message before this one is still being worked on".into()));
            }
            running.insert(binding_id.to_owned(), Arc::clone(&ended));
        }
        let outcome = self.call(open, text, &ended).await;
        self.running.lock().expect("no holder panics").remove(binding_id);
        outcome
    }

    async fn call(&self, open: &Open, text: &str, ended: &Notify) -> Outcome {
        let command = self.config.commands.get(&open.harness).cloned();
        let command = command.unwrap_or_else(|| usual_command(open.harness));
        let filled = fill(&command, &open.native_id, text);
        let Some((program, arguments)) = filled.split_first() else {
            return Err(("unsupported", "effects.commands names no program".into()));
        };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        if let Some(cwd) = open.cwd.as_deref().filter(|cwd| std::path::Path::new(cwd).is_dir()) {
            command.current_dir(cwd);
        }
        let output = tokio::select! {
            output = timeout(EFFECT, command.output()) => output,
            () = ended.notified() => return Err(("interrupted", "it was interrupted".into())),
        };
        match output {
            Err(_) => Err(("timeout", format!("{program} took more than {} s", EFFECT.as_secs()))),
            Ok(Err(error)) => Err(("unsupported", format!("{program}: {error}"))),
            Ok(Ok(output)) => {
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let said = up_to(&said, EFFECT_OUTPUT_BYTES_MAX).to_owned();
                let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                if output.status.success() {
                    Ok(json!({ "output": said }))
                } else {
                    Err((
                        "failed",
                        format!("{program}: {} {}", output.status, up_to(&errors, 2_000)),
                    ))
                }
            }
        }
    }
}

fn usual_command(harness: Harness) -> Vec<String> {
    let words: &[&str] = match harness {
        Harness::ClaudeCode => &["claude", "-p", "--resume", "{native_id}", "--", "{text}"],
        Harness::Codex => &["codex", "exec", "resume", "{native_id}", "--", "{text}"],
        Harness::Gemini => &["gemini", "--resume", "{native_id}", "--prompt={text}"],
    };
    words.iter().map(|&word| word.to_owned()).collect()
}

/// No shell is between: the text is one argument, whatever is in it.
fn fill(command: &[String], native_id: &str, text: &str) -> Vec<String> {
    command
        .iter()
        .map(|word| match word.split_once("{text}") {
            Some((before, after)) => {
                let (before, after) = (
                    before.replace("{native_id}", native_id),
                    after.replace("{native_id}", native_id),
                );
                format!("{before}{text}{after}")
            }
            None => word.replace("{native_id}", native_id),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_argument_whatever_is_in_it() {
        let filled =
            fill(&usual_command(Harness::ClaudeCode), "id-1", "; rm -rf / {native_id} $(x)");
        assert_eq!(
            filled,
            ["claude", "-p", "--resume", "id-1", "--", "; rm -rf / {native_id} $(x)"]
        );
        let gemini = fill(&usual_command(Harness::Gemini), "id-1", "--help");
        assert_eq!(gemini[3], "--prompt=--help");
    }
}
