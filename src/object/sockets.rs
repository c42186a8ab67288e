//! The sockets that an object holds: machines' links, and the streams that the edge hands on to
//! watchers. All that belongs to a socket is its attachment, so that the object may sleep while it
//! is open; what the core decides of it is in `domain::links`, `domain::streams` and
//! `domain::follow`.
use super::host::Host;
use super::watchers;
use crate::domain::links::{self, Close, Link};
use crate::domain::live::Live;
use crate::domain::outgoing;
use crate::domain::streams::{self, Marks, TOPICS, Watch};
use crate::error::{Code, Error, Result};
use crate::ids::{CredentialId, Id, TeamId};
use crate::limits::{CREDENTIALS_CHECKED_MS, SOCKETS_MAX};
use crate::maintain::alarm::Outside;
use crate::maintain::presence;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use worker::{Response, WebSocket, WebSocketPair, WebSocketRequestResponsePair};

/// What stands for a close without a code, and for a connection that broke; neither can be sent.
const NO_CODE: u16 = 1005;
pub const BROKEN: u16 = 1006;

#[derive(serde::Serialize, serde::Deserialize)]
struct Attached {
    held: Held,
    /// The server has closed it, or a newer link has replaced it: whatever still comes from it,
    /// its own close among that, says nothing of its machine.
    ended: bool,
}

/// What a socket is.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
pub enum Held {
    Link(Link),
    Watch(Watch),
}

impl Held {
    fn team_id(&self) -> &TeamId {
        match self {
            Held::Link(link) => &link.team_id,
            Held::Watch(watch) => &watch.team_id,
        }
    }

    fn credential_id(&self) -> &CredentialId {
        match self {
            Held::Link(link) => &link.credential_id,
            Held::Watch(watch) => &watch.credential_id,
        }
    }

    fn link(&self) -> Option<&Link> {
        if let Held::Link(link) = self { Some(link) } else { None }
    }
}

#[derive(Default)]
pub struct Sockets {
    /// Nothing until this instance of the object has looked.
    known: RefCell<Option<Known>>,
    pub live: RefCell<Live>,
}

#[derive(Default)]
struct Known {
    /// How far the sockets of each team that may have some were told of what changed.
    marks: BTreeMap<TeamId, Marks>,
    /// When to look at the credentials again even if no epoch has changed.
    check_at: i64,
}

impl Sockets {
    /// Begins every event. A reset or deploy drops links without a word: the first event of an
    /// instance gives those that are missing their grace, whatever the event is.
    pub fn begin(&self, host: &Host) -> Result<()> {
        if self.known.borrow().is_some() {
            return Ok(());
        }
        let held = held(host);
        let links = held.iter().filter_map(|(_, held)| held.link());
        let machines: BTreeSet<_> = links.map(|link| link.machine_id.clone()).collect();
        let teams: BTreeSet<&TeamId> = held.iter().map(|(_, held)| held.team_id()).collect();
        let marks = host.run(|db| {
            if presence::linked(db)? != i64::try_from(machines.len()).unwrap_or(i64::MAX) {
                presence::lose_missing(db, &machines)?;
            }
            streams::marks(db, teams)
        })?;
        let mut live = self.live.borrow_mut();
        *live = Live::default();
        for (_, held) in &held {
            if let Held::Watch(Watch { team_id, of: streams::Of::Session(follow), .. }) = held {
                live.follow(team_id, &follow.session_id);
            }
        }
        self.known.replace(Some(Known { marks, ..Known::default() }));
        Ok(())
    }

    /// Ends every event: closes the sockets whose credentials have ended, tells machines and
    /// watchers what has changed. It looks at the credentials when authority has changed, and at
    /// least each minute.
    pub async fn tend(&self, host: &Host, wrote: bool) {
        match self.look(host, wrote) {
            Ok(grown) => {
                for (team_id, topic) in grown {
                    watchers::serve(self, host, &streams::tag(topic, &team_id)).await;
                }
            }
            Err(error) => {
                worker::console_error!("the sockets were not looked at: {}", error.message);
            }
        }
    }

