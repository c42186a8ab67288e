//! When a delivery that failed is due again.
use super::time;
use crate::limits::{SECOND_MS, WEBHOOK_STEPS_MS};

/// How long to wait after the `attempts`th attempt failed; nothing after the last.
///
/// `random` is any number, for the ± 20 %. What the receiver asks for holds within the step and
/// twice the step.
pub fn wait_ms(attempts: i64, asked_ms: Option<i64>, random: u32) -> Option<i64> {
    let index = usize::try_from(attempts - 1).ok()?;
    let step = *WEBHOOK_STEPS_MS.get(index)?;
    Some(match asked_ms {
        Some(asked) => asked.clamp(step, 2 * step),
        None => step * 4 / 5 + step * 2 / 5 * i64::from(random) / i64::from(u32::MAX),
    })
}

/// A `Retry-After`, in seconds or as a date, as a time to wait.
pub fn retry_after_ms(header: &str, now_ms: i64) -> Option<i64> {
    let header = header.trim();
    if header.bytes().all(|b| b.is_ascii_digit()) {
        // So long that no step reaches it, where it is more than fits.
        return (!header.is_empty())
            .then(|| header.parse().unwrap_or(i64::MAX / SECOND_MS))
            .map(|s: i64| s.saturating_mul(SECOND_MS));
    }
    time::http_date_ms(header).map(|at| (at - now_ms).max(0))
}
