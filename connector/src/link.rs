//! The link: one WebSocket that says that this machine is there. While it is broken heartbeats go
//! by HTTP, and it is opened again after waits of random length.
use crate::client::{Backoff, Body, Client};
use crate::error::{Error, Result};
use crate::limits::{CONNECT, FRAME_BYTES_MAX, GOODBYE, HEARTBEAT, LINK_SILENCE_MAX};
use crate::presence::Presence;
use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::error::Error as SocketError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// What the plane says.
#[derive(Debug)]
pub enum Heard {
    /// The server's time, which tells when the token ends.
    Time(i64),
    ConfigurationChanged,
    Effect(Effect),
    /// The token has ended for good.
    Rejected(Error),
}

#[derive(Debug, Deserialize)]
pub struct Effect {
    pub effect_id: String,
    pub kind: String,
    #[serde(default)]
    pub binding_id: Option<String>,
    #[serde(default)]
    pub input: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Frame {
    #[serde(rename = "type")]
    kind: String,
}

/// A heartbeat's answer, by either way.
#[derive(Deserialize)]
struct Beaten {
    machine: Seen,
}

#[derive(Deserialize)]
struct Seen {
    last_seen_at: Option<i64>,
}

pub struct Link {
    pub client: Arc<Client>,
    pub machine_id: String,
    pub presence: Arc<Presence>,
    pub heard: mpsc::Sender<Heard>,
    /// The token is another one now.
    pub renewed: Arc<Notify>,
}

/// How a link ended.
enum Ended {
    Stopped,
    Renewed,
    /// After it had been good.
    Lost(String),
    Failed(String),
    /// Another connector speaks for this machine.
    Replaced,
    Rejected,
}

impl Link {
    /// Holds the link until `stop`, and says goodbye then.
    pub async fn hold(self, mut stop: watch::Receiver<bool>) {
        let mut backoff = Backoff::default();
        let mut beat_at = Instant::now();
        while !*stop.borrow() {
            let ended = match self.open().await {
                Ok(socket) => {
                    tracing::info!("linked");
                    self.stay(socket, &mut stop).await
                }
                Err(Error::Rejected(_)) => Ended::Rejected,
                Err(error) => Ended::Failed(error.to_string()),
            };
            let mut wait = Duration::ZERO;
            match ended {
                Ended::Stopped => return,
                Ended::Renewed => continue,
                Ended::Lost(why) => {
                    tracing::info!("the link broke: {why}");
                    backoff.reset();
                    wait = backoff.next();
                    beat_at = Instant::now() + HEARTBEAT;
                }
                Ended::Failed(why) => {
                    tracing::debug!("no link: {why}");
                    wait = backoff.next();
                }
                Ended::Replaced => {
                    tracing::warn!(
                        "another connector speaks for this machine; enrol each computer by itself"
                    );
                    wait = HEARTBEAT;
                }
                Ended::Rejected => {
                    // A renewed token may have overtaken the old one's link.
                    if let Err(error @ Error::Rejected(_)) = self.beat_by_http().await {
                        self.heard.send(Heard::Rejected(error)).await.ok();
                        return;
                    }
                }
            }
            if Instant::now() >= beat_at {
                beat_at = Instant::now() + HEARTBEAT;
                match self.beat_by_http().await {
                    Err(error @ Error::Rejected(_)) => {
                        self.heard.send(Heard::Rejected(error)).await.ok();
                        return;
                    }
                    Err(error) => tracing::debug!("no heartbeat: {error}"),
                    Ok(()) => {}
                }
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = stop.changed() => {}
            }
        }
    }

    async fn open(&self) -> Result<Socket> {
        let path = format!("/machines/{}/link", self.machine_id);
        let url = self.client.url(&path).replacen("http", "ws", 1);
        let failed = |error: &dyn std::fmt::Display| Error::Unreachable(format!("{url}: {error}"));
        let mut request = url.as_str().into_client_request().map_err(|error| failed(&error))?;
        let token = format!("Bearer {}", self.client.token());
        let token = token.parse().map_err(|_| Error::other("the token is no header"))?;
        request.headers_mut().insert("authorization", token);
        let config = WebSocketConfig::default()
            .max_message_size(Some(2 * FRAME_BYTES_MAX))
            .max_frame_size(Some(2 * FRAME_BYTES_MAX));
        let opening = connect_async_with_config(request, Some(config), true);
        match timeout(CONNECT, opening).await {
            Err(_) => Err(failed(&"no answer")),
            Ok(Ok((socket, _))) => Ok(socket),
            Ok(Err(SocketError::Http(answer))) if answer.status() == 401 => {
                Err(Error::Rejected("the server does not take the machine's token".into()))
            }
            Ok(Err(error)) => Err(failed(&error)),
        }
    }

