// The entry module of the tests: the built one, with hooks on its two object classes.
//
// The driver calls the hooks for the harness (`plane.team(id)`); what they answer must be JSON.

import { wasmBytes } from './wasm-memory.mjs'; // Before the build, which it looks into.
import * as plane from '../../build/index.js';

export default plane.default;
export const Team = withHooks(plane.Team);
export const Directory = withHooks(plane.Directory);

/** By the object's name. */
const instances = new Map();

function withHooks(Guarded) {
  return class extends Guarded {
    #sql;
    #counts;
    #failure;

    constructor(ctx, env) {
      const counts = newCounts();
      const failure = {};
      super(env.TEST_COUNTS === '0' ? ctx : countSql(ctx, counts, failure), env);
      this.#sql = ctx.storage.sql;
      this.#counts = counts;
      this.#failure = failure;
      this.context = ctx;
      instances.set(ctx.id.name, (instances.get(ctx.id.name) ?? 0) + 1);
    }

    /** How many instances of this object there were so far. */
    async instances() {
      return instances.get(this.context.id.name);
    }

    /** Runs SQL past the core and its counters. */
    async query(sql, ...bindings) {
      return this.#sql.exec(sql, ...bindings).toArray();
    }

    /**
     * Makes the core fail `times` times, at its next uses of the store after `skip` transactions:
     * 'panic' is a Rust panic (of a transaction that workerd does not run), 'exception' a JavaScript
     * exception that no binding catches (of the counters that it reads), 'abort' the end of the
     * object, as soon as it yields after a transaction or after setting the alarm.
     */
    async fail(how, skip = 0, times = 1) {
      Object.assign(this.#failure, { how, skip, times });
    }

    /** Sets the platform's alarm, as the core would, or with null takes it away. */
    async setAlarm(atMs) {
      if (atMs === null) await this.context.storage.deleteAlarm();
      else await this.context.storage.setAlarm(atMs);
    }

    /**
     * Has the platform's clock show `at` from now on, and `step` milliseconds more each time that
     * somebody looks. It is the clock of all objects of the plane. Without `at` it is true again.
     */
    async setClock(at, step = 0) {
      setClock(at, step);
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

    /** How many sockets it holds. */
    async sockets() {
      return this.context.getWebSockets().length;
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
     * What the core's SQL read and wrote since the last reset, as the platform bills it, what its
     * largest transaction did of that, and how often it set the alarm; how long its longest turn
     * was, in milliseconds: of retention's slices, and of everything else.
     */
    async counts() {
      settle(this.#counts);
      const { open, turn, ...counts } = this.#counts;
      return counts;
    }

    async resetCounts() {
      Object.assign(this.#counts, newCounts());
    }

    /** Resets the counters and has them keep, as `recorded`, each `{ query, bindings }` that runs. */
    async record() {
      Object.assign(this.#counts, newCounts(), { recorded: [] });
    }

    /** Runs one statement once for each list of bindings, past the core and its counters. */
    async execEach(sql, lists) {
      for (const bindings of lists) this.#sql.exec(sql, ...bindings).toArray();
    }

    /** What these statements read and write together; they are undone again. */
    async costOf(statements) {
      const cost = { rowsRead: 0, rowsWritten: 0 };
      const undo = new Error('only to see what it costs');
      try {
        this.context.storage.transactionSync(() => {
          for (const sql of statements) {
            const cursor = this.#sql.exec(sql);
            cursor.toArray();
            cost.rowsRead += cursor.rowsRead;
            cost.rowsWritten += cursor.rowsWritten;
          }
          throw undo;
        });
      } catch (error) {
        if (error !== undo) throw error;
      }
      return cost;
    }

    /** How large the memory is that the objects' wasm instance has taken. */
    async wasmBytes() {
      return wasmBytes();
    }
  };
}

function newCounts() {
  const largest = { statements: 0, rowsRead: 0, rowsWritten: 0 };
  const turns = { turn: null, longestSliceMs: 0, longestTurnMs: 0 };
  return {
    statements: 0, rowsRead: 0, rowsWritten: 0, open: [], largest, alarmsSet: 0, recorded: null, ...turns,
  };
}

/** A `ctx` whose `storage` counts. Everything else is the runtime's own. */
function countSql(ctx, counts, failure) {
  const execOne = (query, bindings) => {
    settle(counts, 1000);
    timeTurn(counts, query);
    counts.recorded?.push({ query, bindings: bindings.map(toJson) });
    const cursor = ctx.storage.sql.exec(query, ...bindings);
    counts.statements += 1;
    counts.open.push(cursor);
    return cursor;
  };
  const sql = facade(ctx.storage.sql, {
    exec(query, ...bindings) {
      // Of a script the runtime counts only the last statement.
      const script = bindings.length === 0 ? query.split(BETWEEN_STATEMENTS) : [query];
      const cursor = script.map((one) => execOne(one, bindings)).at(-1);
      return failure.how === 'exception' && failure.skip === 0 ? failing(cursor, failure) : cursor;
    },
  });
  const endIfAsked = () => {
    if (failure.how !== 'abort' || failure.skip > 0) return;
    used(failure);
    setTimeout(() => ctx.abort('aborted by a test'), 0);
  };
  const transactionSync = (body) => {
    if (failure.how && failure.skip > 0) failure.skip -= 1;
    else if (failure.how === 'panic') return used(failure);
    else endIfAsked();
    settle(counts);
    const { statements, rowsRead, rowsWritten } = counts;
    try {
      return ctx.storage.transactionSync(body);
    } finally {
      settle(counts);
      const own = {
        statements: counts.statements - statements,
        rowsRead: counts.rowsRead - rowsRead,
        rowsWritten: counts.rowsWritten - rowsWritten,
      };
      if (units(own) > units(counts.largest)) counts.largest = own;
    }
  };
  const setAlarm = (...args) => {
    counts.alarmsSet += 1;
    endIfAsked();
    return ctx.storage.setAlarm(...args);
  };
  return facade(ctx, { storage: facade(ctx.storage, { sql, transactionSync, setAlarm }) });
}

/** A turn is what runs without a break, from its first statement on. Each slice asks for walks. */
function timeTurn(counts, query) {
  if (counts.turn === null) {
    const turn = { beganMs: TrueDate.now(), isSlice: false };
    counts.turn = turn;
    queueMicrotask(() => {
      const longest = turn.isSlice ? 'longestSliceMs' : 'longestTurnMs';
      counts[longest] = Math.max(counts[longest], TrueDate.now() - turn.beganMs);
      counts.turn = null;
    });
  }
  counts.turn.isSlice ||= query.includes('FROM maintain_backfill');
}

const toJson = (value) =>
  value instanceof ArrayBuffer || ArrayBuffer.isView(value)
    ? { bytes: [...new Uint8Array(value.buffer ?? value)] }
    : value;

// In the migrations only the lines of a statement's inside are indented, and a trigger's END.
const BETWEEN_STATEMENTS = /(?<=;)\s*^(?=--|[A-DF-Z])/m;

/** As the retention pass counts them, but for the sizes of large values. */
const units = ({ statements, rowsRead, rowsWritten }) => rowsRead + rowsWritten + 5 * statements;

function used(failure) {
  failure.times -= 1;
  if (failure.times === 0) delete failure.how;
}

const TrueDate = Date;

function setClock(at, step) {
  if (at === undefined) {
    globalThis.Date = TrueDate;
    return;
  }
  const now = () => {
    at += step;
    return at - step;
  };
  globalThis.Date = new Proxy(TrueDate, {
    construct: (_, args) => (args.length === 0 ? new TrueDate(now()) : new TrueDate(...args)),
    get: (_, name) => (name === 'now' ? now : TrueDate[name]),
  });
}

function failing(cursor, failure) {
  used(failure);
  return new Proxy(cursor, {
    get(_, name) {
      if (name === 'rowsRead') throw new Error('a test made the counters fail');
      const value = Reflect.get(cursor, name, cursor);
      return typeof value === 'function' ? value.bind(cursor) : value;
    },
  });
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
