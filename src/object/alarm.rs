//! The object's one alarm. A fired alarm is used up, so every way out of [`run`] sets the next one,
//! and so does the first event of each instance.
//!
//! Nothing is due yet: the retention pass will say when it is, and do the work.
use super::Object;
use worker::ScheduledTime;
use worker::js_sys::Date;

/// Runs what is due and sets the next alarm. Never fails: the platform would try again six times
/// and then drop the alarm.
pub async fn run(object: &Object) {
    arm(object).await;
}

/// Sets the alarm to the moment at which something is due, unless it comes sooner.
pub async fn arm(object: &Object) {
    if object.host.clock.is_by_test() {
        return;
    }
    let Some(due_at) = due_at(object) else { return };
    let storage = object.host.state.storage();
    let set_at = storage.get_alarm().await.unwrap_or_default();
    if set_at.is_some_and(|set_at| set_at <= due_at) {
        return;
    }
    #[allow(clippy::cast_precision_loss)] // A time.
    let due = ScheduledTime::new(Date::new(&(due_at as f64).into()));
    if let Err(error) = storage.set_alarm(due).await {
        worker::console_error!("the alarm was not set: {error}");
    }
}

/// The earliest moment at which something is due.
fn due_at(_object: &Object) -> Option<i64> {
    None
}
