-- Native bundles: uploads in chunks, each chunk's bytes kept once per team.

CREATE TABLE uploads (
    team_id      TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    source_id    TEXT    NOT NULL,
    media_type   TEXT    NOT NULL,
    size         INTEGER NOT NULL,
    sha256       TEXT    NOT NULL,
    chunk_size   INTEGER NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('pending', 'verifying', 'committed', 'removing')),
    committed_at INTEGER,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (team_id, id)
) STRICT;

-- An upload's chunks. Written before the blob; the blob only if this row was written.
CREATE TABLE artifact_chunk_refs (
    team_id     TEXT    NOT NULL,
    upload_id   TEXT    NOT NULL,
    chunk_index INTEGER NOT NULL,
    sha256      TEXT    NOT NULL,
    size        INTEGER NOT NULL,
    source_id   TEXT    NOT NULL,
    PRIMARY KEY (team_id, upload_id, chunk_index)
) STRICT;
CREATE INDEX artifact_chunk_refs_by_blob ON artifact_chunk_refs (team_id, sha256, source_id);

CREATE TABLE artifact_blobs (
    team_id TEXT    NOT NULL,
    sha256  TEXT    NOT NULL,
    size    INTEGER NOT NULL,
    bytes   BLOB    NOT NULL,
    PRIMARY KEY (team_id, sha256)
) STRICT;

-- Uploads attached to a version. provenance 'capture' marks what a capture published.
CREATE TABLE session_artifacts (
    team_id    TEXT    NOT NULL,
    session_id TEXT    NOT NULL,
    revision   INTEGER NOT NULL,
    bundle_id  TEXT    NOT NULL,
    upload_id  TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    provenance TEXT    NOT NULL,
    PRIMARY KEY (team_id, session_id, revision, bundle_id)
) STRICT;
-- Whoever sees one of an upload's sessions may read it.
CREATE INDEX session_artifacts_by_upload ON session_artifacts (team_id, upload_id, session_id);
