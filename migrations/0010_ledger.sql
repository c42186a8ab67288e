-- The run ledger: what orchestrators' runs append, and who may append to them.
-- Ids of runs, events and holders are the client's, of any bytes.

-- Appended once, never changed. row_id is the order of appending: it never goes back, whatever is
-- deleted in between, so a reader behind a position misses nothing.
CREATE TABLE run_events (
    row_id       INTEGER PRIMARY KEY AUTOINCREMENT,
    team_id      TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    run_id       TEXT    NOT NULL,
    sequence     INTEGER NOT NULL,                  -- the client's; may have gaps
    kind         TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    payload_json TEXT    NOT NULL                   -- as sent
) STRICT;
CREATE UNIQUE INDEX run_events_by_id ON run_events (team_id, id);
CREATE UNIQUE INDEX run_events_by_run ON run_events (team_id, run_id, sequence);

-- A row for each run that has events, so that lists cost what they answer.
CREATE TABLE runs (
    team_id       TEXT    NOT NULL,
    run_id        TEXT    NOT NULL,
    events        INTEGER NOT NULL,
    tombstones    INTEGER NOT NULL,                 -- those of them of the kind run_deleted
    last_sequence INTEGER NOT NULL,                 -- the highest
    last_row_id   INTEGER NOT NULL,                 -- that event's
    newest_row_id INTEGER NOT NULL,                 -- of the newest append, which may be gone
    PRIMARY KEY (team_id, run_id)
) STRICT;
CREATE INDEX runs_by_append ON runs (team_id, newest_row_id);

-- The newest append among runs that are gone: positions up to it have been answered.
CREATE TABLE run_marks (
    team_id       TEXT    PRIMARY KEY,
    newest_row_id INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The exclusive right to append. It never lapses by itself; others may take it over.
CREATE TABLE run_claims (
    team_id     TEXT    NOT NULL,
    run_id      TEXT    NOT NULL,
    holder      TEXT    NOT NULL,
    acquired_at INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    PRIMARY KEY (team_id, run_id)
) STRICT;

-- The last fence that a run's claims were given. It outlives them, so fences only grow.
CREATE TABLE run_fences (
    team_id    TEXT    NOT NULL,
    run_id     TEXT    NOT NULL,
    fence      INTEGER NOT NULL,
    settled_at INTEGER,                             -- since when the run has neither events nor a claim
    PRIMARY KEY (team_id, run_id)
) STRICT;
CREATE INDEX run_fences_settled ON run_fences (settled_at) WHERE settled_at IS NOT NULL;

-- Holders that a takeover displaced.
CREATE TABLE fenced_holders (
    team_id   TEXT    NOT NULL,
    run_id    TEXT    NOT NULL,
    holder    TEXT    NOT NULL,
    fenced_at INTEGER NOT NULL,
    PRIMARY KEY (team_id, run_id, holder)
) STRICT;

-- The content that events' payloads name.
CREATE TABLE content_refs (
    team_id      TEXT    NOT NULL,
    ref          TEXT    NOT NULL,
    event_row_id INTEGER NOT NULL,
    PRIMARY KEY (team_id, ref, event_row_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX content_refs_by_event ON content_refs (event_row_id);

CREATE TRIGGER run_events_deleted AFTER DELETE ON run_events BEGIN
    DELETE FROM content_refs WHERE event_row_id = OLD.row_id;
END;

CREATE TRIGGER runs_inserted AFTER INSERT ON runs BEGIN
    UPDATE run_fences SET settled_at = NULL
     WHERE team_id = NEW.team_id AND run_id = NEW.run_id AND settled_at IS NOT NULL;
END;
