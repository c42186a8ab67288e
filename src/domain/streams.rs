//! Streams: logs read as they grow, and sessions as they change, by server-sent events. Each log is
//! a [`Topic`]. The shell holds a socket for each watcher; where a watcher stands is all that is
//! kept of it, so what it is sent next follows from the store.
use crate::api::{Answer, Body, Call};
use crate::auth::{self, Principal};
use crate::domain::follow::{self, Follow};
use crate::domain::position::{Log, LogQuery};
use crate::domain::{event_log, presence_log, runs, visibility};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{CredentialId, TeamId};
use crate::json;
use crate::limits::{STREAM_PAGE_BYTES_MAX, STREAM_PAGE_ITEMS};
use crate::page;
use crate::params;
use crate::scopes::RUNS_READ;
use crate::store::Db;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// An entry of a log, as JSON.
pub struct Entry {
    pub sequence: i64,
    pub name: String,
    pub json: String,
}

/// A log that callers read by page or as a stream.
pub struct Topic {
    pub name: &'static str,
    /// What an app needs to read it.
    scope: &'static str,
    log: fn(&Db, &TeamId) -> Result<Log>,
    /// Up to so many entries behind a sequence that the caller may see, and the last one looked at.
    behind: Behind,
}

type Behind = fn(&Db, &Principal, &Log, i64, usize) -> Result<(Vec<Entry>, i64)>;

/// The event log; links read on in it too.
pub const EVENTS: usize = 0;
pub const PRESENCE: usize = 1;
pub const RUNS: usize = 2;

#[rustfmt::skip] // A table reads best as one.
pub const TOPICS: &[Topic] = &[
    Topic { name: "events",   scope: event_log::READ_SCOPE,  log: event_log::log,    behind: event_log::entries },
    Topic { name: "presence", scope: visibility::READ_SCOPE, log: presence_log::log, behind: presence_log::entries },
    Topic { name: "runs",     scope: RUNS_READ,              log: runs::log,         behind: runs::entries },
];

impl Topic {
    fn named(name: &str) -> Result<&'static Topic> {
        let found = TOPICS.iter().find(|topic| topic.name == name);
        found.ok_or_else(|| Error::internal(format!("no topic {name}")))
    }
}

/// Reads a log behind a position: a page of it, or from there on as a stream.
///
/// `400 invalid_cursor` and `410 events_pruned` as [`Log::after`]; `406` where the caller takes
/// neither.
pub fn read(db: &Db, call: &Call, topic: &Topic) -> Result<Answer> {
    let query: LogQuery = call.query()?;
    let limit = page::limit(query.limit)?;
    let format = Format::wanted(call.header("accept"), Offer::Both)?;
    guard::reads(&call.who, topic.scope)?;

    let team_id = &call.who.team_id;
    let log = (topic.log)(db, team_id)?;
    if format == Format::Stream {
        return stream(call, topic, &log, query.after.as_deref());
    }
    let after = log.after(query.after.as_deref())?;
    let (entries, last) = (topic.behind)(db, &call.who, &log, after, limit)?;

    let items: Vec<String> = entries.into_iter().map(|entry| entry.json).collect();
    Ok(call.log(&items, log.position(last)))
}

/// The log as a stream, from behind `after` on.
pub fn stream(call: &Call, topic: &Topic, log: &Log, after: Option<&str>) -> Result<Answer> {
    // A reader that comes back says where it was; its address still says where it began.
    let resumed = call.header("last-event-id").filter(|id| !id.is_empty());
    let after = match resumed {
        Some(id) => log.after(Some(id)).map_err(|error| match error.code {
            Code::InvalidCursor => error.with("field", "Last-Event-ID"),
            _ => error,
        })?,
        None => log.after(after)?,
    };
    let (topic, at) = (topic.name.into(), log.position(after));
    Ok(watch(call, Of::Log { topic, at, waits: false }))
}

/// Whose stream a socket is and where it stands; kept with the socket, so that it outlives the
/// object's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    pub team_id: TeamId,
    pub credential_id: CredentialId,
    pub of: Of,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Of {
    Log {
        topic: String,
        /// The position that it has come to.
        at: String,
        /// It has more to read, and asks for it when it has read what it was sent.
        waits: bool,
    },
    Session(Follow),
}

