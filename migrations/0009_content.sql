-- Large bodies, taken in as they come and kept in chunks. Whoever publishes one names it by its id
-- and takes it out of staged_bodies, in one transaction.
CREATE TABLE body_chunks (
    team_id     TEXT    NOT NULL,
    body_id     TEXT    NOT NULL,
    chunk_index INTEGER NOT NULL,
    bytes       BLOB    NOT NULL,
    PRIMARY KEY (team_id, body_id, chunk_index)
) STRICT;

-- Bodies on their way, or given up on it.
CREATE TABLE staged_bodies (
    team_id    TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX staged_bodies_by_age ON staged_bodies (created_at);

-- Bodies that nothing names any more: their chunks go.
CREATE TABLE body_prune_queue (
    team_id TEXT NOT NULL,
    body_id TEXT NOT NULL,
    PRIMARY KEY (team_id, body_id)
) STRICT, WITHOUT ROWID;
