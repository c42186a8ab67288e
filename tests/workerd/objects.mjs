// The entry module of the tests: the built one, with hooks on its two object classes.
//
// The driver calls the hooks for the harness (`plane.team(id)`); what they answer must be JSON.

import * as plane from '../../build/index.js';

export default plane.default;
export const Team = withHooks(plane.Team);
export const Directory = withHooks(plane.Directory);

function withHooks(Guarded) {
  return class extends Guarded {
    #sql;
    #counts;
    #failure;

    constructor(ctx, env) {
      const counts = newCounts();
      const failure = {};
      super(countSql(ctx, counts, failure), env);
      this.#sql = ctx.storage.sql;
      this.#counts = counts;
      this.#failure = failure;
      this.context = ctx;
    }

    /** Runs SQL past the core and its counters. */
    async query(sql, ...bindings) {
      return this.#sql.exec(sql, ...bindings).toArray();
    }

    /**
     * Makes the core fail once, at its next use of the store after `skip` transactions: 'panic' is a
     * Rust panic (of a transaction that workerd does not run), 'exception' a JavaScript exception
     * that no binding catches (of the counters that it reads).
     */
    async fail(how, skip = 0) {
      Object.assign(this.#failure, { how, skip });
    }

    /** Sets the platform's alarm, as the core would. */
    async setAlarm(atMs) {
      await this.context.storage.setAlarm(atMs);
    }

    /** When the alarm is due, in milliseconds, or null. */
    async alarmAt() {
      return this.context.storage.getAlarm();
    }

    /** Runs the alarm now if one is set, as the runtime would. Answers whether one was. */
    async runAlarm() {
      if ((await this.context.storage.getAlarm()) === null) return false;
      await this.context.storage.deleteAlarm();
      await this.alarm();
      return true;
    }

    /** Lets the database grow to this many pages of 4 KiB; beyond, a write fails as on a full disk. */
    async setMaxPages(pages) {
      this.#sql.setMaxPageCountForTest(pages);
    }

    async databaseSize() {
      return this.#sql.databaseSize;
    }

    /** Ends the object, as a failure of its machine would; the next call builds a new one. */
    async abort(reason = 'aborted by a test') {
      // Later, since this call would never be answered otherwise.
      setTimeout(() => this.context.abort(reason), 0);
    }

    /**
     * What the core's SQL read and wrote since the last reset, as the platform bills it, and the
     * units (rows, and five for each statement) of its largest transaction.
     */
    async counts() {
      settle(this.#counts);
      const { statements, rowsRead, rowsWritten, largest } = this.#counts;
      return { statements, rowsRead, rowsWritten, largest };
    }

    async resetCounts() {
      Object.assign(this.#counts, newCounts());
    }
  };
}

function newCounts() {
  return { statements: 0, rowsRead: 0, rowsWritten: 0, largest: 0, open: [] };
}

/** A `ctx` whose `storage.sql.exec` counts. Everything else is the runtime's own. */
function countSql(ctx, counts, failure) {
  const sql = facade(ctx.storage.sql, {
    exec(query, ...bindings) {
      settle(counts, 1000);
      const cursor = ctx.storage.sql.exec(query, ...bindings);
      counts.statements += 1;
      counts.open.push(cursor);
      return failure.how === 'exception' && failure.skip === 0 ? failing(cursor, failure) : cursor;
    },
  });
  const transactionSync = (body) => {
    if (failure.how && failure.skip > 0) failure.skip -= 1;
    else if (failure.how === 'panic') return void delete failure.how;
    const before = units(counts);
    const result = ctx.storage.transactionSync(body);
    counts.largest = Math.max(counts.largest, units(counts) - before);
    return result;
  };
  return facade(ctx, { storage: facade(ctx.storage, { sql, transactionSync }) });
}

function failing(cursor, failure) {
  delete failure.how;
  return new Proxy(cursor, {
    get(_, name) {
      if (name === 'rowsRead') throw new Error('a test made the counters fail');
      const value = Reflect.get(cursor, name, cursor);
      return typeof value === 'function' ? value.bind(cursor) : value;
    },
  });
}

function units(counts) {
  settle(counts);
  return counts.rowsRead + counts.rowsWritten + 5 * counts.statements;
}

// A cursor knows its numbers once it is read to its end, which is after `exec` has returned.
function settle(counts, keep = 0) {
  if (counts.open.length <= keep) return;
  for (const cursor of counts.open.splice(0)) {
    counts.rowsRead += cursor.rowsRead;
    counts.rowsWritten += cursor.rowsWritten;
  }
}

/** `target` with some members replaced. Methods run on the target: the runtime insists on it. */
function facade(target, replaced) {
  return new Proxy(target, {
    get(_, name) {
      if (Object.hasOwn(replaced, name)) return replaced[name];
      const value = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
    set: (_, name, value) => Reflect.set(target, name, value, target),
  });
}
