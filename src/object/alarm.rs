//! An object's one alarm. A fired alarm is used up, so every way out of [`run`] has set the next
//! one, and so does the first event of each instance. It is set only when it changes: each setting
//! is a row written.
use super::host::Host;
use crate::error::Result;
use crate::limits::PASS_WAIT_MS;
use crate::maintain::alarm;
use std::time::Duration;
use worker::js_sys::Date;
use worker::{Delay, ScheduledTime};

/// What an instance knows of its alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Known {
    /// This instance has not looked yet.
    #[default]
    Nothing,
    At(Option<i64>),
}

/// Runs what is due and sets the next alarm; `tend` sees to what the object holds beside its store.
/// Never fails: the platform would try again six times and then drop the alarm.
pub async fn run(host: &Host, tend: impl AsyncFnOnce() -> Result<()>) {
    host.alarm.set(Known::At(None));
    if host.clock.is_by_test() {
        return;
    }
    match host.open() {
        Ok(None) => return,
        Ok(Some(_)) => {}
        Err(error) => worker::console_error!("the alarm found no store: {}", error.message),
    }
    // Whatever happens below, the object wakes again.
    set(host, host.clock.now_ms() + PASS_WAIT_MS).await;
    if let Err(error) = host.state.storage().sync().await {
        worker::console_error!("the alarm was not synced: {error}");
    }
    if let Err(error) = tend().await {
        worker::console_error!("the alarm could not see to the links: {}", error.message);
    }
    if host.run(alarm::is_pass_due).unwrap_or(true) {
        pass(host).await;
    }
    rest(host).await;
}

/// Joins the retention pass under way, or begins one, and runs it to its end.
async fn pass(host: &Host) {
    let number = host.runner.borrow_mut().join(host.clock.now_ms());
    loop {
        match host.run(|db| Ok(host.runner.borrow_mut().slice(db, number))) {
            Ok(None) => Delay::from(Duration::ZERO).await,
            Ok(Some(outcome)) => {
                if let Some(line) = outcome.log_line() {
                    worker::console_log!("{line}");
                }
                return;
            }
            Err(error) => {
                worker::console_error!("the retention pass broke off: {}", error.message);
                return;
            }
        }
    }
}

/// Sets the alarm to the earliest moment at which something is due, or takes it away.
async fn rest(host: &Host) {
    let next = host.run(|db| alarm::next(db, &host.runner.borrow().outside));
    match next {
        Ok(Some(at)) => set(host, at).await,
        Ok(None) => match host.state.storage().delete_alarm().await {
            Ok(()) => host.alarm.set(Known::At(None)),
            Err(error) => worker::console_error!("the alarm was not taken away: {error}"),
        },
        // The one of a minute from now stays.
        Err(error) => worker::console_error!("the next alarm is unknown: {}", error.message),
    }
}

/// After an event: the first one of an instance sets a missing alarm, and one that wrote brings a
/// late alarm forward.
pub async fn see_to(host: &Host, wrote: bool) {
    if host.clock.is_by_test() {
        return;
    }
    let known = match host.alarm.get() {
        Known::At(at) => at,
        Known::Nothing => {
            let at = host.state.storage().get_alarm().await.unwrap_or_default();
            host.alarm.set(Known::At(at));
            if at.is_none() && matches!(host.open(), Ok(Some(_))) {
                return rest(host).await;
            }
            at
        }
    };
    if wrote && let Some(at) = alarm::after_write(known, host.clock.now_ms()) {
        set(host, at).await;
    }
}

/// Has the alarm come at `at`, unless it comes sooner.
pub async fn bring_forward(host: &Host, at: i64) {
    let is_late = match host.alarm.get() {
        Known::Nothing => false, // The event's end has looked.
        Known::At(known) => known.is_none_or(|known| known > at),
    };
    if is_late && !host.clock.is_by_test() {
        set(host, at).await;
    }
}

async fn set(host: &Host, at: i64) {
    if host.alarm.get() == Known::At(Some(at)) {
        return;
    }
    #[allow(clippy::cast_precision_loss)] // A time.
    let due = ScheduledTime::new(Date::new(&(at as f64).into()));
    match host.state.storage().set_alarm(due).await {
        Ok(()) => host.alarm.set(Known::At(Some(at))),
        Err(error) => worker::console_error!("the alarm was not set: {error}"),
    }
}
