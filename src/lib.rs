//! teamplane: the team plane for coding agents, one Durable Object per team.
//!
//! Read in this order: [`routes`] (every endpoint, one line each), [`api`], a file of [`domain`], [`store`],
//! [`maintain`]. Everything here is synchronous and runs natively; only `edge`, `object` and
//! `store/durable.rs` know workerd.
pub mod answer;
pub mod api;
pub mod appends;
pub mod auth;
pub mod call;
pub mod domain;
#[cfg(target_arch = "wasm32")]
mod edge;
pub mod error;
pub mod guard;
pub mod ids;
pub mod json;
mod json_strict;
pub mod limits;
pub mod maintain;
#[cfg(target_arch = "wasm32")]
mod object;
pub mod page;
pub mod ranges;
pub mod rate;
pub mod routes;
pub mod scopes;
pub mod shard;
pub mod store;
pub mod text;
pub mod webhooks;
