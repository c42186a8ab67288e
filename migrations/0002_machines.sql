-- Enrolled computers, what they publish as, and what their heartbeats say.

CREATE TABLE machines (
    team_id                TEXT    NOT NULL,
    id                     TEXT    NOT NULL,
    name                   TEXT    NOT NULL,
    custodian_id           TEXT    NOT NULL,    -- the principal that enrolled it
    enrollment_key         TEXT    NOT NULL,
    host_key_id            TEXT,
    incarnation_id         TEXT,                -- one run of the connector process
    heartbeat_sequence     INTEGER NOT NULL DEFAULT 0,
    heartbeat_digests_json TEXT    NOT NULL DEFAULT '{}', -- of bindings, roots, activity as stored
    last_seen_at           INTEGER,
    revoked_at             INTEGER,
    revision               INTEGER NOT NULL DEFAULT 1,    -- not raised by a heartbeat
    created_at             INTEGER NOT NULL,
    PRIMARY KEY (team_id, id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX machines_by_enrollment ON machines (team_id, custodian_id, enrollment_key);
CREATE UNIQUE INDEX machines_by_name ON machines (team_id, name);

CREATE TABLE machine_roots (
    team_id    TEXT NOT NULL,
    machine_id TEXT NOT NULL,
    id         TEXT NOT NULL,
    value_json TEXT NOT NULL,
    PRIMARY KEY (team_id, machine_id, id)
) STRICT, WITHOUT ROWID;

-- What the store says of a machine's link.
CREATE TABLE machine_presence (
    team_id    TEXT    NOT NULL,
    machine_id TEXT    NOT NULL,
    linked     INTEGER NOT NULL CHECK (linked IN (0, 1)),
    lost_at    INTEGER,                         -- when the link was lost; NULL while it is held
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, machine_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX machine_presence_linked ON machine_presence (team_id, machine_id) WHERE linked = 1;
CREATE INDEX machine_presence_lost ON machine_presence (lost_at) WHERE lost_at IS NOT NULL;

CREATE TABLE machine_presence_events (
    sequence   INTEGER PRIMARY KEY AUTOINCREMENT,
    team_id    TEXT    NOT NULL,
    machine_id TEXT    NOT NULL,
    linked     INTEGER NOT NULL CHECK (linked IN (0, 1)),
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX machine_presence_events_by_team ON machine_presence_events (team_id, sequence);

-- Marks of that log, and how many machines are linked.
CREATE TABLE machine_presence_cursors (
    team_id        TEXT    PRIMARY KEY,
    pruned_through INTEGER NOT NULL DEFAULT 0,
    linked         INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- What publishes sessions: a machine's connector, an app, an import.
CREATE TABLE sources (
    team_id          TEXT    NOT NULL,
    id               TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    kind             TEXT    NOT NULL CHECK (kind IN ('connector', 'app', 'import')),
    machine_id       TEXT,
    custodian_id     TEXT    NOT NULL,
    visibility       TEXT    NOT NULL CHECK (visibility IN ('restricted', 'team')),
    state            TEXT    NOT NULL CHECK (state IN ('active', 'paused', 'revoked')),
    revision         INTEGER NOT NULL DEFAULT 1,
    last_received_at INTEGER,
    decoder          TEXT,
    counters_json    TEXT,
    last_error       TEXT,
    created_at       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (team_id, id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX sources_by_name ON sources (team_id, name);
CREATE INDEX sources_by_machine ON sources (team_id, machine_id);
CREATE INDEX sources_by_custodian ON sources (team_id, custodian_id);

CREATE TABLE sync_rules (
    team_id    TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    machine_id TEXT    NOT NULL,
    source_id  TEXT    NOT NULL,
    value_json TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('active', 'paused', 'removed')),
    revision   INTEGER NOT NULL DEFAULT 1,
    created_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (team_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX sync_rules_by_machine ON sync_rules (team_id, machine_id, id);

-- A session as an agent on a machine has it open; kept while an attachment or effect names it.
CREATE TABLE bindings (
    team_id    TEXT NOT NULL,
    machine_id TEXT NOT NULL,
    id         TEXT NOT NULL,
    session_id TEXT,
    value_json TEXT NOT NULL,
    PRIMARY KEY (team_id, machine_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX bindings_by_session ON bindings (team_id, session_id);

CREATE TABLE session_activity (
    team_id     TEXT    NOT NULL,
    source_id   TEXT    NOT NULL,
    harness     TEXT    NOT NULL,
    native_id   TEXT    NOT NULL,
    turn        TEXT    NOT NULL,
    since       INTEGER,
    observed_at INTEGER NOT NULL,               -- when it last changed
    PRIMARY KEY (team_id, source_id, harness, native_id)
) STRICT, WITHOUT ROWID;
