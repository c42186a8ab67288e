//! Looks at the team's sessions.
use crate::account;
use crate::cli::{Filters, Sessions};
use crate::client::{Body, Client, List};
use crate::error::{Error, Result};
use crate::files::Paths;
use crate::limits::PAGE_ITEMS_MAX;
use crate::output::{Output, plain, time};
use reqwest::Method;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::io::Write;
use std::path::Path;

#[derive(Deserialize)]
struct Session {
    id: String,
    harness: String,
    title: Option<String>,
    message_count: i64,
    updated_at: i64,
    #[serde(default)]
    hit: Option<Hit>,
}

#[derive(Deserialize)]
struct Hit {
    ordinal: i64,
    snippet: String,
}

pub async fn run(paths: &Paths, output: Output, what: Sessions) -> Result<()> {
    let client = account::reading_client(paths)?;
    match what {
        Sessions::List { limit, filters } => list(&client, output, None, limit, &filters).await,
        Sessions::Search { words, limit, filters } => {
            list(&client, output, Some(words.join(" ")), limit, &filters).await
        }
        Sessions::Show { session, last } => show(&client, output, &session, last).await,
        Sessions::Export { session, output: file } => {
            export(&client, &session, file.as_deref()).await
        }
    }
}

async fn list(
    client: &Client,
    output: Output,
    query: Option<String>,
    limit: usize,
    filters: &Filters,
) -> Result<()> {
    let mut left = limit;
    let mut cursor: Option<String> = None;
    let mut count = 0;
    while left > 0 {
        let page = left.min(PAGE_ITEMS_MAX).to_string();
        let pairs = [
            ("limit", Some(page.as_str())),
            ("q", query.as_deref()),
            ("harness", filters.harness.as_deref()),
            ("machine", filters.machine.as_deref()),
            ("cursor", cursor.as_deref()),
        ];
        let given = pairs.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let path = format!("/sessions?{}", encode(given));
        let page: List<Box<RawValue>> = client.list(&path).await?;
        for item in page.items.iter().take(left) {
            left -= 1;
            count += 1;
            if output.json {
                output.line(item.get());
            } else {
                print(output, item)?;
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if count == 0 && !output.json {
        output.line("No sessions.");
    }
    Ok(())
}

fn print(output: Output, item: &RawValue) -> Result<()> {
    let session: Session = serde_json::from_str(item.get()).map_err(|error| {
        Error::other(format!("a session as this version does not know it: {error}"))
    })?;
    let Session { id, harness, message_count, .. } = &session;
    let title = plain(session.title.as_deref().unwrap_or("(no title)"));
    let at = time(session.updated_at);
    output.line(&format!("{id}  {at}  {harness:<11}  {message_count:>6}  {title}"));
    if let Some(Hit { ordinal, snippet }) = &session.hit {
        let snippet = snippet.replace('\u{2}', "»").replace('\u{3}', "«").replace('\n', " ");
        output.line(&format!("    {ordinal}: {}", plain(&snippet)));
    }
    Ok(())
}

#[derive(Deserialize)]
struct Message {
    ordinal: i64,
    role: String,
    #[serde(default)]
    text: Option<String>,
}

async fn show(client: &Client, output: Output, session: &str, last: Option<i64>) -> Result<()> {
    let path = format!("/sessions/{}", segment(session)?);
    let found: Session = client.json(Method::GET, &path, Body::none()).await?;
    if !output.json {
        let title = plain(found.title.as_deref().unwrap_or("(no title)"));
        let (at, count, harness) = (time(found.updated_at), found.message_count, &found.harness);
        output.line(&format!("{title}\n{harness}, {count} messages, {at} UTC\n"));
    }
    let mut after = last.map_or(-1, |last| (found.message_count - last.max(0)).max(0) - 1);
    loop {
        let after_parameter = if after < 0 { String::new() } else { format!("&after={after}") };
        let page = format!("{path}/messages?limit={PAGE_ITEMS_MAX}{after_parameter}");
        let page: List<Box<RawValue>> = client.list(&page).await?;
        for item in &page.items {
            if output.json {
                output.line(item.get());
                continue;
            }
            let readable = crate::json::replace_lone_surrogates(item.get());
            let Ok(message) = serde_json::from_str::<Message>(&readable) else { continue };
            let text = message.text.unwrap_or_default();
            if !text.is_empty() {
                output.line(&format!("[{}] {}\n{}\n", message.ordinal, message.role, plain(&text)));
            }
        }
        match page.last {
            Some(last) if last > after && last + 1 < found.message_count => after = last,
            _ => return Ok(()),
        }
    }
}

async fn export(client: &Client, session: &str, file: Option<&Path>) -> Result<()> {
    let path = format!("/sessions/{}/export", segment(session)?);
    let mut response = client.send(Method::GET, &path, Body::none()).await?;
    let broken =
        |what: &dyn std::fmt::Display| Error::other(format!("the export broke off: {what}"));
    let mut out: Box<dyn Write> = match file {
        None => Box::new(std::io::stdout().lock()),
        Some(file) => {
            let created = std::fs::File::create(file);
            Box::new(created.map_err(|error| Error::io(file.display(), error))?)
        }
    };
    while let Some(bytes) = response.chunk().await.map_err(|error| broken(&error))? {
        out.write_all(&bytes).map_err(|error| broken(&error))?;
    }
    out.flush().map_err(|error| broken(&error))
}

fn segment(id: &str) -> Result<&str> {
    let is_id =
        id.starts_with("session_") && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    is_id.then_some(id).ok_or_else(|| {
        Error::usage(format!(
            "{id}: a session's id begins with session_; see teamplane sessions list"
        ))
    })
}

fn encode<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::new();
    for (name, value) in pairs {
        if !out.is_empty() {
            out.push('&');
        }
        out.push_str(name);
        out.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
                out.push(char::from(byte));
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    out
}
