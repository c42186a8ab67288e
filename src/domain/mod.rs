//! One file per area: its types, endpoints, SQL and invariants together.
pub mod captures;
pub mod credentials;
pub mod events;
pub mod idempotency;
pub mod journal;
pub mod machines;
pub mod members;
pub mod message_pages;
pub mod registry;
pub mod search;
pub mod session_list;
pub mod sessions;
pub mod sources;
pub mod teams;
pub mod uploads;
pub mod visibility;
