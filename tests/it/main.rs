//! Native integration tests: the whole API over real SQLite, in memory.
mod team;
mod teams;
mod vectors;
