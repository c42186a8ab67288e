-- The team's log of changes. Every change writes its event in its own transaction.

CREATE TABLE org_events (
    sequence      INTEGER PRIMARY KEY AUTOINCREMENT, -- unique in the object, never used again
    team_id       TEXT    NOT NULL,
    source_id     TEXT,
    resource_kind TEXT    NOT NULL,
    resource_id   TEXT    NOT NULL,
    type          TEXT    NOT NULL,
    principal_id  TEXT,
    value_json    TEXT    NOT NULL,
    created_at    INTEGER NOT NULL
) STRICT;
CREATE INDEX org_events_by_team ON org_events (team_id, sequence);

-- Each resource's current event, which is kept whatever its age. source_id '' where none.
CREATE TABLE event_resources (
    team_id       TEXT    NOT NULL,
    source_id     TEXT    NOT NULL,
    resource_kind TEXT    NOT NULL,
    resource_id   TEXT    NOT NULL,
    sequence      INTEGER NOT NULL,
    PRIMARY KEY (team_id, source_id, resource_kind, resource_id)
) STRICT, WITHOUT ROWID;

-- Events up to this mark may be gone.
CREATE TABLE event_retention (
    team_id        TEXT    PRIMARY KEY,
    pruned_through INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
