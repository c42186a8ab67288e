//! The Durable Objects.
