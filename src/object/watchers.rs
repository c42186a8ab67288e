//! Watchers: the sockets behind streams. The edge holds the response of each and asks for more
//! where a watcher has yet to catch up; once it has, whatever is new is sent as it comes.
use super::host::Host;
use super::sockets::{Held, Sockets, attach, live, send, send_down};
use crate::domain::follow::{self, Follow};
use crate::domain::links::Close;
use crate::domain::live::News;
use crate::domain::outgoing::{self, Down};
use crate::domain::streams::{MORE, Of, Pass, WHOLE, Watch};
use crate::domain::visibility;
use crate::error::{Code, Error, Result};
use crate::ids::SessionId;
use crate::limits::WATCHERS_AT_ONCE;
use std::time::Duration;
use worker::{Delay, Response, WebSocket};

/// How the server ends a stream that is over.
fn over() -> Close {
    Close { code: 1000, reason: "there is nothing more to hear".into() }
}

/// Holds a stream that the core has opened, and sends what there is to read.
pub fn open(sockets: &Sockets, host: &Host, watch: Watch) -> Result<Response> {
    let sent = host.run(|db| Pass::default().next(db, &watch))?;
    let (text, now) =
        sent.map_or((String::new(), None), |s| (s.text.clone(), Some(s.watch.clone())));
    let held = Held::Watch(now.unwrap_or(watch));
    let Held::Watch(watch) = &held else { return Err(Error::internal("a watch")) };
    let (socket, response) = sockets.hold(host, &watch.tag(), &held)?;
    if let Of::Session(Follow { session_id, .. }) = &watch.of
        && sockets.live.borrow_mut().follow(&watch.team_id, session_id)
    {
        tell_machines(host, watch, session_id, true);
    }
    hand_over(&socket, &text, watch.waits());
    Ok(response)
}

/// Sends a piece of a stream to the edge, which asks for more where there is more.
fn hand_over(socket: &WebSocket, text: &str, more: bool) {
    if more || !text.is_empty() {
        let mark = if more { MORE } else { WHOLE };
        send(socket, &format!("{mark}{text}"));
    }
}

/// A watcher is gone.
pub fn left(sockets: &Sockets, host: &Host, watch: &Watch) {
    if let Of::Session(Follow { session_id, .. }) = &watch.of
        && sockets.live.borrow_mut().leave(session_id)
    {
        tell_machines(host, watch, session_id, false);
    }
}

/// Somebody follows a session, or nobody does any more.
fn tell_machines(host: &Host, watch: &Watch, session_id: &SessionId, on: bool) {
    let told = host.run(|db| {
        for (machine_id, watched) in follow::machines(db, &watch.team_id, session_id)? {
            let frame = outgoing::watch(&watched, on)?;
            let down = Down { machine_id: Some(machine_id), frame, is_effect: false };
            send_down(host, &watch.team_id, &down);
        }
        Ok(())
    });
    if let Err(error) = told {
        worker::console_error!("the machines of {session_id} were not told: {}", error.message);
    }
}

/// Sends the watchers under a tag what is new to them, some at a time.
pub async fn serve(sockets: &Sockets, host: &Host, tag: &str) {
    let mut watchers = host.state.get_websockets_with_tag(tag).into_iter();
    while watchers.len() > 0 {
        let mut pass = Pass::default();
        for socket in watchers.by_ref().take(WATCHERS_AT_ONCE) {
            if let Some(Held::Watch(watch)) = live(&socket).filter(|held| !waits(held)) {
                next(sockets, host, &socket, watch, &mut pass);
            }
        }
        if watchers.len() > 0 {
            Delay::from(Duration::ZERO).await;
        }
    }
}

fn waits(held: &Held) -> bool {
    matches!(held, Held::Watch(watch) if watch.waits())
}

/// The edge asks for what comes next.
pub fn asked(sockets: &Sockets, host: &Host, socket: &WebSocket, watch: Watch) {
    if watch.waits() {
        next(sockets, host, socket, watch, &mut Pass::default());
    }
}