    /// As [`Self::tend`], all but the watchers of logs: answers which logs have grown.
    fn look(&self, host: &Host, wrote: bool) -> Result<Vec<(TeamId, &'static str)>> {
        let news = self.live.borrow_mut().take_news();
        let mut known = self.known.borrow_mut();
        let Some(known) = known.as_mut().filter(|known| !known.marks.is_empty()) else {
            return Ok(Vec::new());
        };
        let is_due = known.check_at <= host.clock.now_ms();
        if !is_due && !wrote && news.is_empty() {
            return Ok(Vec::new());
        }
        let marks = host.run(|db| streams::marks(db, known.marks.keys()))?;
        let before = std::mem::replace(&mut known.marks, marks);
        let epoch = |marks: &BTreeMap<TeamId, Marks>| {
            marks.iter().map(|(id, marks)| (id.clone(), marks.auth_epoch)).collect::<Vec<_>>()
        };
        let authority = epoch(&before) != epoch(&known.marks);
        if is_due || authority {
            self.check(host, known)?;
        }

        let mut grown = Vec::new();
        for (team_id, now) in &known.marks {
            let Some(before) = before.get(team_id) else { continue };
            let pairs = before.newest.iter().zip(&now.newest).zip(TOPICS);
            for ((before, now), topic) in pairs {
                if before != now {
                    grown.push((team_id.clone(), topic.name));
                }
            }
            let [before, now] = [before.newest[streams::EVENTS], now.newest[streams::EVENTS]];
            if before < now && host.runner.borrow().outside.is_linked {
                let frames = host.run(|db| outgoing::of_events(db, team_id, before, now))?;
                for down in frames {
                    send_down(host, team_id, &down);
                }
            }
        }
        watchers::tell(self, host, news, authority, !grown.is_empty())?;
        Ok(grown)
    }

    /// Closes the sockets whose credentials have ended, and notes what is left.
    fn check(&self, host: &Host, known: &mut Known) -> Result<()> {
        let mut held = held(host);
        let credentials = held.iter().map(|(_, held)| held.credential_id().clone()).collect();
        let standing = host.run(|db| links::standing(db, &credentials))?;
        let ended = Close::because(&Error::unauthenticated());
        held.retain(|(socket, held)| {
            let stays = !standing.ended.contains(held.credential_id());
            if !stays {
                self.close(host, socket, held, &ended);
            }
            stays
        });
        let latest = host.clock.now_ms() + CREDENTIALS_CHECKED_MS;
        known.check_at = standing.next_end_at.map_or(latest, |at| at.min(latest));
        let is_linked = held.iter().any(|(_, held)| held.link().is_some());
        host.runner.borrow_mut().outside =
            Outside { is_linked, sockets_expire_at: standing.next_end_at };
        let teams: BTreeSet<&TeamId> = held.iter().map(|(_, held)| held.team_id()).collect();
        known.marks.retain(|team_id, _| teams.contains(team_id));
        Ok(())
    }

    /// Holds a link that the core has opened, in place of an older one of its machine, and sends
    /// what waits for it.
    pub fn open_link(&self, host: &Host, mut link: Link) -> Result<Response> {
        let tag = link.machine_id.to_string();
        for socket in host.state.get_websockets_with_tag(&tag) {
            if let Some(older @ Held::Link(_)) = live(&socket) {
                end(&socket, &older, &Close::replaced());
            }
        }
        let (frames, unsent) = host.run(|db| outgoing::at_link(db, &link, &self.live.borrow()))?;
        link.unsent = unsent;
        let (socket, response) = self.hold(host, &tag, &Held::Link(link))?;
        for frame in frames {
            send(&socket, &frame);
        }
        Ok(response)
    }

    /// Holds a socket of the core's, under a tag.
    pub fn hold(&self, host: &Host, tag: &str, held: &Held) -> Result<(WebSocket, Response)> {
        self.admit(host, held)?;
        let opened = || {
            let pair = WebSocketPair::new()?;
            let answered = WebSocketRequestResponsePair::new(links::PING, links::PONG)?;
            host.state.set_websocket_auto_response(&answered);
            host.state.accept_websocket_with_tags(&pair.server, &[tag]);
            pair.server.serialize_attachment(Attached { held: held.clone(), ended: false })?;
            Ok((pair.server, Response::from_websocket(pair.client)?))
        };
        opened().map_err(|error| super::http::thrown(&error))
    }

    /// Notes whose socket comes, and when its credential ends.
    fn admit(&self, host: &Host, held: &Held) -> Result<()> {
        if host.state.get_websockets().len() >= SOCKETS_MAX {
            let message = format!("{SOCKETS_MAX} links and streams are open; try again later");
            return Err(Error::new(Code::Overloaded, message).with_header("Retry-After", "5"));
        }
        let credential = BTreeSet::from([held.credential_id().clone()]);
        let mut known = self.known.borrow_mut();
        let known = known.get_or_insert_default();
        let is_new = !known.marks.contains_key(held.team_id());
        let (standing, marks) = host.run(|db| {
            let team_id = is_new.then_some(held.team_id());
            Ok((links::standing(db, &credential)?, streams::marks(db, team_id)?))
        })?;
        known.marks.extend(marks);
        let outside = &mut host.runner.borrow_mut().outside;
        outside.is_linked |= held.link().is_some();
        if let Some(at) = standing.next_end_at {
            known.check_at = known.check_at.min(at);
            outside.sockets_expire_at = Some(outside.sockets_expire_at.map_or(at, |e| e.min(at)));
        }
        Ok(())
    }

