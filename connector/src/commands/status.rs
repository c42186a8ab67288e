//! Says how this machine stands.
use crate::account;
use crate::client::Body;
use crate::error::{Error, Result};
use crate::files::{self, Lock, Paths};
use crate::output::{Output, plain, time};
use crate::state::Store;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Machine {
    connection: String,
    enrollment: String,
    last_seen_at: Option<i64>,
}

pub async fn status(paths: &Paths, output: Output) -> Result<()> {
    let (machine, client) = account::machine_client(paths)?;
    let client = client.once();
    let running = Lock::take(&paths.state)?.is_none();
    let states = Store::new(paths.sessions(&machine.machine_id)).all();
    let published = states.iter().filter(|state| state.published.is_some()).count();
    let messages: usize = states.iter().flat_map(|s| &s.published).map(|p| p.count).sum();
    let redacted: u64 = states.iter().map(|state| state.redactions).sum();
    let stopped = states.iter().filter(|state| state.stopped.is_some()).count();
    let failed: Vec<_> = states.iter().filter(|state| state.error.is_some()).collect();
    let path = format!("/machines/{}", machine.machine_id);
    let answer = client.json::<Machine>(Method::GET, &path, Body::none()).await;

    if output.json {
        let failures: Vec<_> =
            failed.iter().map(|s| json!({ "path": s.path, "error": s.error })).collect();
        output.value(&json!({
            "server": machine.server,
            "machine": { "id": machine.machine_id, "name": machine.name },
            "running": running,
            "connection": answer.as_ref().ok().map(|m| &m.connection),
            "last_seen_at": answer.as_ref().ok().and_then(|m| m.last_seen_at),
            "token_expires_at": machine.expires_at,
            "sessions": published, "messages": messages, "secrets_redacted": redacted,
            "stopped": stopped, "failed": failures,
        }));
    } else {
        let name = plain(&machine.name);
        output.line(&format!("{name} at {}", machine.server));
        let connector = if running { "running" } else { "not running (teamplane run)" };
        output.line(&format!("connector     {connector}"));
        let connection = match &answer {
            Ok(found) if found.enrollment == "revoked" => "revoked: enrol again".to_owned(),
            Ok(found) => {
                let seen = found.last_seen_at.map(|at| format!(", seen {} UTC", time(at)));
                format!("{}{}", found.connection, seen.unwrap_or_default())
            }
            Err(error) => error.to_string(),
        };
        output.line(&format!("on the server {connection}"));
        output.line(&format!("published     {published} sessions, {messages} messages"));
        output.line(&format!("redacted      {redacted} secrets"));
        if stopped > 0 {
            output
                .line(&format!("stopped       {stopped} sessions that were deleted on the server"));
        }
        let days = (machine.expires_at - files::now_ms()) / (24 * 60 * 60 * 1_000);
        output.line(&format!(
            "token         {days} days left; it is renewed while the connector runs"
        ));
        for state in failed.iter().take(10) {
            let error = state.error.as_deref().unwrap_or_default();
            output.line(&format!("failed        {}: {error}", state.path.display()));
        }
    }
    match answer {
        Err(error @ (Error::Rejected(_) | Error::Unreachable(_))) => Err(error),
        _ => Ok(()),
    }
}
