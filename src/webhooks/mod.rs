//! Standard Webhooks, as far as it needs no store: what is signed, where it may go, and when it is
//! tried again.
pub mod address;
pub mod schedule;
pub mod signature;
pub mod time;
