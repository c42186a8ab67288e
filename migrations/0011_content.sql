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

-- What runs' events name by a digest of it. The first write wins, so a row never changes but in age.
CREATE TABLE content (
    team_id    TEXT    NOT NULL,
    ref        TEXT    NOT NULL,
    size       INTEGER NOT NULL,
    sha256     TEXT    NOT NULL,
    body_id    TEXT    NOT NULL,
    created_at INTEGER NOT NULL,            -- of the last write of it
    PRIMARY KEY (team_id, ref)
) STRICT;
CREATE INDEX content_by_body ON content (team_id, body_id);

-- Sessions of an agent that may read it; the content itself need not be there.
CREATE TABLE content_grants (
    team_id    TEXT    NOT NULL,
    ref        TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, ref, session_id)
) STRICT, WITHOUT ROWID;

-- Content to be looked at: whatever was written, and whatever lost what named it, not before it is
-- 15 minutes old, since it is written before the event that names it.
CREATE TABLE content_prune_queue (
    team_id TEXT    NOT NULL,
    ref     TEXT    NOT NULL,
    due_at  INTEGER NOT NULL,
    PRIMARY KEY (team_id, ref)
) STRICT, WITHOUT ROWID;
CREATE INDEX content_prune_queue_by_due ON content_prune_queue (due_at);

CREATE TRIGGER content_written AFTER INSERT ON content
BEGIN
    INSERT INTO content_prune_queue (team_id, ref, due_at)
    VALUES (NEW.team_id, NEW.ref, NEW.created_at + 900000)
    ON CONFLICT (team_id, ref) DO UPDATE SET due_at = excluded.due_at;
END;
CREATE TRIGGER content_written_again AFTER UPDATE OF created_at ON content
BEGIN
    INSERT INTO content_prune_queue (team_id, ref, due_at)
    VALUES (NEW.team_id, NEW.ref, NEW.created_at + 900000)
    ON CONFLICT (team_id, ref) DO UPDATE SET due_at = excluded.due_at;
END;
CREATE TRIGGER content_unnamed AFTER DELETE ON content_refs
BEGIN
    INSERT INTO content_prune_queue (team_id, ref, due_at)
    SELECT team_id, ref, created_at + 900000 FROM content
     WHERE team_id = OLD.team_id AND ref = OLD.ref
    ON CONFLICT (team_id, ref) DO NOTHING;
END;
CREATE TRIGGER content_ungranted AFTER DELETE ON content_grants
BEGIN
    INSERT INTO content_prune_queue (team_id, ref, due_at)
    SELECT team_id, ref, created_at + 900000 FROM content
     WHERE team_id = OLD.team_id AND ref = OLD.ref
    ON CONFLICT (team_id, ref) DO NOTHING;
END;
CREATE TRIGGER content_removed AFTER DELETE ON content
BEGIN
    INSERT INTO body_prune_queue (team_id, body_id) VALUES (OLD.team_id, OLD.body_id)
    ON CONFLICT DO NOTHING;
END;