/// The answer that makes the connection a stream.
pub fn watch(call: &Call, of: Of) -> Answer {
    let (team_id, credential_id) = (call.who.team_id.clone(), call.who.credential_id.clone());
    let watch = Watch { team_id, credential_id, of };
    Answer { status: 101, body: Body::Watch(watch), ..Answer::default() }
}

impl Watch {
    /// What those have in common that the same change concerns: a log of one team, or a session.
    pub fn tag(&self) -> String {
        match &self.of {
            Of::Log { topic, .. } => tag(topic, &self.team_id),
            Of::Session(follow) => follow.session_id.to_string(),
        }
    }

    /// Whether it has more to read than it was sent.
    pub fn waits(&self) -> bool {
        matches!(&self.of, Of::Log { waits: true, .. })
    }
}

pub fn tag(topic: &str, team_id: &TeamId) -> String {
    format!("{topic}:{team_id}")
}

/// How each piece that the edge is handed begins: there is more, which it asks for by [`NEXT`] once
/// the reader has taken the piece; or there is not, and whatever is new comes by itself.
pub const MORE: &str = "+";
pub const WHOLE: &str = ".";
pub const NEXT: &str = "next";

/// What a watcher is sent, and where it stands then.
#[derive(Debug, PartialEq, Eq)]
pub struct Sent {
    pub text: String,
    pub watch: Watch,
}

/// Goes over many watchers at one moment; what several of them need is read once.
#[derive(Default)]
pub struct Pass {
    callers: HashMap<CredentialId, Rc<Principal>>,
    logs: HashMap<(TeamId, &'static str), Rc<Log>>,
    pages: HashMap<(CredentialId, &'static str, String), Rc<Sent>>,
}

impl Pass {
    /// What comes next for a watcher; nothing where it has read all there is.
    ///
    /// An error ends the stream: the caller may no longer read it, or its position is gone.
    pub fn next(&mut self, db: &Db, watch: &Watch) -> Result<Option<Rc<Sent>>> {
        let (topic, at) = match &watch.of {
            Of::Log { topic, at, .. } => (Topic::named(topic)?, at),
            Of::Session(follow) => {
                let who = self.caller(db, watch)?;
                return follow::first(db, &who, follow, watch).map(|sent| Some(Rc::new(sent)));
            }
        };
        let log = self.log(db, topic, &watch.team_id)?;
        if *at == log.position(log.newest) {
            return Ok(None);
        }
        let key = (watch.credential_id.clone(), topic.name, at.clone());
        if let Some(sent) = self.pages.get(&key) {
            return Ok(Some(sent.clone()));
        }
        let who = self.caller(db, watch)?;
        let sent = Rc::new(page_of(db, &who, topic, &log, at, watch)?);
        self.pages.insert(key, sent.clone());
        Ok(Some(sent))
    }

    fn log(&mut self, db: &Db, topic: &Topic, team_id: &TeamId) -> Result<Rc<Log>> {
        let key = (team_id.clone(), topic.name);
        if let Some(log) = self.logs.get(&key) {
            return Ok(log.clone());
        }
        let log = Rc::new((topic.log)(db, team_id)?);
        self.logs.insert(key, log.clone());
        Ok(log)
    }

    /// Whoever watches, as of now.
    pub fn caller(&mut self, db: &Db, watch: &Watch) -> Result<Rc<Principal>> {
        if let Some(who) = self.callers.get(&watch.credential_id) {
            return Ok(who.clone());
        }
        let who = Rc::new(auth::holder(db, &watch.team_id, &watch.credential_id)?);
        self.callers.insert(watch.credential_id.clone(), who.clone());
        Ok(who)
    }
}

fn page_of(
    db: &Db,
    who: &Principal,
    topic: &Topic,
    log: &Log,
    at: &str,
    watch: &Watch,
) -> Result<Sent> {
    guard::reads(who, topic.scope)?;
    let after = log.after(Some(at))?;
    let (entries, mut last) = (topic.behind)(db, who, log, after, STREAM_PAGE_ITEMS)?;
    let mut text = String::new();
    let mut entries = entries.into_iter().peekable();
    while let Some(Entry { sequence, name, json }) = entries.next() {
        text += &event(Some(&log.position(sequence)), &name, &json);
        if text.len() > STREAM_PAGE_BYTES_MAX && entries.peek().is_some() {
            last = sequence;
            break;
        }
    }
    let (topic, at) = (topic.name.to_owned(), log.position(last));
    let of = Of::Log { topic, at, waits: last < log.newest };
    Ok(Sent { text, watch: Watch { of, ..watch.clone() } })
}

/// One server-sent event. Data of several lines comes as several, which its reader joins.
pub fn event(id: Option<&str>, name: &str, data: &str) -> String {
    let head = id.map(|id| ("id", id)).into_iter().chain([("event", name)]);
    let lines = data.split(['\n', '\r']).map(|line| ("data", line));
    let mut text = String::with_capacity(data.len() + 64);
    for (field, value) in head.chain(lines) {
        text.extend([field, ": ", value, "\n"]);
    }
    text + "\n"
}

/// Where a team's logs and its authority stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// While it stays the same, nobody has ended a credential.
    pub auth_epoch: i64,
    /// By topic.
    pub newest: Vec<i64>,
}

/// The marks of those teams that are there.
pub fn marks<'a>(
    db: &Db,
    team_ids: impl IntoIterator<Item = &'a TeamId>,
) -> Result<BTreeMap<TeamId, Marks>> {
    let team_ids: Vec<&TeamId> = team_ids.into_iter().collect();
    let team_ids = json::to_string(&team_ids)?;
    let epochs = db.query(
        "SELECT t.id, t.auth_epoch
           FROM json_each(?1) held
          CROSS JOIN teams t ON t.id = held.value AND t.removing IS NOT 'delete'",
        params![&team_ids],
        |row| Ok((row.get::<TeamId>()?, row.get()?)),
    )?;
    let with_logs = |(team_id, auth_epoch): (TeamId, i64)| {
        let newest = TOPICS.iter().map(|topic| Ok((topic.log)(db, &team_id)?.newest));
        let newest = newest.collect::<Result<_>>()?;
        Ok((team_id, Marks { auth_epoch, newest }))
    };
    epochs.into_iter().map(with_logs).collect()
}

