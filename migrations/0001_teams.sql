-- The server, its teams, who is in them and what proves who they are.
-- Ids are '<kind>_' and 32 hex digits; moments are milliseconds since 1970 in columns named …_at.

-- One row: this object's server, its schema and the largest time it has stored.
CREATE TABLE server (
    id             TEXT    PRIMARY KEY,
    schema_version INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    clock_high_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE teams (
    id             TEXT    PRIMARY KEY,
    name           TEXT    NOT NULL,
    epoch          TEXT    NOT NULL,           -- 8 hex digits; a wipe or an import begins a new one
    removing       TEXT    CHECK (removing IN ('delete', 'wipe')),
    auth_epoch     INTEGER NOT NULL DEFAULT 1,  -- grows with every change of authority
    retention_json TEXT    NOT NULL DEFAULT '{}',
    revision       INTEGER NOT NULL DEFAULT 1,
    created_at     INTEGER NOT NULL
) STRICT;
CREATE INDEX teams_by_removing ON teams (removing) WHERE removing IS NOT NULL;

-- Who acts: a person or an app.
CREATE TABLE principals (
    id         TEXT    PRIMARY KEY,
    kind       TEXT    NOT NULL CHECK (kind IN ('user', 'app')),
    name       TEXT    NOT NULL,
    email      TEXT,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE memberships (
    team_id      TEXT    NOT NULL,
    principal_id TEXT    NOT NULL,
    role         TEXT    NOT NULL CHECK (role IN ('owner', 'admin', 'member', 'viewer')),
    active       INTEGER NOT NULL DEFAULT 1,
    revision     INTEGER NOT NULL DEFAULT 1,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (team_id, principal_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE groups_table (
    team_id    TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    revision   INTEGER NOT NULL DEFAULT 1,
    created_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (team_id, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE group_members (
    team_id      TEXT NOT NULL,
    group_id     TEXT NOT NULL,
    principal_id TEXT NOT NULL,
    PRIMARY KEY (team_id, group_id, principal_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX group_members_by_principal ON group_members (team_id, principal_id);

-- Tokens, as SHA-256 of their secret. Never deleted by revoking, so a reader sees what was revoked.
CREATE TABLE credentials (
    id           TEXT    PRIMARY KEY,
    token_hash   BLOB    NOT NULL,
    kind         TEXT    NOT NULL CHECK (kind IN ('user', 'machine', 'app')),
    team_id      TEXT    NOT NULL,
    principal_id TEXT    NOT NULL,
    source_id    TEXT,
    machine_id   TEXT,
    app_id       TEXT,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    revoked_at   INTEGER,
    last_used_at INTEGER                        -- at most hourly
) STRICT, WITHOUT ROWID;
CREATE INDEX credentials_by_machine ON credentials (team_id, machine_id);
CREATE INDEX credentials_by_principal ON credentials (team_id, principal_id);
CREATE INDEX credentials_by_expiry ON credentials (expires_at);
CREATE INDEX credentials_by_revocation ON credentials (revoked_at) WHERE revoked_at IS NOT NULL;

-- The first answer to a creating request, kept for a day. Never a secret.
CREATE TABLE idempotency (
    team_id       TEXT    NOT NULL,
    principal_id  TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    request_hash  BLOB    NOT NULL,
    status        INTEGER NOT NULL,
    response_json TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER NOT NULL,
    PRIMARY KEY (team_id, principal_id, key)
) STRICT;
CREATE INDEX idempotency_by_expiry ON idempotency (expires_at);

-- Changes of authority and settings, for the team's admins.
CREATE TABLE journal (
    sequence     INTEGER PRIMARY KEY AUTOINCREMENT,
    team_id      TEXT    NOT NULL,
    principal_id TEXT    NOT NULL,
    action       TEXT    NOT NULL,
    target_id    TEXT    NOT NULL,
    request_id   TEXT    NOT NULL,
    created_at   INTEGER NOT NULL
) STRICT;
CREATE INDEX journal_by_time ON journal (team_id, created_at);

-- Paging positions: a snapshot of at most 500 [session_id, revision] pairs, which it pins, or one
-- session's {session_id, revision}. Never changed once made.
CREATE TABLE cursors (
    id            TEXT    PRIMARY KEY,
    team_id       TEXT    NOT NULL,
    principal_id  TEXT    NOT NULL,
    kind          TEXT    NOT NULL CHECK (kind IN ('list', 'search', 'history')),
    filters_hash  TEXT    NOT NULL,
    snapshot_json TEXT    NOT NULL,
    after_json    TEXT,                         -- where the next snapshot begins; NULL: nowhere
    expires_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX cursors_by_expiry ON cursors (expires_at);

-- In the Directory: its registry of teams, and what its own callers page and repeat.
CREATE TABLE registry (
    id         TEXT    PRIMARY KEY,
    name       TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('creating', 'active', 'deleting')),
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE global_idempotency (
    key           TEXT    PRIMARY KEY,
    request_hash  BLOB    NOT NULL,
    status        INTEGER NOT NULL,             -- 0 while the first call is still running
    response_json TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER NOT NULL
) STRICT;
CREATE INDEX global_idempotency_by_expiry ON global_idempotency (expires_at);

CREATE TABLE global_cursors (
    id            TEXT    PRIMARY KEY,
    kind          TEXT    NOT NULL,
    filters_hash  TEXT    NOT NULL,
    snapshot_json TEXT    NOT NULL,
    after_json    TEXT,
    expires_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX global_cursors_by_expiry ON global_cursors (expires_at);
