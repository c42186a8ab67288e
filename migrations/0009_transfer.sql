-- How far an import into the team has come, as JSON; kept afterwards so that its last page may be
-- sent again. NULL: nothing was imported.
ALTER TABLE teams ADD COLUMN import_json TEXT;
