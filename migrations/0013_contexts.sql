-- What an agent keeps between its turns: contexts and their payloads, named snapshots, worktrees
-- and usage.

-- A durable conversation: its head. `session_revision` and `durable_revision` grow by one with
-- each commit and each move of the head, `source_revision` with each event. Its owner proves
-- itself with a secret of which only the hash is kept. A deleted one stays, so that its id is
-- never used again.
CREATE TABLE contexts (
    team_id             TEXT    NOT NULL,
    id                  TEXT    NOT NULL,
    workspace           TEXT    NOT NULL,
    worktree            TEXT    NOT NULL DEFAULT '',
    instance_id         TEXT    NOT NULL DEFAULT '', -- '': in no worktree
    subject_id          TEXT    NOT NULL,            -- the principal whose it is
    capability_hash     BLOB    NOT NULL,
    session_revision    INTEGER NOT NULL DEFAULT 0,
    durable_revision    INTEGER NOT NULL DEFAULT 0,
    source_revision     INTEGER NOT NULL DEFAULT 0,
    provider            TEXT    NOT NULL,
    model               TEXT    NOT NULL,
    generation          INTEGER NOT NULL,
    checkpoint_revision INTEGER,                     -- of the active checkpoint; NULL: cleared
    title               TEXT,
    dir                 TEXT,
    lease_at            INTEGER,
    first_commit_at     INTEGER,
    listed_at           INTEGER,                     -- NULL: not in lists
    payload_count       INTEGER NOT NULL DEFAULT 0,  -- kept by triggers on context_payloads
    payload_bytes       INTEGER NOT NULL DEFAULT 0,
    prune_at            INTEGER,                     -- when its next checkpoint may go
    deleted_at          INTEGER,
    audit_id            TEXT,
    purge_at            INTEGER,                     -- when what a deleted one holds goes
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    PRIMARY KEY (team_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX contexts_listed
    ON contexts (team_id, workspace, instance_id, subject_id, listed_at DESC, id)
 WHERE listed_at IS NOT NULL;
CREATE INDEX contexts_in_dir ON contexts (team_id, workspace, instance_id, subject_id, dir)
 WHERE listed_at IS NOT NULL AND dir IS NOT NULL;
CREATE INDEX contexts_of_instance ON contexts (team_id, workspace, instance_id, subject_id)
 WHERE deleted_at IS NULL;
CREATE INDEX contexts_prune ON contexts (prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX contexts_purge ON contexts (purge_at) WHERE purge_at IS NOT NULL;

-- What was said and done, in order.
CREATE TABLE context_events (
    team_id          TEXT    NOT NULL,
    context_id       TEXT    NOT NULL,
    sequence         INTEGER NOT NULL,
    kind             TEXT    NOT NULL,
    role             TEXT    NOT NULL,
    tool_call_id     TEXT,
    payload_ref      TEXT,
    size             INTEGER NOT NULL,
    provenance       TEXT    NOT NULL,
    redaction_status TEXT    NOT NULL,
    created_at       INTEGER NOT NULL,
    PRIMARY KEY (team_id, context_id, sequence)
) STRICT, WITHOUT ROWID;

-- A payload of a context; without a body only its digest is known.
CREATE TABLE context_payloads (
    team_id    TEXT    NOT NULL,
    context_id TEXT    NOT NULL,
    ref        TEXT    NOT NULL,
    sha256     TEXT    NOT NULL,
    size       INTEGER NOT NULL,
    retention  TEXT,                       -- NULL until a commit says so
    body_id   TEXT,
    is_source  INTEGER NOT NULL DEFAULT 0, -- named by an event, or listed by a commit or import
    staged_at  INTEGER,                    -- since when nothing names it
    created_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, context_id, ref)
) STRICT, WITHOUT ROWID;
CREATE INDEX context_payloads_staged ON context_payloads (staged_at) WHERE staged_at IS NOT NULL;

-- A committed state of the working context. Commits number them by the durable revision.
CREATE TABLE context_checkpoints (
    team_id          TEXT    NOT NULL,
    context_id       TEXT    NOT NULL,
    durable_revision INTEGER NOT NULL,
    id               TEXT    NOT NULL,
    session_revision INTEGER NOT NULL,
    source_start     INTEGER NOT NULL,
    source_end       INTEGER NOT NULL,
    turn_id          INTEGER NOT NULL,
    algorithm        TEXT    NOT NULL,
    schema_version   INTEGER NOT NULL,
    summary_model    TEXT,
    summary_json     TEXT,                 -- as it was sent
    provider         TEXT    NOT NULL,
    model            TEXT    NOT NULL,
    generation       INTEGER NOT NULL,
    payload_ref      TEXT,                 -- the active context is this payload's bytes
    body_id         TEXT,                 -- or this body
    sha256           TEXT    NOT NULL,
    size             INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    PRIMARY KEY (team_id, context_id, durable_revision),
    UNIQUE (team_id, context_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX context_checkpoints_start
    ON context_checkpoints (team_id, context_id, source_start, durable_revision);
CREATE INDEX context_checkpoints_payload
    ON context_checkpoints (team_id, context_id, payload_ref) WHERE payload_ref IS NOT NULL;

-- What repeated calls are known by.
CREATE TABLE context_operations (
    team_id          TEXT    NOT NULL,
    context_id       TEXT    NOT NULL,
    operation_id     TEXT    NOT NULL,
    kind             TEXT    NOT NULL CHECK (kind IN ('commit', 'advance')),
    fingerprint      BLOB    NOT NULL,
    session_revision INTEGER NOT NULL,
    durable_revision INTEGER NOT NULL,
    source_revision  INTEGER NOT NULL,
    checkpoint_id    TEXT,
    created_at       INTEGER NOT NULL,
    UNIQUE (team_id, context_id, operation_id)
) STRICT;
CREATE INDEX context_operations_created ON context_operations (created_at);

CREATE TABLE context_imports (
    team_id       TEXT    NOT NULL,
    context_id    TEXT    NOT NULL,
    operation_key TEXT    NOT NULL,
    fingerprint   BLOB    NOT NULL,
    result_json   TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    UNIQUE (team_id, context_id, operation_key)
) STRICT;
CREATE INDEX context_imports_created ON context_imports (created_at);

-- Deletions and exports, for a year.
CREATE TABLE context_audits (
    team_id      TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    context_id   TEXT    NOT NULL,
    principal_id TEXT    NOT NULL,
    action       TEXT    NOT NULL CHECK (action IN ('delete', 'export')),
    size         INTEGER NOT NULL,
    revision     INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    UNIQUE (team_id, id)
) STRICT;
CREATE INDEX context_audits_expires ON context_audits (expires_at);

-- A conversation kept under a name. One with a `session_id` is a projection of the live context
-- of that id, made when its session revision was `session_revision`.
CREATE TABLE context_snapshots (
    team_id          TEXT    NOT NULL,
    workspace        TEXT    NOT NULL,
    instance_id      TEXT    NOT NULL DEFAULT '',
    subject_id       TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    worktree         TEXT    NOT NULL DEFAULT '',
    model            TEXT,
    provider         TEXT,
    turns            INTEGER NOT NULL,
    tokens           INTEGER NOT NULL,
    message_count    INTEGER NOT NULL,
    dir              TEXT,
    session_id       TEXT,
    session_revision INTEGER,
    body_id         TEXT    NOT NULL,
    size             INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    UNIQUE (team_id, workspace, instance_id, subject_id, name)
) STRICT;
CREATE INDEX context_snapshots_updated
    ON context_snapshots (team_id, workspace, instance_id, subject_id, updated_at DESC, name);
CREATE INDEX context_snapshots_in_dir
    ON context_snapshots (team_id, workspace, instance_id, subject_id, dir) WHERE dir IS NOT NULL;

-- Which tools a named conversation was admitted with; it need not be kept itself.
CREATE TABLE snapshot_admissions (
    team_id     TEXT    NOT NULL,
    workspace   TEXT    NOT NULL,
    instance_id TEXT    NOT NULL DEFAULT '',
    subject_id  TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    value_json  TEXT    NOT NULL,
    updated_at  INTEGER NOT NULL,
    UNIQUE (team_id, workspace, instance_id, subject_id, name)
) STRICT;

-- One life of a working directory. A name has at most one that is not deleted.
CREATE TABLE worktrees (
    team_id     TEXT    NOT NULL,
    workspace   TEXT    NOT NULL,
    instance_id TEXT    NOT NULL,
    worktree    TEXT    NOT NULL,
    path        TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('creating', 'active', 'deleting', 'deleted')),
    adopted     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (team_id, workspace, instance_id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX worktrees_alive ON worktrees (team_id, workspace, worktree)
 WHERE state <> 'deleted';
CREATE INDEX worktrees_by_name ON worktrees (team_id, workspace, worktree, instance_id);
CREATE INDEX worktrees_ended ON worktrees (updated_at) WHERE state IN ('creating', 'deleted');

-- Where a worktree's name leads. One without an instance was made by hand.
CREATE TABLE worktree_routes (
    team_id     TEXT    NOT NULL,
    workspace   TEXT    NOT NULL,
    subject_id  TEXT    NOT NULL,
    worktree    TEXT    NOT NULL,
    instance_id TEXT    NOT NULL DEFAULT '',
    dir         TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (team_id, workspace, subject_id, worktree, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX worktree_routes_updated
    ON worktree_routes (team_id, workspace, subject_id, updated_at DESC, worktree);
CREATE INDEX worktree_routes_of_instance ON worktree_routes (team_id, workspace, instance_id)
 WHERE instance_id <> '';

-- What a call of a model took.
CREATE TABLE usage_records (
    id                 INTEGER PRIMARY KEY AUTOINCREMENT,
    team_id            TEXT    NOT NULL,
    workspace          TEXT    NOT NULL,
    principal_id       TEXT    NOT NULL,
    kind               TEXT    NOT NULL CHECK (kind IN ('token_usage', 'cache_usage', 'compaction')),
    provider           TEXT,
    model              TEXT,
    session_id         TEXT,
    agent              TEXT,
    reason             TEXT,
    input_tokens       INTEGER,
    output_tokens      INTEGER,
    cache_read_tokens  INTEGER,
    cache_write_tokens INTEGER,
    estimated_tokens   INTEGER,
    before_tokens      INTEGER,
    after_tokens       INTEGER,
    summarized         INTEGER,
    created_at         INTEGER NOT NULL
) STRICT;
CREATE INDEX usage_records_created ON usage_records (created_at);
CREATE INDEX usage_records_team ON usage_records (team_id);
CREATE INDEX usage_records_calibration ON usage_records (team_id, workspace, provider, model, id)
 WHERE kind = 'token_usage' AND estimated_tokens > 0 AND input_tokens > 0;

-- Sums over the records that are kept, by each axis; triggers keep them.
CREATE TABLE usage_sums (
    team_id            TEXT    NOT NULL,
    workspace          TEXT    NOT NULL,
    axis               TEXT    NOT NULL, -- day, model or session
    key                TEXT    NOT NULL, -- days since 1970; provider and model around 0x1f; session
    records            INTEGER NOT NULL,
    input_tokens       INTEGER NOT NULL,
    output_tokens      INTEGER NOT NULL,
    cache_read_tokens  INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    estimated_tokens   INTEGER NOT NULL,
    PRIMARY KEY (team_id, workspace, axis, key)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER usage_records_inserted AFTER INSERT ON usage_records
BEGIN
    INSERT INTO usage_sums
    SELECT NEW.team_id, NEW.workspace, k.axis, k.key, 1,
           coalesce(NEW.input_tokens, 0), coalesce(NEW.output_tokens, 0),
           coalesce(NEW.cache_read_tokens, 0), coalesce(NEW.cache_write_tokens, 0),
           coalesce(NEW.estimated_tokens, 0)
      FROM (SELECT 'day' AS axis, printf('%08d', NEW.created_at / 86400000) AS key
            UNION ALL
            SELECT 'model', coalesce(NEW.provider, '') || char(31) || coalesce(NEW.model, '')
            UNION ALL
            SELECT 'session', NEW.session_id) AS k
     WHERE k.key IS NOT NULL
    ON CONFLICT (team_id, workspace, axis, key) DO UPDATE
       SET records = records + 1,
           input_tokens = input_tokens + excluded.input_tokens,
           output_tokens = output_tokens + excluded.output_tokens,
           cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
           cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens,
           estimated_tokens = estimated_tokens + excluded.estimated_tokens;
END;
-- By each key on its own: a list of keys would be looked for among all sums.
CREATE TRIGGER usage_records_deleted AFTER DELETE ON usage_records
BEGIN
    UPDATE usage_sums
       SET records = records - 1,
           input_tokens = input_tokens - coalesce(OLD.input_tokens, 0),
           output_tokens = output_tokens - coalesce(OLD.output_tokens, 0),
           cache_read_tokens = cache_read_tokens - coalesce(OLD.cache_read_tokens, 0),
           cache_write_tokens = cache_write_tokens - coalesce(OLD.cache_write_tokens, 0),
           estimated_tokens = estimated_tokens - coalesce(OLD.estimated_tokens, 0)
     WHERE team_id = OLD.team_id AND workspace = OLD.workspace AND axis = 'day'
       AND key = printf('%08d', OLD.created_at / 86400000);
    DELETE FROM usage_sums
     WHERE team_id = OLD.team_id AND workspace = OLD.workspace AND axis = 'day'
       AND key = printf('%08d', OLD.created_at / 86400000) AND records = 0;
    UPDATE usage_sums
       SET records = records - 1,
           input_tokens = input_tokens - coalesce(OLD.input_tokens, 0),
           output_tokens = output_tokens - coalesce(OLD.output_tokens, 0),
           cache_read_tokens = cache_read_tokens - coalesce(OLD.cache_read_tokens, 0),
           cache_write_tokens = cache_write_tokens - coalesce(OLD.cache_write_tokens, 0),
           estimated_tokens = estimated_tokens - coalesce(OLD.estimated_tokens, 0)
     WHERE team_id = OLD.team_id AND workspace = OLD.workspace AND axis = 'model'
       AND key = coalesce(OLD.provider, '') || char(31) || coalesce(OLD.model, '');
    DELETE FROM usage_sums
     WHERE team_id = OLD.team_id AND workspace = OLD.workspace AND axis = 'model'
       AND key = coalesce(OLD.provider, '') || char(31) || coalesce(OLD.model, '') AND records = 0;
    UPDATE usage_sums
       SET records = records - 1,
           input_tokens = input_tokens - coalesce(OLD.input_tokens, 0),
           output_tokens = output_tokens - coalesce(OLD.output_tokens, 0),
           cache_read_tokens = cache_read_tokens - coalesce(OLD.cache_read_tokens, 0),
           cache_write_tokens = cache_write_tokens - coalesce(OLD.cache_write_tokens, 0),
           estimated_tokens = estimated_tokens - coalesce(OLD.estimated_tokens, 0)
     WHERE team_id = OLD.team_id AND workspace = OLD.workspace AND axis = 'session'
       AND key = OLD.session_id;
    DELETE FROM usage_sums
     WHERE team_id = OLD.team_id AND workspace = OLD.workspace AND axis = 'session'
       AND key = OLD.session_id AND records = 0;
END;

CREATE TRIGGER context_payloads_inserted AFTER INSERT ON context_payloads
BEGIN
    UPDATE contexts
       SET payload_count = payload_count + 1,
           payload_bytes = payload_bytes + iif(NEW.body_id IS NULL, 0, NEW.size)
     WHERE team_id = NEW.team_id AND id = NEW.context_id;
END;
CREATE TRIGGER context_payloads_filled AFTER UPDATE OF body_id ON context_payloads
WHEN OLD.body_id IS NULL AND NEW.body_id IS NOT NULL
BEGIN
    UPDATE contexts SET payload_bytes = payload_bytes + NEW.size
     WHERE team_id = NEW.team_id AND id = NEW.context_id;
END;
CREATE TRIGGER context_payloads_deleted AFTER DELETE ON context_payloads
BEGIN
    UPDATE contexts
       SET payload_count = payload_count - 1,
           payload_bytes = payload_bytes - iif(OLD.body_id IS NULL, 0, OLD.size)
     WHERE team_id = OLD.team_id AND id = OLD.context_id;
    INSERT INTO body_prune_queue (team_id, body_id)
    SELECT OLD.team_id, OLD.body_id WHERE OLD.body_id IS NOT NULL
    ON CONFLICT (team_id, body_id) DO NOTHING;
END;
CREATE TRIGGER context_checkpoints_deleted AFTER DELETE ON context_checkpoints
WHEN OLD.body_id IS NOT NULL
BEGIN
    INSERT INTO body_prune_queue (team_id, body_id) VALUES (OLD.team_id, OLD.body_id)
    ON CONFLICT (team_id, body_id) DO NOTHING;
END;
CREATE TRIGGER context_snapshots_changed AFTER UPDATE OF body_id ON context_snapshots
BEGIN
    INSERT INTO body_prune_queue (team_id, body_id) VALUES (OLD.team_id, OLD.body_id)
    ON CONFLICT (team_id, body_id) DO NOTHING;
END;
CREATE TRIGGER context_snapshots_deleted AFTER DELETE ON context_snapshots
BEGIN
    INSERT INTO body_prune_queue (team_id, body_id) VALUES (OLD.team_id, OLD.body_id)
    ON CONFLICT (team_id, body_id) DO NOTHING;
END;
