//! The sockets of machines' links. All that belongs to a socket is its attachment, so that the
//! object may sleep while it is open; what the core decides of it is in `domain::links`.
use super::host::Host;
use crate::domain::links::{self, Close, Link};
use crate::error::{Code, Error, Result};
use crate::ids::{Id, TeamId};
use crate::limits::{CREDENTIALS_CHECKED_MS, LINK_GRACE_MS};
use crate::maintain::alarm::Outside;
use crate::maintain::presence;
use std::cell::RefCell;
use std::collections::BTreeSet;
use worker::{Response, WebSocket, WebSocketPair, WebSocketRequestResponsePair};

/// What stands for a close without a code, and for a connection that broke; neither can be sent.
const NO_CODE: u16 = 1005;
pub const BROKEN: u16 = 1006;

#[derive(serde::Serialize, serde::Deserialize)]
struct Attached {
    link: Link,
    /// The server has closed it, or a newer link has replaced it: whatever still comes from it,
    /// its own close among that, says nothing of its machine.
    ended: bool,
}

#[derive(Default)]
pub struct Sockets {
    /// Nothing until this instance of the object has looked.
    known: RefCell<Option<Known>>,
}

#[derive(Default)]
struct Known {
    /// Those that may have links.
    teams: BTreeSet<TeamId>,
    epochs: Vec<(TeamId, i64)>,
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
        let machines: BTreeSet<_> = held.iter().map(|(_, link)| link.machine_id.clone()).collect();
        host.run(|db| {
            if presence::linked(db)? != i64::try_from(machines.len()).unwrap_or(i64::MAX) {
                presence::lose_missing(db, &machines)?;
            }
            Ok(())
        })?;
        let teams = held.into_iter().map(|(_, link)| link.team_id).collect();
        self.known.replace(Some(Known { teams, ..Known::default() }));
        Ok(())
    }

    /// Ends every event: closes the links whose credentials have ended. It looks at them when
    /// authority has changed, and at least each minute.
    pub fn tend(&self, host: &Host, wrote: bool) {
        if let Err(error) = self.check(host, wrote) {
            worker::console_error!("the links were not looked at: {}", error.message);
        }
    }

    fn check(&self, host: &Host, wrote: bool) -> Result<()> {
        let mut known = self.known.borrow_mut();
        let Some(known) = known.as_mut().filter(|known| !known.teams.is_empty()) else {
            return Ok(());
        };
        let now_ms = host.clock.now_ms();
        let is_due = known.check_at <= now_ms;
        if !is_due && !wrote {
            return Ok(());
        }
        let epochs = host.run(|db| links::epochs(db, &known.teams))?;
        if !is_due && epochs == known.epochs {
            return Ok(());
        }
        let mut held = held(host);
        let credentials = held.iter().map(|(_, link)| link.credential_id.clone()).collect();
        let standing = host.run(|db| links::standing(db, &credentials))?;
        let ended = Close::because(&Error::unauthenticated());
        held.retain(|(socket, link)| {
            let stays = !standing.ended.contains(&link.credential_id);
            if !stays {
                close(host, socket, link, &ended);
            }
            stays
        });
        let latest = now_ms + CREDENTIALS_CHECKED_MS;
        known.check_at = standing.next_end_at.map_or(latest, |at| at.min(latest));
        known.epochs = epochs;
        host.runner.borrow_mut().outside =
            Outside { is_linked: !held.is_empty(), sockets_expire_at: standing.next_end_at };
        known.teams = held.into_iter().map(|(_, link)| link.team_id).collect();
        Ok(())
    }

    /// Holds a link that the core has opened, in place of an older one of its machine.
    pub fn open(&self, host: &Host, link: &Link) -> worker::Result<Response> {
        let tag = link.machine_id.as_str();
        for socket in host.state.get_websockets_with_tag(tag) {
            if let Some(older) = live(&socket) {
                end(&socket, &older, &Close::replaced());
            }
        }
        let pair = WebSocketPair::new()?;
        let answered = WebSocketRequestResponsePair::new(links::PING, links::PONG)?;
        host.state.set_websocket_auto_response(&answered);
        host.state.accept_websocket_with_tags(&pair.server, &[tag]);
        pair.server.serialize_attachment(Attached { link: link.clone(), ended: false })?;
        self.known.borrow_mut().get_or_insert_default().teams.insert(link.team_id.clone());
        Response::from_websocket(pair.client)
    }
}

/// What a frame comes to: an answer, nothing, or the link's end.
pub fn answer(host: &Host, socket: &WebSocket, link: &Link, answer: Result<Option<String>>) {
    match answer {
        Ok(None) => {}
        // A connector that has gone meanwhile is missed at its close.
        Ok(Some(frame)) => drop(socket.send_with_str(frame)),
        Err(error) => {
            if error.code == Code::Internal {
                worker::console_error!("a frame of {}: {}", link.machine_id, error.message);
            }
            close(host, socket, link, &Close::because(&error));
        }
    }
}

/// A socket has closed, by its connector or as the end of what the server began. Answers when the
/// machine is given up, if it has lost its link.
pub fn closed(host: &Host, socket: &WebSocket, code: u16, reason: &str) -> Option<i64> {
    // The platform leaves it to us to answer a close; where the connection broke, nobody hears it.
    let _ = match code {
        BROKEN => Ok(()),
        NO_CODE => socket.close(None, None::<&str>),
        code => socket.close(Some(code), Some(reason)),
    };
    let link = live(socket)?;
    attach(socket, Attached { link: link.clone(), ended: true });
    lose(host, &link, code);
    Some(host.clock.now_ms() + LINK_GRACE_MS)
}

/// Closes a link on the server's side; its machine has its grace to come back.
fn close(host: &Host, socket: &WebSocket, link: &Link, close: &Close) {
    end(socket, link, close);
    lose(host, link, close.code);
}

fn end(socket: &WebSocket, link: &Link, close: &Close) {
    attach(socket, Attached { link: link.clone(), ended: true });
    if let Err(error) = socket.close(Some(close.code), Some(&close.reason)) {
        worker::console_error!("a link of {} was not closed: {error}", link.machine_id);
    }
}

/// Tells the store that a link is gone.
pub fn lose(host: &Host, link: &Link, code: u16) {
    let lost = host.run(|db| db.transaction(|tx| links::closed(tx, link, code)));
    if let Err(error) = lost {
        worker::console_error!("{} was not noted as lost: {}", link.machine_id, error.message);
    }
}

fn attach(socket: &WebSocket, attached: Attached) {
    if let Err(error) = socket.serialize_attachment(attached) {
        worker::console_error!("a socket forgets whose it is: {error}");
    }
}

/// Whose link a socket is, while it is one.
pub fn live(socket: &WebSocket) -> Option<Link> {
    let attached = socket.deserialize_attachment::<Attached>().ok().flatten()?;
    (!attached.ended).then_some(attached.link)
}

fn held(host: &Host) -> Vec<(WebSocket, Link)> {
    let sockets = host.state.get_websockets().into_iter();
    sockets.filter_map(|socket| live(&socket).map(|link| (socket, link))).collect()
}
