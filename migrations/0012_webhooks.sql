-- What delivering webhooks needs beside 0007.

-- 1: its last attempt failed or was slow, so it gets less of what is in flight.
ALTER TABLE apps ADD COLUMN throttled INTEGER NOT NULL DEFAULT 0;
DROP INDEX IF EXISTS apps_by_next;
CREATE INDEX apps_by_turn ON apps (throttled, next_at) WHERE next_at IS NOT NULL;

-- Those in flight, and those whose sender died.
CREATE INDEX app_webhook_deliveries_leased ON app_webhook_deliveries (lease_until)
    WHERE lease_until IS NOT NULL;
CREATE INDEX app_install_codes_by_app ON app_install_codes (team_id, app_id);

-- Apps whose unsettled deliveries are yet to go.
CREATE TABLE deleted_apps (
    team_id TEXT NOT NULL,
    app_id  TEXT NOT NULL,
    PRIMARY KEY (team_id, app_id)
) STRICT, WITHOUT ROWID;

-- What recover sends again.
CREATE INDEX app_webhook_deliveries_failed ON app_webhook_deliveries (team_id, app_id, created_at)
    WHERE state = 'failed';