fn next(sockets: &Sockets, host: &Host, socket: &WebSocket, watch: Watch, pass: &mut Pass) {
    match host.run(|db| pass.next(db, &watch)) {
        Ok(Some(sent)) => {
            attach(socket, &Held::Watch(sent.watch.clone()), false);
            hand_over(socket, &sent.text, sent.watch.waits());
        }
        Ok(None) => {
            if let Of::Log { topic, at, .. } = &watch.of {
                let of = Of::Log { topic: topic.clone(), at: at.clone(), waits: false };
                attach(socket, &Held::Watch(Watch { of, ..watch }), false);
            }
        }
        Err(error) => cut(sockets, host, socket, watch, &error),
    }
}

fn cut(sockets: &Sockets, host: &Host, socket: &WebSocket, watch: Watch, error: &Error) {
    if error.code == Code::Internal {
        worker::console_error!("a stream broke off: {}", error.message);
    }
    sockets.close(host, socket, &Held::Watch(watch), &Close::because(error));
}

/// Tells links and followers the news, and followers what has become of their sessions, if
/// authority has changed or the event log has grown.
pub fn tell(
    sockets: &Sockets,
    host: &Host,
    news: Vec<News>,
    authority: bool,
    grown: bool,
) -> Result<()> {
    let mut changed = authority || grown;
    for one in news {
        match one {
            News::Active => changed = true,
            News::Configured(machine_id) => {
                for socket in host.state.get_websockets_with_tag(&machine_id.to_string()) {
                    if let Some(Held::Link(_)) = live(&socket) {
                        send(&socket, &outgoing::configuration()?);
                    }
                }
            }
            News::Said(session_id, text) => {
                let event = follow::live(&text);
                for socket in host.state.get_websockets_with_tag(&session_id.to_string()) {
                    if live(&socket).is_some() {
                        hand_over(&socket, &event, false);
                    }
                }
            }
        }
    }
    if !changed || sockets.live.borrow().followed.is_empty() {
        return Ok(());
    }
    let mut states = {
        let live = sockets.live.borrow();
        let sessions = live.followed.iter().map(|(id, followed)| (&followed.team_id, id));
        host.run(|db| follow::states(db, sessions))?
    };
    if !authority {
        let live = sockets.live.borrow();
        states
            .retain(|id, now| live.followed.get(id).is_some_and(|f| f.state.as_ref() != Some(now)));
    }
    let mut pass = Pass::default();
    for (session_id, state) in states {
        for socket in host.state.get_websockets_with_tag(&session_id.to_string()) {
            let Some(Held::Watch(watch)) = live(&socket) else { continue };
            let Of::Session(follow) = &watch.of else { continue };
            let seen = host.run(|db| {
                if authority {
                    let who = pass.caller(db, &watch)?;
                    visibility::must_see(db, &who, &session_id)?;
                }
                Ok(follow.changed(&state))
            });
            match seen {
                Ok(Some((text, _))) if text.is_empty() => {}
                Ok(Some((text, follow))) => {
                    let watch = Watch { of: Of::Session(follow), ..watch.clone() };
                    attach(&socket, &Held::Watch(watch), false);
                    hand_over(&socket, &text, false);
                }
                Ok(None) => finish(sockets, host, &socket, watch, &session_id),
                Err(error) if matches!(error.code, Code::NotFound | Code::Forbidden) => {
                    finish(sockets, host, &socket, watch, &session_id);
                }
                Err(error) => cut(sockets, host, &socket, watch, &error),
            }
        }
        if let Some(followed) = sockets.live.borrow_mut().followed.get_mut(&session_id) {
            followed.state = Some(state);
        }
    }
    Ok(())
}

/// The session is gone, for all or for this follower.
fn finish(sockets: &Sockets, host: &Host, socket: &WebSocket, watch: Watch, id: &SessionId) {
    hand_over(socket, &follow::end(id), false);
    sockets.close(host, socket, &Held::Watch(watch), &over());
}
