//! The object's one alarm, which runs what is due. A fired alarm is used up, so every way out of
//! [`run`] arms the next one, and so does the first event of each instance.
use super::Object;
use crate::error::Result;
use std::time::Duration;
use worker::js_sys::Date;
use worker::{ScheduledTime, State};

/// How long a run that failed waits for the next.
const FAILED_WAIT: Duration = Duration::from_secs(60);

/// Runs what is due and arms the next alarm. Never fails: the platform would retry six times and
/// then drop the alarm.
pub async fn run(object: &Object) {
    if object.host.clock.is_by_test() {
        return;
    }
    if let Err(error) = pass(object) {
        worker::console_error!("alarm: {}", error.message);
        set(&object.host.state, ScheduledTime::from(FAILED_WAIT)).await;
        return;
    }
    arm(object).await;
}

/// Sets the alarm where something will be due, unless one is set that comes first.
pub async fn arm(object: &Object) {
    if object.host.clock.is_by_test() {
        return;
    }
    let due_at = match next_due(object) {
        Ok(Some(due_at)) => due_at,
        Ok(None) => return,
        Err(error) => {
            worker::console_error!("alarm: {}", error.message);
            return set(&object.host.state, ScheduledTime::from(FAILED_WAIT)).await;
        }
    };
    let set_at = object.host.state.storage().get_alarm().await.unwrap_or_default();
    if set_at.is_none_or(|set_at| set_at > due_at) {
        #[allow(clippy::cast_precision_loss)] // A time.
        let due = Date::new(&(due_at as f64).into());
        set(&object.host.state, ScheduledTime::new(due)).await;
    }
}

async fn set(state: &State, at: ScheduledTime) {
    if let Err(error) = state.storage().set_alarm(at).await {
        worker::console_error!("alarm: it could not be set: {error}");
    }
}

/// The retention pass, once there is one.
fn pass(_object: &Object) -> Result<()> {
    Ok(())
}

/// When the next thing is due; nothing is, before there is a retention pass.
fn next_due(_object: &Object) -> Result<Option<i64>> {
    Ok(None)
}
