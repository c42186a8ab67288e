//! Native integration tests: the whole API over real SQLite, in memory.
mod capture;
mod captures;
mod sessions;
mod team;
mod teams;
mod uploads;
