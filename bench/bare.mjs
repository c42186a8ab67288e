// The least that a Worker with an object can do, to compare with: the same parts of a capture
// inserted by one statement each, and recorded statements run again.

import { DurableObject } from 'cloudflare:workers';

export default {
  fetch: (request, env) => env.TEAM.getByName('bare').fetch(request),
};

export class Directory extends DurableObject {}

export class Team extends DurableObject {
  #sql = this.ctx.storage.sql;
  #replay;
  #times = 0;
  #mark;

  async fetch(request) {
    const path = new URL(request.url).pathname;
    if (path === '/replay') return this.#run(await request.json());
    if (path.startsWith('/part')) return this.#insert(path, await request.text());
    return Response.json({ data: this.#sql.exec('SELECT count(*) AS tables FROM sqlite_master').one() });
  }

  async query(sql, ...bindings) {
    return this.#sql.exec(sql, ...bindings.map(fromJson)).toArray();
  }

  /** Makes the tables that parts go to: with search, and without. */
  async makeTables() {
    for (const name of ['searched', 'plain']) {
      this.#sql.exec(
        `CREATE TABLE ${name} (
             id INTEGER PRIMARY KEY, team_id TEXT NOT NULL, session_id TEXT NOT NULL, ordinal INTEGER NOT NULL,
             revision INTEGER NOT NULL, until_revision INTEGER NOT NULL, role TEXT NOT NULL,
             digest TEXT NOT NULL, value_json TEXT NOT NULL) STRICT;
         CREATE UNIQUE INDEX ${name}_by_ordinal ON ${name} (team_id, session_id, ordinal, revision);`,
      );
    }
    this.#sql.exec(
      `CREATE VIRTUAL TABLE search USING fts5 (
           text, scope, content = '', contentless_delete = 1, prefix = '3',
           tokenize = 'unicode61 remove_diacritics 2')`,
    );
  }

  /** `/part/searched/<session>` or `/part/plain/<session>`: `{"messages": […]}`. */
  #insert(path, body) {
    const [, , name, session] = path.split('/');
    this.ctx.storage.transactionSync(() => {
      const [{ before }] = this.#sql.exec(`SELECT coalesce(max(id), 0) AS before FROM ${name}`).toArray();
      this.#sql.exec(
        `INSERT INTO ${name} (team_id, session_id, ordinal, revision, until_revision, role, digest, value_json)
         SELECT 'team', ?2, value ->> 'ordinal', 1, 9007199254740991, value ->> 'role',
                '0123456789abcdef0123456789abcdef', value
           FROM json_each(?1, '$.messages')`,
        body,
        session,
      );
      if (name === 'plain') return;
      this.#sql.exec(
        `INSERT INTO search (rowid, text, scope)
         SELECT id, value_json ->> 'text', 'team ' || session_id FROM searched WHERE id > ?1`,
        before,
      );
    });
    return new Response(null, { status: 204 });
  }

  /**
   * `statements` is what a request ran, each `{ query, bindings }`, and `next` what the one after it
   * ran; a number that differs goes on growing so. `answer` is what it answered. Where a text holds `mark`,
   * eight digits, or their hex digits, each run has others there.
   */
  async setReplay({ statements, next = statements, answer, mark }) {
    this.#replay = statements.map(({ query, bindings }, at) => {
      const other = next[at].bindings;
      const step = (value, n) => (typeof value === 'number' ? other[n] - value : 0);
      return { query, bindings: bindings.map(fromJson), steps: bindings.map(step) };
    });
    this.answer = answer;
    this.#mark = mark;
    this.#times = 0;
  }

  #run() {
    const counts = { rowsRead: 0, rowsWritten: 0 };
    this.#times += 1;
    this.ctx.storage.transactionSync(() => {
      for (const { query, bindings, steps } of this.#replay) {
        const now = bindings.map((value, n) => (steps[n] === 0 ? this.#marked(value) : value + this.#times * steps[n]));
        const cursor = this.#sql.exec(query, ...now);
        cursor.toArray();
        counts.rowsRead += cursor.rowsRead;
        counts.rowsWritten += cursor.rowsWritten;
      }
    });
    this.counted = counts;
    return Response.json(this.answer);
  }

  #marked(value) {
    if (!this.#mark || typeof value !== 'string') return value;
    const other = String(50_000_000 + this.#times);
    return value.replaceAll(this.#mark, other).replaceAll(hex(this.#mark), hex(other));
  }

  /** What the last replay read and wrote. */
  async counts() {
    return this.counted;
  }
}

const hex = (digits) => [...digits].map((digit) => `3${digit}`).join('');
const fromJson = (value) => (value?.bytes ? new Uint8Array(value.bytes).buffer : value);
