-- What `maintain` works from. It may be applied to a store that is already large, so its cost is
-- constant: it copies no row and builds no index on a table that holds any. Rows older than it
-- are walked into its tables afterwards (maintain_backfill).
--
-- What would need a search is kept as rows by the writes that make it so; what can only be
-- decided across tables is queued by the write that may make it so. Triggers have no clock: what
-- they queue is due at a moment that the row itself names, or at once. None of them touches more
-- rows than the row that fires it names: at most 500 (a cursor's pairs).

ALTER TABLE event_retention ADD COLUMN deleted_through INTEGER NOT NULL DEFAULT 0;
ALTER TABLE machine_presence_cursors ADD COLUMN deleted_through INTEGER NOT NULL DEFAULT 0;

-- One row, written only when it changes.
CREATE TABLE maintain_state (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    pass_due_at INTEGER NOT NULL DEFAULT 0,     -- no pass before this
    next_step   TEXT    NOT NULL DEFAULT '',    -- served first by the next pass
    passes_json TEXT    NOT NULL DEFAULT '[]',  -- the last passes that changed something
    counts_json TEXT,                           -- rows per table, as last counted
    counted_at  INTEGER
) STRICT;
INSERT INTO maintain_state (id) VALUES (1);

-- How far each walk over older rows has come. The walk over cursors is a wait: a cursor older
-- than this migration has no pins, so versions stay until the last of them has expired.
CREATE TABLE maintain_backfill (
    name        TEXT    PRIMARY KEY,
    after_rowid INTEGER NOT NULL DEFAULT 0,
    done        INTEGER NOT NULL CHECK (done IN (0, 1))
) STRICT, WITHOUT ROWID;
CREATE INDEX maintain_backfill_open ON maintain_backfill (name, after_rowid) WHERE done = 0;
INSERT INTO maintain_backfill (name, done)
VALUES ('version_sources', NOT EXISTS (SELECT 1 FROM session_versions)),
       ('captured_versions', NOT EXISTS (SELECT 1 FROM session_artifacts)),
       ('artifact_refs', NOT EXISTS (SELECT 1 FROM session_artifacts)),
       ('continuation_refs', NOT EXISTS (SELECT 1 FROM continuations)),
       ('captures', NOT EXISTS (SELECT 1 FROM captures)),
       ('uploads', NOT EXISTS (SELECT 1 FROM uploads)),
       ('blobs', NOT EXISTS (SELECT 1 FROM artifact_blobs)),
       ('sessions', NOT EXISTS (SELECT 1 FROM sessions)),
       ('teams', NOT EXISTS (SELECT 1 FROM teams));
INSERT INTO maintain_backfill (name, after_rowid, done)
SELECT 'cursor_pins', coalesce(max(expires_at), 0), max(expires_at) IS NULL FROM cursors;

-- When a log or list of a team that ages by the team's own days next has something to lose.
CREATE TABLE retention_due (
    team_id TEXT    NOT NULL,
    step    TEXT    NOT NULL,                   -- events, presence, journal, deliveries, sessions
    due_at  INTEGER NOT NULL,
    PRIMARY KEY (team_id, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX retention_due_by_time ON retention_due (step, due_at);

CREATE TRIGGER teams_retention_changed AFTER UPDATE OF retention_json ON teams
WHEN NEW.retention_json <> OLD.retention_json
BEGIN
    INSERT INTO retention_due (team_id, step, due_at)
    SELECT NEW.id, value, 0
      FROM json_each('["events","presence","journal","deliveries","sessions"]')
     WHERE true
    ON CONFLICT (team_id, step) DO UPDATE SET due_at = 0;
END;
-- A wipe walks the event log from its beginning.
CREATE TRIGGER teams_wiped AFTER UPDATE OF removing ON teams
WHEN NEW.removing = 'wipe' AND OLD.removing IS NULL
BEGIN
    UPDATE event_retention SET deleted_through = 0 WHERE team_id = NEW.id;
END;
CREATE TRIGGER org_events_inserted AFTER INSERT ON org_events
BEGIN
    INSERT INTO retention_due (team_id, step, due_at)
    VALUES (NEW.team_id, 'events', NEW.created_at)
    ON CONFLICT (team_id, step) DO NOTHING;
END;
CREATE TRIGGER machine_presence_events_inserted AFTER INSERT ON machine_presence_events
BEGIN
    INSERT INTO retention_due (team_id, step, due_at)
    VALUES (NEW.team_id, 'presence', NEW.created_at)
    ON CONFLICT (team_id, step) DO NOTHING;
END;
CREATE TRIGGER journal_inserted AFTER INSERT ON journal
BEGIN
    INSERT INTO retention_due (team_id, step, due_at)
    VALUES (NEW.team_id, 'journal', NEW.created_at)
    ON CONFLICT (team_id, step) DO NOTHING;
END;
CREATE TRIGGER app_webhook_deliveries_inserted AFTER INSERT ON app_webhook_deliveries
WHEN NEW.settled_at IS NOT NULL
BEGIN
    INSERT INTO retention_due (team_id, step, due_at)
    VALUES (NEW.team_id, 'deliveries', NEW.settled_at)
    ON CONFLICT (team_id, step) DO NOTHING;
END;
CREATE TRIGGER app_webhook_deliveries_settled AFTER UPDATE OF settled_at ON app_webhook_deliveries
WHEN NEW.settled_at IS NOT NULL AND OLD.settled_at IS NULL
BEGIN
    INSERT INTO retention_due (team_id, step, due_at)
    VALUES (NEW.team_id, 'deliveries', NEW.settled_at)
    ON CONFLICT (team_id, step) DO NOTHING;
END;

-- Events -----------------------------------------------------------------------------------

-- An event that age has passed over is kept only while it is its resource's current one.
CREATE TRIGGER event_resources_moved AFTER UPDATE OF sequence ON event_resources
WHEN NEW.sequence <> OLD.sequence
BEGIN
    DELETE FROM org_events
     WHERE sequence = OLD.sequence
       AND team_id = OLD.team_id
       AND sequence <= (SELECT deleted_through FROM event_retention WHERE team_id = OLD.team_id);
END;
CREATE TRIGGER event_resources_dropped AFTER DELETE ON event_resources
BEGIN
    DELETE FROM org_events
     WHERE sequence = OLD.sequence
       AND team_id = OLD.team_id
       AND sequence <= (SELECT deleted_through FROM event_retention WHERE team_id = OLD.team_id);
END;

-- Versions and their messages --------------------------------------------------------------

-- The versions that each source published.
CREATE TABLE version_sources (
    team_id    TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    source_id  TEXT    NOT NULL,
    revision   INTEGER NOT NULL,
    PRIMARY KEY (team_id, session_id, source_id, revision)
) STRICT, WITHOUT ROWID;

-- Those among them to which a capture attached an artifact.
CREATE TABLE captured_versions (
    team_id    TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    source_id  TEXT    NOT NULL,
    revision   INTEGER NOT NULL,
    PRIMARY KEY (team_id, session_id, source_id, revision)
) STRICT, WITHOUT ROWID;

-- Versions that may have become needless: those of this session and source above
-- `after_revision`, and from `held_revision` on once the pin that held it has expired.
CREATE TABLE version_prune_queue (
    team_id        TEXT    NOT NULL,
    session_id     TEXT    NOT NULL,
    source_id      TEXT    NOT NULL,
    after_revision INTEGER NOT NULL DEFAULT 0,
    due_at         INTEGER NOT NULL,
    held_revision  INTEGER,                     -- the first version that only a pin keeps
    held_until     INTEGER,                     -- when the first such version is pinned no more
    PRIMARY KEY (team_id, session_id, source_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX version_prune_queue_by_time ON version_prune_queue (due_at);

-- Removed versions whose messages may be dead. Rows closed up to `after_until` are done with.
CREATE TABLE message_prune_queue (
    team_id     TEXT    NOT NULL,
    session_id  TEXT    NOT NULL,
    revision    INTEGER NOT NULL,
    after_until INTEGER NOT NULL,
    PRIMARY KEY (team_id, session_id, revision)
) STRICT, WITHOUT ROWID;

CREATE TABLE session_prune_queue (
    team_id    TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    PRIMARY KEY (team_id, session_id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER session_versions_inserted AFTER INSERT ON session_versions
BEGIN
    INSERT INTO version_sources (team_id, session_id, source_id, revision)
    VALUES (NEW.team_id, NEW.session_id, NEW.source_id, NEW.revision)
    ON CONFLICT (team_id, session_id, source_id, revision) DO NOTHING;
    INSERT INTO version_prune_queue (team_id, session_id, source_id, due_at)
    VALUES (NEW.team_id, NEW.session_id, NEW.source_id, NEW.created_at)
    ON CONFLICT (team_id, session_id, source_id) DO UPDATE
       SET due_at = excluded.due_at
     WHERE excluded.due_at < due_at;
END;
CREATE TRIGGER session_versions_deleted AFTER DELETE ON session_versions
BEGIN
    DELETE FROM version_sources
     WHERE team_id = OLD.team_id AND session_id = OLD.session_id
       AND source_id = OLD.source_id AND revision = OLD.revision;
    DELETE FROM captured_versions
     WHERE team_id = OLD.team_id AND session_id = OLD.session_id
       AND source_id = OLD.source_id AND revision = OLD.revision;
    -- A deleted session loses its messages as a whole.
    INSERT INTO message_prune_queue (team_id, session_id, revision, after_until)
    SELECT team_id, id, OLD.revision, OLD.revision
      FROM sessions
     WHERE team_id = OLD.team_id AND id = OLD.session_id AND deleted_at IS NULL
    ON CONFLICT (team_id, session_id, revision) DO UPDATE
       SET after_until = excluded.after_until;
END;
-- The capture before stops being its source's newest, and may go.
CREATE TRIGGER session_artifacts_captured AFTER INSERT ON session_artifacts
WHEN NEW.provenance = 'capture' AND NOT EXISTS (
    SELECT 1
      FROM session_artifacts
     WHERE team_id = NEW.team_id AND session_id = NEW.session_id AND revision = NEW.revision
       AND bundle_id <> NEW.bundle_id AND provenance = 'capture')
BEGIN
    UPDATE version_prune_queue
       SET after_revision = min(after_revision, coalesce((
               SELECT c.revision - 1
                 FROM captured_versions c
                WHERE c.team_id = NEW.team_id AND c.session_id = NEW.session_id
                  AND c.source_id = version_prune_queue.source_id AND c.revision < NEW.revision
                ORDER BY c.revision DESC
                LIMIT 1), after_revision))
     WHERE team_id = NEW.team_id AND session_id = NEW.session_id AND after_revision > 0
       AND source_id = (
           SELECT source_id
             FROM session_versions
            WHERE team_id = NEW.team_id AND session_id = NEW.session_id
              AND revision = NEW.revision);
    INSERT INTO captured_versions (team_id, session_id, source_id, revision)
    SELECT team_id, session_id, source_id, revision
      FROM session_versions
     WHERE team_id = NEW.team_id AND session_id = NEW.session_id AND revision = NEW.revision
    ON CONFLICT (team_id, session_id, source_id, revision) DO NOTHING;
END;

CREATE TRIGGER sessions_inserted AFTER INSERT ON sessions
BEGIN
    INSERT INTO retention_due (team_id, step, due_at)
    VALUES (NEW.team_id, 'sessions', NEW.updated_at)
    ON CONFLICT (team_id, step) DO NOTHING;
END;
CREATE TRIGGER sessions_deleted AFTER UPDATE OF deleted_at ON sessions
WHEN NEW.deleted_at IS NOT NULL AND OLD.deleted_at IS NULL
BEGIN
    INSERT INTO session_prune_queue (team_id, session_id)
    VALUES (NEW.team_id, NEW.id)
    ON CONFLICT (team_id, session_id) DO NOTHING;
END;

-- Versions that a cursor shows are kept while it lives.
CREATE TABLE cursor_pins (
    team_id    TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    revision   INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    cursor_id  TEXT    NOT NULL,
    PRIMARY KEY (team_id, session_id, revision, expires_at, cursor_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX cursor_pins_by_cursor ON cursor_pins (cursor_id);

CREATE TRIGGER cursors_inserted AFTER INSERT ON cursors WHEN NEW.kind IN ('list', 'search')
BEGIN
    INSERT INTO cursor_pins (team_id, session_id, revision, expires_at, cursor_id)
    SELECT NEW.team_id, pair.value ->> 0, pair.value ->> 1, NEW.expires_at, NEW.id
      FROM json_each(NEW.snapshot_json) AS pair
     WHERE pair.value ->> 0 IS NOT NULL AND pair.value ->> 1 IS NOT NULL
    ON CONFLICT (team_id, session_id, revision, expires_at, cursor_id) DO NOTHING;
END;
CREATE TRIGGER cursors_inserted_history AFTER INSERT ON cursors WHEN NEW.kind = 'history'
BEGIN
    INSERT INTO cursor_pins (team_id, session_id, revision, expires_at, cursor_id)
    SELECT NEW.team_id, NEW.snapshot_json ->> 'session_id', NEW.snapshot_json ->> 'revision',
           NEW.expires_at, NEW.id
     WHERE NEW.snapshot_json ->> 'session_id' IS NOT NULL
       AND NEW.snapshot_json ->> 'revision' IS NOT NULL
    ON CONFLICT (team_id, session_id, revision, expires_at, cursor_id) DO NOTHING;
END;
-- `maintain` removes an expired cursor's pins first, so this finds none.
CREATE TRIGGER cursors_deleted AFTER DELETE ON cursors
BEGIN
    DELETE FROM cursor_pins WHERE cursor_id = OLD.id;
END;

-- Captures, uploads and their chunks -------------------------------------------------------

-- Who names an upload: 'a:' session:revision:bundle, 'c:' continuation, 'p:' a staging capture.
CREATE TABLE upload_refs (
    team_id   TEXT NOT NULL,
    upload_id TEXT NOT NULL,
    holder    TEXT NOT NULL,
    PRIMARY KEY (team_id, upload_id, holder)
) STRICT, WITHOUT ROWID;
CREATE INDEX upload_refs_by_holder ON upload_refs (team_id, holder);

-- Committed uploads that nothing may name any more, from a day after their commit on.
CREATE TABLE upload_prune_queue (
    team_id    TEXT    NOT NULL,
    upload_id  TEXT    NOT NULL,
    due_at     INTEGER NOT NULL,
    PRIMARY KEY (team_id, upload_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX upload_prune_queue_by_time ON upload_prune_queue (due_at);

CREATE TABLE pending_uploads (
    team_id    TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    source_id  TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX pending_uploads_by_time ON pending_uploads (created_at);

CREATE TABLE staging_captures (
    team_id    TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    source_id  TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX staging_captures_by_time ON staging_captures (created_at);

CREATE TABLE parts_prune_queue (
    team_id    TEXT    NOT NULL,
    capture_id TEXT    NOT NULL,
    PRIMARY KEY (team_id, capture_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE blob_prune_queue (
    team_id    TEXT    NOT NULL,
    sha256     TEXT    NOT NULL,
    PRIMARY KEY (team_id, sha256)
) STRICT, WITHOUT ROWID;

-- 86,400,000 ms is the day for which a committed upload is kept unnamed.
CREATE TRIGGER upload_refs_deleted AFTER DELETE ON upload_refs
BEGIN
    INSERT INTO upload_prune_queue (team_id, upload_id, due_at)
    SELECT team_id, id, coalesce(committed_at, created_at) + 86400000
      FROM uploads
     WHERE team_id = OLD.team_id AND id = OLD.upload_id AND state = 'committed'
    ON CONFLICT (team_id, upload_id) DO UPDATE
       SET due_at = excluded.due_at
     WHERE excluded.due_at < due_at;
END;

CREATE TRIGGER session_artifacts_inserted AFTER INSERT ON session_artifacts
BEGIN
    INSERT INTO upload_refs (team_id, upload_id, holder)
    VALUES (NEW.team_id, NEW.upload_id,
            'a:' || NEW.session_id || ':' || CAST(NEW.revision AS INTEGER) || ':'
                || NEW.bundle_id)
    ON CONFLICT (team_id, upload_id, holder) DO NOTHING;
END;
CREATE TRIGGER session_artifacts_deleted AFTER DELETE ON session_artifacts
BEGIN
    DELETE FROM upload_refs
     WHERE team_id = OLD.team_id AND upload_id = OLD.upload_id
       AND holder = 'a:' || OLD.session_id || ':' || CAST(OLD.revision AS INTEGER) || ':'
               || OLD.bundle_id;
END;

CREATE TRIGGER continuations_inserted AFTER INSERT ON continuations
BEGIN
    INSERT INTO upload_refs (team_id, upload_id, holder)
    SELECT NEW.team_id, value, 'c:' || NEW.id
      FROM json_each(NEW.upload_ids_json)
     WHERE true
    ON CONFLICT (team_id, upload_id, holder) DO NOTHING;
END;
CREATE TRIGGER continuations_changed AFTER UPDATE OF upload_ids_json ON continuations
WHEN NEW.upload_ids_json <> OLD.upload_ids_json
BEGIN
    DELETE FROM upload_refs
     WHERE team_id = OLD.team_id AND holder = 'c:' || OLD.id
       AND upload_id NOT IN (SELECT value FROM json_each(NEW.upload_ids_json));
    INSERT INTO upload_refs (team_id, upload_id, holder)
    SELECT NEW.team_id, value, 'c:' || NEW.id
      FROM json_each(NEW.upload_ids_json)
     WHERE true
    ON CONFLICT (team_id, upload_id, holder) DO NOTHING;
END;
CREATE TRIGGER continuations_deleted AFTER DELETE ON continuations
BEGIN
    DELETE FROM upload_refs WHERE team_id = OLD.team_id AND holder = 'c:' || OLD.id;
END;

CREATE TRIGGER captures_inserted AFTER INSERT ON captures WHEN NEW.state = 'staging'
BEGIN
    INSERT INTO staging_captures (team_id, id, source_id, created_at)
    VALUES (NEW.team_id, NEW.id, NEW.source_id, NEW.created_at)
    ON CONFLICT (team_id, id) DO NOTHING;
    INSERT INTO upload_refs (team_id, upload_id, holder)
    SELECT NEW.team_id, value, 'p:' || NEW.id
      FROM json_each(NEW.upload_ids_json)
     WHERE true
    ON CONFLICT (team_id, upload_id, holder) DO NOTHING;
END;
CREATE TRIGGER captures_settled AFTER UPDATE OF state ON captures
WHEN OLD.state = 'staging' AND NEW.state <> 'staging'
BEGIN
    DELETE FROM staging_captures WHERE team_id = OLD.team_id AND id = OLD.id;
    DELETE FROM upload_refs WHERE team_id = OLD.team_id AND holder = 'p:' || OLD.id;
    INSERT INTO parts_prune_queue (team_id, capture_id)
    VALUES (OLD.team_id, OLD.id)
    ON CONFLICT (team_id, capture_id) DO NOTHING;
END;
CREATE TRIGGER captures_deleted AFTER DELETE ON captures WHEN OLD.state = 'staging'
BEGIN
    DELETE FROM staging_captures WHERE team_id = OLD.team_id AND id = OLD.id;
    DELETE FROM upload_refs WHERE team_id = OLD.team_id AND holder = 'p:' || OLD.id;
    INSERT INTO parts_prune_queue (team_id, capture_id)
    VALUES (OLD.team_id, OLD.id)
    ON CONFLICT (team_id, capture_id) DO NOTHING;
END;

CREATE TRIGGER uploads_inserted AFTER INSERT ON uploads WHEN NEW.state IN ('pending', 'verifying')
BEGIN
    INSERT INTO pending_uploads (team_id, id, source_id, created_at)
    VALUES (NEW.team_id, NEW.id, NEW.source_id, NEW.created_at)
    ON CONFLICT (team_id, id) DO NOTHING;
END;
CREATE TRIGGER uploads_inserted_committed AFTER INSERT ON uploads WHEN NEW.state = 'committed'
BEGIN
    INSERT INTO upload_prune_queue (team_id, upload_id, due_at)
    VALUES (NEW.team_id, NEW.id, coalesce(NEW.committed_at, NEW.created_at) + 86400000)
    ON CONFLICT (team_id, upload_id) DO UPDATE
       SET due_at = excluded.due_at
     WHERE excluded.due_at < due_at;
END;
CREATE TRIGGER uploads_committed AFTER UPDATE OF state ON uploads
WHEN NEW.state = 'committed' AND OLD.state <> 'committed'
BEGIN
    DELETE FROM pending_uploads WHERE team_id = OLD.team_id AND id = OLD.id;
    INSERT INTO upload_prune_queue (team_id, upload_id, due_at)
    VALUES (NEW.team_id, NEW.id, coalesce(NEW.committed_at, NEW.created_at) + 86400000)
    ON CONFLICT (team_id, upload_id) DO UPDATE
       SET due_at = excluded.due_at
     WHERE excluded.due_at < due_at;
END;
CREATE TRIGGER uploads_deleted AFTER DELETE ON uploads
BEGIN
    DELETE FROM pending_uploads WHERE team_id = OLD.team_id AND id = OLD.id;
    DELETE FROM upload_prune_queue WHERE team_id = OLD.team_id AND upload_id = OLD.id;
END;

CREATE TRIGGER artifact_chunk_refs_deleted AFTER DELETE ON artifact_chunk_refs
BEGIN
    INSERT INTO blob_prune_queue (team_id, sha256)
    VALUES (OLD.team_id, OLD.sha256)
    ON CONFLICT (team_id, sha256) DO NOTHING;
END;
