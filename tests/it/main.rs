//! Native integration tests: the whole API over real SQLite, in memory.
mod capture;
mod captures;
mod credentials;
mod journal;
mod machines;
mod maintain;
mod members;
mod plans;
mod sessions;
mod sources;
mod team;
mod teams;
mod tidy;
mod uploads;
mod vectors;
