//! Token buckets, one per credential, in memory: an object that is evicted forgets them, which
//! only ever favours the caller.
use crate::error::{Code, Error, Result};
use crate::ids::CredentialId;
use crate::limits::{RATE_BUCKETS_MAX, RATE_BURST_SECONDS, RATE_TENTHS, SECOND_MS};
use std::collections::HashMap;

#[derive(Debug, Default)]
pub struct RateLimiter {
    /// Tenths of a request left, in thousandths so that a millisecond adds a whole number.
    buckets: HashMap<CredentialId, (i64, i64)>,
}

impl RateLimiter {
    /// Takes `tenths` from the caller's bucket, which refills at `per_second` requests.
    pub fn take(
        &mut self,
        credential_id: &CredentialId,
        now_ms: i64,
        per_second: i64,
        tenths: i64,
    ) -> Result<()> {
        if per_second == 0 {
            return Ok(());
        }
        if self.buckets.len() >= RATE_BUCKETS_MAX && !self.buckets.contains_key(credential_id) {
            self.buckets.clear();
        }
        let per_ms = per_second * RATE_TENTHS;
        let full = per_ms * SECOND_MS * RATE_BURST_SECONDS;
        let bucket = self.buckets.entry(credential_id.clone()).or_insert((full, now_ms));
        let elapsed_ms = (now_ms - bucket.1).clamp(0, RATE_BURST_SECONDS * SECOND_MS);
        let left = full.min(bucket.0 + elapsed_ms * per_ms);
        let wanted = tenths * SECOND_MS;
        *bucket = (left, now_ms);
        if left < wanted {
            let wait_s = 1 + (wanted - left - 1) / (per_ms * SECOND_MS);
            return Err(Error::new(
                Code::RateLimited,
                format!("this token may send {per_second} requests a second"),
            )
            .with_header("Retry-After", wait_s.to_string()));
        }
        bucket.0 = left - wanted;
        Ok(())
    }
}