/// What an address has to offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    Page,
    Both,
    Stream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Page,
    Stream,
}

impl Format {
    /// What the caller takes most gladly of what there is; of equals what it names first, and by
    /// `*/*` a page where there is one.
    ///
    /// `406` where it takes nothing of that.
    pub fn wanted(accept: Option<&str>, offer: Offer) -> Result<Format> {
        let (page, stream) = ("application/json", "text/event-stream");
        let (default, offered) = match offer {
            Offer::Page => return Ok(Format::Page),
            Offer::Both => (Format::Page, &[(Format::Page, page), (Format::Stream, stream)][..]),
            Offer::Stream => (Format::Stream, &[(Format::Stream, stream)][..]),
        };
        let Some(accept) = accept.filter(|accept| !accept.trim().is_empty()) else {
            return Ok(default);
        };
        let mut best: Option<(f32, Format)> = None;
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality = parts.find_map(|part| {
                let (key, value) = part.split_once('=')?;
                key.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse().unwrap_or(0.0))
            });
            let quality: f32 = quality.unwrap_or(1.0);
            let fits = |media_type: &str| {
                let kind = media_type.split('/').next().unwrap_or_default();
                name == "*/*" || name == media_type || name == format!("{kind}/*")
            };
            let found = offered.iter().find(|(_, media_type)| fits(media_type));
            if let Some((format, _)) = found
                && quality > best.map_or(0.0, |(quality, _)| quality)
            {
                best = Some((quality, *format));
            }
        }
        best.map(|(_, format)| format).ok_or_else(|| {
            let names: Vec<&str> = offered.iter().map(|(_, name)| *name).collect();
            let message = format!("send Accept: {}", names.join(" or "));
            Error::new(Code::NotAcceptable, message)
        })
    }
}

const _: () = assert!(EVENTS < TOPICS.len() && PRESENCE < TOPICS.len() && RUNS < TOPICS.len());
