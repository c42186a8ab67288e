-- Carrying sessions on: continuations, attachments, operations and their effects on machines.

CREATE TABLE continuations (
    team_id         TEXT    NOT NULL,
    id              TEXT    NOT NULL,
    session_id      TEXT    NOT NULL,
    machine_id      TEXT,
    state           TEXT    NOT NULL
        CHECK (state IN ('pending', 'accepted', 'completed', 'failed', 'expired')),
    value_json      TEXT    NOT NULL,
    upload_ids_json TEXT    NOT NULL DEFAULT '[]', -- every upload's id that the body names
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    settled_at      INTEGER,
    principal_id    TEXT    NOT NULL DEFAULT '',
    revision        INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (team_id, id)
) STRICT;
CREATE INDEX continuations_by_session ON continuations (team_id, session_id);
CREATE INDEX continuations_by_machine ON continuations (team_id, machine_id, state);
CREATE INDEX continuations_by_settling ON continuations (settled_at) WHERE settled_at IS NOT NULL;
CREATE INDEX continuations_unsettled ON continuations (updated_at) WHERE settled_at IS NULL;

CREATE TABLE attachments (
    team_id      TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    session_id   TEXT    NOT NULL,
    machine_id   TEXT    NOT NULL,
    binding_id   TEXT    NOT NULL,
    principal_id TEXT    NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('pending', 'active', 'closed', 'revoked')),
    created_at   INTEGER NOT NULL,
    settled_at   INTEGER,
    revision     INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (team_id, id)
) STRICT;
CREATE INDEX attachments_by_session ON attachments (team_id, session_id);
CREATE INDEX attachments_by_machine ON attachments (team_id, machine_id, state);
CREATE INDEX attachments_by_settling ON attachments (settled_at) WHERE settled_at IS NOT NULL;

CREATE TABLE operations (
    team_id      TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    session_id   TEXT,
    principal_id TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    state        TEXT    NOT NULL
        CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'unknown')),
    input_json   TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    settled_at   INTEGER,
    revision     INTEGER NOT NULL DEFAULT 1,
    PRIMARY KEY (team_id, id)
) STRICT;
CREATE INDEX operations_by_session ON operations (team_id, session_id);
CREATE INDEX operations_by_settling ON operations (settled_at) WHERE settled_at IS NOT NULL;

-- What an operation asks of one machine; pending until a result, also once sent.
CREATE TABLE native_effects (
    team_id      TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    operation_id TEXT    NOT NULL,
    machine_id   TEXT    NOT NULL,
    binding_id   TEXT,
    state        TEXT    NOT NULL CHECK (state IN ('pending', 'succeeded', 'failed', 'unknown')),
    request_json TEXT    NOT NULL,
    result_json  TEXT,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (team_id, id)
) STRICT;
CREATE INDEX native_effects_by_operation ON native_effects (team_id, operation_id);
CREATE INDEX native_effects_by_machine ON native_effects (team_id, machine_id, state);
CREATE INDEX native_effects_pending ON native_effects (created_at) WHERE state = 'pending';
