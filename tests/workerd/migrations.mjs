// Takes migrations back, so that a store is one of an older release.

import { readFileSync, readdirSync } from 'node:fs';

const folder = new URL('../../migrations/', import.meta.url);
const names = readdirSync(folder).sort();

/** The version of the schema before the migration whose name ends so. */
export const versionBefore = (name) => names.findIndex((one) => one.endsWith(`_${name}.sql`));

/** Statements that take back what every migration after `version` made, the newest first. */
export function undo(version) {
  const later = names.slice(version).reverse();
  const texts = later.map((name) => readFileSync(new URL(name, folder), 'utf8'));
  const undone = texts.flatMap((sql) => {
    const made = (pattern) => [...sql.matchAll(pattern)].map((found) => found.slice(1));
    return [
      ...made(/CREATE TRIGGER (\w+)/g).map(([name]) => `DROP TRIGGER ${name}`),
      ...made(/CREATE (?:UNIQUE )?INDEX (\w+)/g).map(([name]) => `DROP INDEX ${name}`),
      ...made(/CREATE TABLE (\w+)/g).map(([name]) => `DROP TABLE ${name}`),
      ...made(/ALTER TABLE (\w+) ADD COLUMN (\w+)/g).map(
        ([table, column]) => `ALTER TABLE ${table} DROP COLUMN ${column}`,
      ),
    ];
  });
  return [...undone, `UPDATE server SET schema_version = ${version}`];
}