    /// A socket has closed, by the other side or as the end of what the server began. Answers
    /// whether a machine has lost its link.
    pub fn closed(&self, host: &Host, socket: &WebSocket, code: u16, reason: &str) -> bool {
        // The platform leaves it to us to answer a close; where the connection broke, nobody
        // hears it.
        let _ = match code {
            BROKEN => Ok(()),
            NO_CODE => socket.close(None, None::<&str>),
            code => socket.close(Some(code), Some(reason)),
        };
        let Some(held) = live(socket) else { return false };
        attach(socket, &held, true);
        self.gone(host, &held, code);
        held.link().is_some()
    }

    /// Closes a socket on the server's side; a machine has its grace to come back.
    pub fn close(&self, host: &Host, socket: &WebSocket, held: &Held, close: &Close) {
        end(socket, held, close);
        self.gone(host, held, close.code);
    }

    /// A socket of ours is no more.
    fn gone(&self, host: &Host, held: &Held, code: u16) {
        match held {
            Held::Link(link) => lose(host, link, code),
            Held::Watch(watch) => watchers::left(self, host, watch),
        }
    }

    /// What a frame comes to: an answer, nothing, or the link's end.
    pub fn answer(
        &self,
        host: &Host,
        socket: &WebSocket,
        link: Link,
        answer: Result<Option<String>>,
    ) {
        match answer {
            Ok(frame) => {
                if let Some(frame) = frame {
                    send(socket, &frame);
                }
                if link.unsent.is_some() {
                    send_waiting(host, socket, link);
                }
            }
            Err(error) => {
                if error.code == Code::Internal {
                    worker::console_error!("a frame of {}: {}", link.machine_id, error.message);
                }
                self.close(host, socket, &Held::Link(link), &Close::because(&error));
            }
        }
    }
}

/// Sends the next of those effects that did not go out when the link opened.
fn send_waiting(host: &Host, socket: &WebSocket, mut link: Link) {
    let unsent = link.unsent.take();
    let next = host.run(|db| {
        crate::domain::effects::pending(db, &link.team_id, &link.machine_id, unsent.as_ref())
    });
    match next {
        Ok((frames, unsent)) => {
            link.unsent = unsent;
            attach(socket, &Held::Link(link), false);
            for frame in frames {
                send(socket, &frame);
            }
        }
        Err(error) => worker::console_error!("effects were not sent: {}", error.message),
    }
}

/// Sends a frame to the links that it is for.
pub fn send_down(host: &Host, team_id: &TeamId, down: &outgoing::Down) {
    let sockets = match &down.machine_id {
        Some(machine_id) => host.state.get_websockets_with_tag(machine_id.as_str()),
        None => host.state.get_websockets(),
    };
    for socket in sockets {
        let Some(Held::Link(link)) = live(&socket) else { continue };
        let waits = down.is_effect && link.unsent.is_some();
        if link.team_id == *team_id && !waits {
            send(&socket, &down.frame);
        }
    }
}

/// A connection that has gone meanwhile is missed at its close.
pub fn send(socket: &WebSocket, frame: &str) {
    drop(socket.send_with_str(frame));
}

fn end(socket: &WebSocket, held: &Held, close: &Close) {
    attach(socket, held, true);
    if let Err(error) = socket.close(Some(close.code), Some(&close.reason)) {
        worker::console_error!("a socket of {} was not closed: {error}", held.team_id());
    }
}

/// Tells the store that a link is gone.
pub fn lose(host: &Host, link: &Link, code: u16) {
    let lost = host.run(|db| db.transaction(|tx| links::closed(tx, link, code)));
    if let Err(error) = lost {
        worker::console_error!("{} was not noted as lost: {}", link.machine_id, error.message);
    }
}

pub fn attach(socket: &WebSocket, held: &Held, ended: bool) {
    if let Err(error) = socket.serialize_attachment(Attached { held: held.clone(), ended }) {
        worker::console_error!("a socket forgets whose it is: {error}");
    }
}

/// What a socket is, while it is open.
pub fn live(socket: &WebSocket) -> Option<Held> {
    let attached = socket.deserialize_attachment::<Attached>().ok().flatten()?;
    (!attached.ended).then_some(attached.held)
}

fn held(host: &Host) -> Vec<(WebSocket, Held)> {
    let sockets = host.state.get_websockets().into_iter();
    sockets.filter_map(|socket| live(&socket).map(|held| (socket, held))).collect()
}
