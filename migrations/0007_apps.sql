-- Apps and their webhooks.

CREATE TABLE apps (
    team_id               TEXT    NOT NULL,
    id                    TEXT    NOT NULL,
    name                  TEXT    NOT NULL,
    principal_id          TEXT    NOT NULL,
    webhook_url           TEXT,
    webhook_events_json   TEXT    NOT NULL DEFAULT '[]',
    scopes_json           TEXT    NOT NULL DEFAULT '[]',
    next_at               INTEGER,              -- earliest pending delivery; NULL while disabled
    secret_version        INTEGER NOT NULL DEFAULT 1,
    previous_secret_until INTEGER,
    failing_since         INTEGER,
    disabled_at           INTEGER,
    revision              INTEGER NOT NULL DEFAULT 1,
    created_at            INTEGER NOT NULL,
    PRIMARY KEY (team_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX apps_by_next ON apps (next_at) WHERE next_at IS NOT NULL;

-- Used once, within ten minutes.
CREATE TABLE app_install_codes (
    code_hash  BLOB    PRIMARY KEY,
    team_id    TEXT    NOT NULL,
    app_id     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX app_install_codes_by_expiry ON app_install_codes (expires_at);

-- One event on its way to one app; body is exactly the bytes that are signed and sent.
CREATE TABLE app_webhook_deliveries (
    id          TEXT    PRIMARY KEY,
    team_id     TEXT    NOT NULL,
    app_id      TEXT    NOT NULL,
    event_type  TEXT    NOT NULL,
    body        TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    attempts    INTEGER NOT NULL DEFAULT 0,
    next_at     INTEGER NOT NULL,
    lease_until INTEGER,
    last_status INTEGER,
    last_error  TEXT,
    created_at  INTEGER NOT NULL,
    settled_at  INTEGER
) STRICT;
CREATE INDEX app_webhook_deliveries_by_app ON app_webhook_deliveries (team_id, app_id, id);
CREATE INDEX app_webhook_deliveries_due ON app_webhook_deliveries (team_id, app_id, next_at)
    WHERE state = 'pending';
CREATE INDEX app_webhook_deliveries_settled ON app_webhook_deliveries (team_id, settled_at)
    WHERE settled_at IS NOT NULL;

CREATE TABLE app_webhook_attempts (
    delivery_id TEXT    NOT NULL,
    attempt     INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    status      INTEGER,
    error       TEXT,
    answer      TEXT,
    PRIMARY KEY (delivery_id, attempt)
) STRICT, WITHOUT ROWID;
