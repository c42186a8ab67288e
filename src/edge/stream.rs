//! Streams of server-sent events. The Worker holds the response and a WebSocket to the object, so
//! that the object may sleep while nothing happens; the comments that keep a connection open come
//! from here.
use crate::domain::streams::{MORE, NEXT, WHOLE};
use crate::error::Error;
use crate::limits::{
    STREAM_COMMENT_MS, STREAM_COMMENTS_UNREAD_MAX, STREAM_QUEUE_BYTES_MAX, STREAM_QUEUE_FRAMES_MAX,
};
use crate::object::http;
use futures_channel::{mpsc, oneshot};
use futures_util::future::{Either, select};
use futures_util::{StreamExt, pin_mut, stream};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use worker::{Delay, Headers, Response, Result, WebSocket, WebsocketEvent};

const COMMENT: &str = ":\n\n";

/// What waits for the reader.
#[derive(Default)]
struct Queue {
    frames: Cell<usize>,
    bytes: Cell<usize>,
}

impl Queue {
    fn add(&self, bytes: usize) -> bool {
        self.frames.set(self.frames.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        self.frames.get() <= STREAM_QUEUE_FRAMES_MAX && self.bytes.get() <= STREAM_QUEUE_BYTES_MAX
    }

    fn take(&self, bytes: usize) {
        self.frames.set(self.frames.get() - 1);
        self.bytes.set(self.bytes.get() - bytes);
    }

    fn is_empty(&self) -> bool {
        self.frames.get() == 0
    }
}

/// A piece of the stream; `more` says that the object has more and waits to be asked.
struct Piece {
    text: String,
    more: bool,
}

/// The reader's side. Dropped when the reader has gone, which the other side then hears.
struct Reader {
    pieces: mpsc::UnboundedReceiver<Piece>,
    queue: Rc<Queue>,
    socket: WebSocket,
    asks: bool,
    _gone: oneshot::Sender<()>,
}

/// The response to a watcher, fed by the object's socket.
pub fn response(socket: WebSocket, request_id: &str) -> crate::error::Result<Response> {
    bridge(socket, request_id).map_err(|error| http::thrown(&error))
}

fn bridge(socket: WebSocket, request_id: &str) -> Result<Response> {
    let (pieces, received) = mpsc::unbounded();
    let (gone, has_gone) = oneshot::channel();
    let queue = Rc::new(Queue::default());
    let reader = Reader {
        pieces: received,
        queue: queue.clone(),
        socket: socket.clone(),
        asks: false,
        _gone: gone,
    };
    wasm_bindgen_futures::spawn_local(pump(socket, pieces, queue, has_gone));

    let headers = Headers::new();
    headers.set(http::REQUEST_ID, request_id)?;
    headers.set("Content-Type", "text/event-stream")?;
    headers.set("Cache-Control", "no-store")?;
    headers.set("X-Content-Type-Options", "nosniff")?;
    // A proxy that gathers what it passes on would hold events back.
    headers.set("X-Accel-Buffering", "no")?;
    let body = stream::unfold(reader, |mut reader| async move {
        // It reads on, so it has taken all that it was given.
        if std::mem::take(&mut reader.asks) {
            drop(reader.socket.send_with_str(NEXT));
        }
        let piece = reader.pieces.next().await?;
        reader.queue.take(piece.text.len());
        reader.asks = piece.more;
        Some((Ok::<_, worker::Error>(piece.text.into_bytes()), reader))
    });
    Ok(Response::from_stream(Box::pin(body))?.with_headers(headers))
}

/// Moves what the object sends into the queue, until either side ends it or the queue is full.
async fn pump(
    socket: WebSocket,
    pieces: mpsc::UnboundedSender<Piece>,
    queue: Rc<Queue>,
    mut has_gone: oneshot::Receiver<()>,
) {
    // Listening before accepting, so that nothing is missed.
    let Ok(mut events) = socket.events() else { return };
    if socket.accept().is_err() {
        return;
    }
    let mut unread = 0;
    let reason = 'open: loop {
        let due = Delay::from(Duration::from_millis(STREAM_COMMENT_MS));
        pin_mut!(due);
        loop {
            let event = match select(select(events.next(), &mut has_gone), &mut due).await {
                Either::Left((Either::Left((event, _)), _)) => event,
                Either::Left((Either::Right(_), _)) => break 'open "the reader has gone",
                Either::Right(_) => break,
            };
            let Some(Ok(WebsocketEvent::Message(message))) = event else {
                break 'open "the stream is over";
            };
            let text = message.text().unwrap_or_default();
            let Some((mark, text)) = text.split_at_checked(1) else { continue };
            debug_assert!([MORE, WHOLE].contains(&mark));
            let piece = Piece { text: text.to_owned(), more: mark == MORE };
            if !queue.add(piece.text.len()) {
                break 'open "the reader is too slow";
            }
            if pieces.unbounded_send(piece).is_err() {
                break 'open "the reader has gone";
            }
        }
        if queue.is_empty() {
            unread = 0;
            queue.add(COMMENT.len());
            let comment = Piece { text: COMMENT.into(), more: false };
            if pieces.unbounded_send(comment).is_err() {
                break "the reader has gone";
            }
        } else {
            unread += 1;
            if unread == STREAM_COMMENTS_UNREAD_MAX {
                break "the reader has stopped reading";
            }
        }
    };
    drop(socket.close(Some(1000), Some(reason)));
}

/// The object's answer as a stream, if it is one.
pub fn of(response: Response, request_id: &str) -> crate::error::Result<Response> {
    if response.status_code() != 101 {
        return Ok(response);
    }
    let socket = response.websocket().ok_or_else(|| Error::internal("a stream has no socket"))?;
    self::response(socket, request_id)
}
