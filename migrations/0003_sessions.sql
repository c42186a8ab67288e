-- Sessions, their versions and messages, and the captures that make them.
--
-- Messages are carried, not copied: a row belongs to version r when
-- revision <= r < until_revision, and until_revision is 2^53 − 1 while the session's current
-- version holds it. A row's revision never changes.

CREATE TABLE sessions (
    team_id       TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    revision      INTEGER NOT NULL,             -- names the current version
    edits         INTEGER NOT NULL DEFAULT 0,   -- grows with every change of the title by a member
    harness       TEXT    NOT NULL,
    title         TEXT,
    title_by      TEXT,                         -- the member whose title stays; NULL: captured
    message_count INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    deleted_at    INTEGER,
    -- Its rows in origins as [[source_id, harness, native_id]], so that a page of sessions is
    -- filtered by who may see which source without a look-up per session.
    origins_json  TEXT    NOT NULL DEFAULT '[]',
    PRIMARY KEY (team_id, id)
) STRICT;
CREATE INDEX sessions_by_update ON sessions (team_id, updated_at, id);

-- (source, harness, native id) → session. No session: a deleted session's tombstone.
CREATE TABLE origins (
    team_id    TEXT NOT NULL,
    source_id  TEXT NOT NULL,
    harness    TEXT NOT NULL,
    native_id  TEXT NOT NULL,
    session_id TEXT,
    PRIMARY KEY (team_id, source_id, harness, native_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX origins_by_session ON origins (team_id, session_id);

CREATE TABLE session_versions (
    team_id                TEXT    NOT NULL,
    session_id             TEXT    NOT NULL,
    revision               INTEGER NOT NULL,
    source_id              TEXT    NOT NULL,    -- never changes
    title                  TEXT,
    source_projection_json TEXT,
    capture_id             TEXT,
    message_count          INTEGER NOT NULL,
    created_at             INTEGER NOT NULL,
    PRIMARY KEY (team_id, session_id, revision)
) STRICT;

CREATE TABLE messages (
    id             INTEGER PRIMARY KEY,         -- also the search index's rowid
    team_id        TEXT    NOT NULL,
    session_id     TEXT    NOT NULL,
    ordinal        INTEGER NOT NULL,
    revision       INTEGER NOT NULL,
    until_revision INTEGER NOT NULL DEFAULT 9007199254740991,
    role           TEXT    NOT NULL,
    digest         TEXT    NOT NULL,            -- of value_json's bytes
    value_json     TEXT    NOT NULL             -- as sent, byte for byte
) STRICT;
CREATE UNIQUE INDEX messages_by_ordinal ON messages (team_id, session_id, ordinal, revision);
-- Only closed rows can be dead, and this finds them. The revision tells the dead ones from those
-- that an older version still holds.
CREATE INDEX messages_closed ON messages (team_id, session_id, until_revision, revision)
    WHERE until_revision < 9007199254740991;

-- Text of the rows that current versions hold; what it indexes is not stored twice. scope has
-- tokens of the team, the session and its sources, so that a search finds only what may be seen.
CREATE VIRTUAL TABLE message_search USING fts5 (
    text, scope, content = '', contentless_delete = 1, prefix = '3',
    tokenize = 'unicode61 remove_diacritics 2'
);
-- Titles of sessions; rowid is the session's.
CREATE VIRTUAL TABLE title_search USING fts5 (
    text, scope, content = '', contentless_delete = 1, prefix = '3',
    tokenize = 'unicode61 remove_diacritics 2'
);

CREATE TABLE session_grants (
    team_id      TEXT    NOT NULL,
    session_id   TEXT    NOT NULL,
    subject_kind TEXT    NOT NULL CHECK (subject_kind IN ('principal', 'group')),
    subject_id   TEXT    NOT NULL,
    access       TEXT    NOT NULL CHECK (access IN ('read', 'continue')),
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (team_id, session_id, subject_kind, subject_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX session_grants_by_subject ON session_grants (team_id, subject_kind, subject_id);

-- One publication of a session: begin, parts, commit.
CREATE TABLE captures (
    team_id         TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    source_id       TEXT    NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('staging', 'committed', 'aborted')),
    begin_json      TEXT    NOT NULL,
    upload_ids_json TEXT    NOT NULL DEFAULT '[]', -- every upload's id that the body names
    session_id      TEXT,
    revision        INTEGER,
    created_at      INTEGER NOT NULL,
    settled_at      INTEGER,
    principal_id    TEXT    NOT NULL DEFAULT '',   -- its maker
    part_count      INTEGER NOT NULL DEFAULT 0,    -- running sums of its parts
    message_count   INTEGER NOT NULL DEFAULT 0,
    bytes           INTEGER NOT NULL DEFAULT 0,
    result_json     TEXT,                          -- what its commit answered
    PRIMARY KEY (team_id, id)
) STRICT;
CREATE INDEX captures_by_settling ON captures (settled_at) WHERE settled_at IS NOT NULL;

CREATE TABLE capture_parts (
    team_id       TEXT    NOT NULL,
    capture_id    TEXT    NOT NULL,
    part_index    INTEGER NOT NULL,
    digest        TEXT    NOT NULL,             -- of the part's body
    messages_json TEXT    NOT NULL,             -- the messages as sent
    digests_json  TEXT    NOT NULL,             -- {ordinal: digest}
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (team_id, capture_id, part_index)
) STRICT;

-- What expired uncommitted; kept for 30 days, so that its maker is told so.
CREATE TABLE capture_expiries (
    team_id    TEXT    NOT NULL,
    source_id  TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    expired_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, source_id, id)
) STRICT;
CREATE INDEX capture_expiries_by_time ON capture_expiries (expired_at);
