-- How far an import into the team has come, as JSON; kept afterwards so that its last page may be
-- sent again. NULL: nothing was imported.
ALTER TABLE teams ADD COLUMN import_json TEXT;

-- Teams that are being made or deleted are looked after until they are there, or gone.
CREATE INDEX registry_by_state ON registry (state, created_at);
