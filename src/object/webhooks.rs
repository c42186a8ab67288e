//! Sends deliveries. Which ones, signed how, and what an answer means is the core's
//! (`domain::delivering`); the lease that it wrote is durable before anything leaves, because the
//! platform holds what an object sends until its writes are.
use super::{Object, alarm, config};
use crate::domain::delivering::{self, Outcome, Sending};
use crate::limits::{
    WEBHOOK_ANSWER_BYTES_KEPT, WEBHOOK_ANSWER_BYTES_MAX, WEBHOOK_ERROR_CHARS_MAX, WEBHOOK_SLOW_MS,
    WEBHOOK_TIMEOUT_MS,
};
use crate::maintain::alarm::next_delivery;
use futures_util::TryStreamExt;
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use worker::js_sys::Uint8Array;
use worker::{
    AbortController, AbortSignal, Delay, Env, Fetch, Headers, Method, Request, RequestInit,
    RequestRedirect,
};

/// How often, and how many times, a test's pass looks whether deliveries have come back.
const DRAIN_STEP_MS: u64 = 5;
const DRAIN_STEPS_MAX: u64 = 12_000;

pub struct Webhooks {
    /// Sent by this instance and not answered yet.
    in_flight: Cell<usize>,
    timeout: Duration,
}

impl Webhooks {
    pub fn new(env: &Env) -> Webhooks {
        let in_test = config::test_hooks(env).then(|| config::text(env, "TEST_WEBHOOK_TIMEOUT_MS"));
        let timeout_ms = in_test.flatten().and_then(|ms| ms.parse().ok());
        let timeout_ms = timeout_ms.unwrap_or(WEBHOOK_TIMEOUT_MS.unsigned_abs());
        Webhooks { in_flight: Cell::default(), timeout: Duration::from_millis(timeout_ms) }
    }
}

impl Object {
    /// Starts the deliveries that are due, and waits for none.
    pub(super) fn start_deliveries(self: &Rc<Self>) {
        let leased = match self.host.run(|db| delivering::lease(db, &self.config)) {
            Ok(leased) => leased,
            Err(error) => {
                worker::console_error!("no delivery was started: {}", error.message);
                return;
            }
        };
        for sending in leased {
            let object = Rc::clone(self);
            self.webhooks.in_flight.set(self.webhooks.in_flight.get() + 1);
            self.host.state.wait_until(async move { object.deliver(sending).await });
        }
    }

    /// As `start_deliveries`, and has the alarm come for those that are due later.
    pub(super) async fn tend_deliveries(self: &Rc<Self>) {
        self.start_deliveries();
        match self.host.run(next_delivery) {
            Ok(Some(at)) => alarm::bring_forward(&self.host, at).await,
            Ok(None) => {}
            Err(error) => worker::console_error!("the next delivery: {}", error.message),
        }
    }

    /// Waits until no delivery is in flight, for tests whose clock stands still meanwhile.
    pub(super) async fn drain_deliveries(&self) {
        for _ in 0..DRAIN_STEPS_MAX {
            if self.webhooks.in_flight.get() == 0 {
                return;
            }
            Delay::from(Duration::from_millis(DRAIN_STEP_MS)).await;
        }
    }

    /// Sends one delivery, keeps what came of it, and starts what may go now.
    async fn deliver(self: Rc<Self>, sending: Sending) {
        let began_ms = self.host.clock.now_ms();
        let mut outcome = match &sending.refused {
            Some(why) => Outcome { error: Some(why.clone()), ..Outcome::default() },
            None => self.send_webhook(&sending).await,
        };
        outcome.was_slow = self.host.clock.now_ms() - began_ms >= WEBHOOK_SLOW_MS;
        let kept =
            self.host.run(|db| db.transaction(|tx| delivering::record(tx, &sending, &outcome)));
        if let Err(error) = kept {
            // Its lease runs out, and it is sent again.
            worker::console_error!("{}: not recorded: {}", sending.delivery_id, error.message);
        }
        self.webhooks.in_flight.set(self.webhooks.in_flight.get() - 1);
        self.tend_deliveries().await;
    }

    async fn send_webhook(&self, sending: &Sending) -> Outcome {
        let controller = AbortController::default();
        let signal = controller.signal();
        let received = RefCell::new(Outcome::default());
        let answered = {
            let exchange = pin!(exchange(sending, &signal, &received));
            let timeout = pin!(Delay::from(self.webhooks.timeout));
            match select(exchange, timeout).await {
                Either::Left((answered, _)) => Some(answered),
                Either::Right(_) => None,
            }
        };
        // Nothing more of its answer is wanted, wherever it was.
        controller.abort();
        let mut outcome = received.into_inner();
        if outcome.status.is_none() {
            let error = match answered {
                Some(Err(error)) => format!("no answer: {error}"),
                _ => format!("no answer within {} ms", self.webhooks.timeout.as_millis()),
            };
            outcome.error = Some(error.chars().take(WEBHOOK_ERROR_CHARS_MAX).collect());
        }
        outcome
    }
}

/// Sends the request and reads the beginning of its answer into `received`, which holds the status
/// as soon as it is there.
async fn exchange(
    sending: &Sending,
    signal: &AbortSignal,
    received: &RefCell<Outcome>,
) -> worker::Result<()> {
    let headers = Headers::new();
    for (name, value) in &sending.headers {
        headers.set(name, value)?;
    }
    let mut init = RequestInit::new();
    init.with_method(Method::Post)
        .with_headers(headers)
        .with_redirect(RequestRedirect::Manual)
        .with_body(Some(Uint8Array::from(sending.body.as_bytes()).into()));
    let request = Request::new_with_init(&sending.url, &init)?;
    let mut response = Fetch::Request(request).send_with_signal(signal).await?;
    {
        let mut received = received.borrow_mut();
        received.status = Some(response.status_code());
        received.retry_after = response.headers().get("retry-after")?;
    }
    let Ok(mut chunks) = response.stream() else { return Ok(()) };
    let (mut read, mut kept) = (0, Vec::new());
    while let Some(chunk) = chunks.try_next().await? {
        read += chunk.len();
        let room = WEBHOOK_ANSWER_BYTES_KEPT - kept.len();
        kept.extend(&chunk[..chunk.len().min(room)]);
        let text = String::from_utf8_lossy(&kept).replace('\0', "\u{fffd}");
        received.borrow_mut().answer = Some(text);
        if read >= WEBHOOK_ANSWER_BYTES_MAX {
            break;
        }
    }
    Ok(())
}