    async fn stay(&self, mut socket: Socket, stop: &mut watch::Receiver<bool>) -> Ended {
        let mut beat_at = Instant::now();
        let mut silent_at = Instant::now() + LINK_SILENCE_MAX;
        loop {
            tokio::select! {
                () = sleep_until(beat_at) => {
                    beat_at = Instant::now() + HEARTBEAT;
                    if let Err(error) = self.beat(&mut socket).await {
                        return Ended::Lost(error.to_string());
                    }
                }
                () = sleep_until(silent_at) => return Ended::Lost("it was silent".into()),
                message = socket.next() => {
                    silent_at = Instant::now() + LINK_SILENCE_MAX;
                    match message {
                        Some(Ok(Message::Text(text))) => self.hear(&text).await,
                        Some(Ok(Message::Close(frame))) => {
                            // The answer to the close goes out with the next read.
                            timeout(GOODBYE, socket.next()).await.ok();
                            return closed(frame.as_ref());
                        }
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Ended::Lost(error.to_string()),
                        None => return Ended::Lost("it was closed".into()),
                    }
                }
                () = self.renewed.notified() => return Ended::Renewed,
                _ = stop.changed() => {
                    goodbye(&mut socket).await;
                    return Ended::Stopped;
                }
            }
        }
    }

    /// One that is too large for a frame goes by HTTP: the link would be closed for it each time.
    async fn beat(&self, socket: &mut Socket) -> Result<()> {
        let mut heartbeat = self.presence.heartbeat();
        heartbeat["type"] = Value::from("heartbeat");
        let text = heartbeat.to_string();
        if text.len() > FRAME_BYTES_MAX {
            return self.beat_by_http().await;
        }
        let sent = socket.send(Message::text(text)).await;
        sent.map_err(|error| Error::Unreachable(error.to_string()))
    }

    async fn beat_by_http(&self) -> Result<()> {
        let path = format!("/machines/{}/heartbeat", self.machine_id);
        let body = Body::json(&self.presence.heartbeat());
        let once = timeout(CONNECT, self.client.json::<Beaten>(Method::POST, &path, body)).await;
        let beaten = once.map_err(|_| Error::Unreachable("no answer to a heartbeat".into()))??;
        self.time(&beaten).await;
        Ok(())
    }

    async fn hear(&self, text: &str) {
        let readable = crate::json::replace_lone_surrogates(text);
        let Ok(Frame { kind }) = serde_json::from_str::<Frame>(&readable) else {
            return tracing::debug!("the server sent a frame that is none");
        };
        let heard = match kind.as_str() {
            "heartbeat_ack" => {
                if let Ok(beaten) = serde_json::from_str::<Beaten>(&readable) {
                    self.time(&beaten).await;
                }
                return;
            }
            "configuration_changed" => Heard::ConfigurationChanged,
            "effect" => match serde_json::from_str::<Effect>(&readable) {
                Ok(effect) => Heard::Effect(effect),
                Err(error) => return tracing::warn!("an effect that cannot be read: {error}"),
            },
            // Newer servers may say more.
            _ => return,
        };
        self.heard.send(heard).await.ok();
    }

    async fn time(&self, beaten: &Beaten) {
        if let Some(at_ms) = beaten.machine.last_seen_at {
            self.heard.send(Heard::Time(at_ms)).await.ok();
        }
    }
}

fn closed(frame: Option<&CloseFrame>) -> Ended {
    let Some(frame) = frame else { return Ended::Lost("it was closed".into()) };
    match u16::from(frame.code) {
        4401 => Ended::Rejected,
        4001 => Ended::Replaced,
        // The same frames would be refused again at once.
        1007 | 1009 => Ended::Failed(format!("{} {}", frame.code, frame.reason)),
        code => Ended::Lost(format!("{code} {}", frame.reason)),
    }
}

async fn goodbye(socket: &mut Socket) {
    let frame = CloseFrame { code: CloseCode::Normal, reason: "goodbye".into() };
    let closing = async {
        socket.close(Some(frame)).await.ok();
        while let Some(Ok(_)) = socket.next().await {}
    };
    // workerd leaves the connection open after the close.
    timeout(Duration::from_millis(500), closing).await.ok();
}
