// What retention costs must follow what it removes, never what the store holds: units per removed
// row, for each step, on a store of 1,000 rows a table and on one of 100,000, in the real runtime.
//
//   MAINTAIN_ROWS=1000000 node --test tests/workerd/maintain-cost.test.mjs    a larger one

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { OPERATOR_TOKEN, startPlane } from './harness.mjs';
import { maintain, maintainAll, numbers, sum } from './retention.mjs';

const SMALL = 1_000;
const LARGE = Number(process.env.MAINTAIN_ROWS ?? 100_000);
const IDLE_ROWS_MAX = 60;
const GROWTH_MAX = 1.1;

const START_MS = 1_900_000_000_000;
const SECOND_MS = 1_000;
const MINUTE_MS = 60 * SECOND_MS;
const DAY_MS = 86_400_000;
const SESSIONS_DAYS = 365;
const REMOVES = 500;
const SOURCE = `source_${'0'.repeat(32)}`;
const MACHINE = `machine_${'0'.repeat(32)}`;
/** Later than anything in these tests. */
const FAR_MS = START_MS + 100 * DAY_MS;

// A store gets rows that are due before those that are not, since logs are read from their front.
// Each kind below is due at a minute of its own, so that a pass meets one kind alone.
const KINDS = [
  {
    name: 'idempotency',
    rows: (tag, count, { expires }) => [
      `INSERT INTO idempotency
           (team_id, principal_id, key, request_hash, status, response_json, created_at, expires_at)
       SELECT :team, 'user_1', '${tag}' || i, x'00', 201, '{}', ${expires - DAY_MS}, ${expires}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ expires: at }),
    live: { expires: FAR_MS },
  },
  {
    name: 'codes',
    rows: (tag, count, { expires }) => [
      `INSERT INTO app_install_codes (code_hash, team_id, app_id, created_at, expires_at)
       SELECT CAST('${tag}' || i AS BLOB), :team, 'app_1', ${expires - DAY_MS}, ${expires}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ expires: at }),
    live: { expires: FAR_MS },
  },
  {
    name: 'expiries',
    rows: (tag, count, { expired }) => [
      `INSERT INTO capture_expiries (team_id, source_id, id, expired_at)
       SELECT :team, 'source_1', '${tag}' || i, ${expired} FROM ${numbers(count)}`,
    ],
    due: (at) => ({ expired: at - 30 * DAY_MS }),
    live: { expired: START_MS },
  },
  {
    name: 'cursors (10 pins each)',
    rows: (tag, count, { expires }) => [
      `INSERT INTO cursors
           (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
       SELECT '${tag}' || i, :team, 'user_1', 'list', '',
              (SELECT json_group_array(json_array('session_' || p.i, 1))
                 FROM ${numbers(10)} AS p),
              ${expires}
         FROM ${numbers(count / 10)} AS n`,
    ],
    due: (at) => ({ expires: at }),
    live: { expires: FAR_MS },
  },
  {
    name: 'claim history (3 displaced holders each)',
    rows: (tag, count, { settled }) => [
      `INSERT INTO run_fences (team_id, run_id, fence, settled_at)
       SELECT :team, '${tag}' || i, 4, ${settled} FROM ${numbers(count / 4)}`,
      `INSERT INTO fenced_holders (team_id, run_id, holder, fenced_at)
       SELECT :team, '${tag}' || (i / 3), 'holder' || i, 0
         FROM ${numbers((count / 4) * 3)}`,
    ],
    due: (at) => ({ settled: at - 30 * DAY_MS }),
    live: { settled: 'NULL' },
  },
  {
    name: 'journal',
    rows: (tag, count, { created }) => [
      `INSERT INTO journal (team_id, principal_id, action, target_id, request_id, created_at)
       SELECT :team, 'user_1', 'act', '${tag}', '', ${created} FROM ${numbers(count)}`,
    ],
    due: (at) => ({ created: at - 90 * DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'captures in flight',
    rows: (tag, count, { created }) => [
      `INSERT INTO captures (team_id, id, source_id, state, begin_json, created_at)
       SELECT :team, 'flight_${tag}' || i, 'source_1', 'staging', '{}', ${created}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ created: at - DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'uploads in flight (2 chunks each)',
    rows: (tag, count, { created }) => [
      upload(`flight_${tag}`, count / 2, 'pending', created),
      chunks(`flight_${tag}`, count / 2, 2),
    ],
    due: (at) => ({ created: at - DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'captures, settled',
    rows: (tag, count, { settled }) => [
      `INSERT INTO captures
           (team_id, id, source_id, state, begin_json, created_at, settled_at, result_json)
       SELECT :team, 'settled_${tag}' || i, 'source_1', 'committed', '{}', ${settled}, ${settled}, '{}'
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ settled: at - DAY_MS }),
    live: { settled: START_MS },
  },
  {
    name: 'versions (one of two)',
    rows: (tag, count, { created }) => [
      ...session(`versions_${tag}`, count / 10, { at: FAR_MS, revision: 2 }),
      ...[1, 2].map((revision) => version(`versions_${tag}`, count / 10, revision, created)),
      messages(`versions_${tag}`, count, { revision: 1 }),
    ],
    due: (at) => ({ created: at }),
    live: { created: START_MS },
  },
  {
    name: 'messages, 500 of one session',
    rows: (tag, count) => [
      ...session(`m1_${tag}`, 1, { at: FAR_MS, revision: 3 }),
      version(`m1_${tag}`, 1, 3, START_MS),
      messages(`m1_${tag}`, count, { revision: 1, until: 2, perSession: count }),
    ],
    queue: (tag) => deadMessages(`m1_${tag}`, 1),
  },
  {
    name: 'messages, 10 of each session',
    rows: (tag, count) => [
      ...session(`m10_${tag}`, count / 10, { at: FAR_MS, revision: 3 }),
      version(`m10_${tag}`, count / 10, 3, START_MS),
      messages(`m10_${tag}`, count, { revision: 1, until: 2 }),
    ],
    queue: (tag, count) => deadMessages(`m10_${tag}`, count / 10),
  },
  {
    name: 'sessions, aged (10 messages each)',
    rows: (tag, count, { updated }) => wholeSessions(`aged_${tag}`, count, updated),
    due: (at) => ({ updated: at - SESSIONS_DAYS * DAY_MS }),
    live: { updated: START_MS },
  },
  {
    name: 'sessions, deleted (10 messages each)',
    rows: (tag, count) => wholeSessions(`deleted_${tag}`, count, START_MS),
    queue: (tag, count) => [
      `UPDATE sessions SET deleted_at = ${START_MS}
        WHERE team_id = :team
          AND id IN (SELECT ${id('session', `deleted_${tag}`)} FROM ${numbers(count / 10)})`,
    ],
  },
  {
    name: 'parts (10 a capture)',
    rows: (tag, count) => [
      `INSERT INTO captures
           (team_id, id, source_id, state, begin_json, created_at, settled_at)
       SELECT :team, 'parts_${tag}' || i, 'source_1', 'committed', '{}', ${FAR_MS}, ${FAR_MS}
         FROM ${numbers(count / 10)}`,
      `INSERT INTO capture_parts
           (team_id, capture_id, part_index, digest, messages_json, digests_json, created_at)
       SELECT :team, 'parts_${tag}' || (i / 10), i % 10, '', '[]', '{}', ${FAR_MS}
         FROM ${numbers(count)}`,
    ],
    queue: (tag, count) => [
      `INSERT INTO parts_prune_queue (team_id, capture_id)
       SELECT :team, 'parts_${tag}' || i FROM ${numbers(count / 10)}`,
    ],
  },
  {
    name: 'uploads (4 chunks each)',
    rows: (tag, count, { committed }) => [
      upload(`whole_${tag}`, count / 4, 'committed', committed),
      chunks(`whole_${tag}`, count / 4, 4),
    ],
    due: (at) => ({ committed: at - DAY_MS }),
    live: { committed: START_MS },
  },
  {
    name: 'blobs of 16 bytes',
    rows: (tag, count) => [blobs(`blob_${tag}`, count, 16)],
    queue: (tag, count) => queuedBlobs(`blob_${tag}`, count),
  },
  {
    name: 'blobs of 64 KiB',
    stored: 0, // Those of the row above stand for them.
    removes: 50,
    rows: (tag, count) => [blobs(`large_${tag}`, count, 65_536)],
    queue: (tag, count) => queuedBlobs(`large_${tag}`, count),
  },
  {
    name: 'events',
    rows: (tag, count, { created }) => [
      `INSERT INTO org_events
           (team_id, resource_kind, resource_id, type, value_json, created_at)
       SELECT :team, 'session', '${tag}' || i, 'session.created', '{}', ${created}
         FROM ${numbers(count)}`,
      // What is alive is its resource's current event.
      `INSERT INTO event_resources (team_id, source_id, resource_kind, resource_id, sequence)
       SELECT team_id, '', resource_kind, resource_id, sequence
         FROM org_events
        WHERE created_at = ${created} AND resource_id GLOB 'live*'`,
    ],
    due: (at) => ({ created: at - 7 * DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'presence events',
    rows: (tag, count, { created }) => [
      `INSERT INTO machine_presence_events (team_id, machine_id, linked, created_at)
       SELECT :team, 'machine_${tag}' || i, 0, ${created} FROM ${numbers(count)}`,
    ],
    due: (at) => ({ created: at - 7 * DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'links lost',
    removes: 50,
    rows: (tag, count, { lost }) => [
      `INSERT INTO machine_presence (team_id, machine_id, linked, lost_at, changed_at)
       SELECT :team, ${id('machine', `link_${tag}`)}, 1, ${lost}, ${START_MS}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ lost: at - 45 * SECOND_MS }),
    live: { lost: null },
  },
  {
    name: 'deliveries (1 attempt each)',
    rows: (tag, count, { settled }) => [
      // As many that are still pending stand in front.
      `INSERT INTO app_webhook_deliveries
           (id, team_id, app_id, event_type, body, state, next_at, created_at)
       SELECT '0pending_${tag}' || i, :team, 'app_1', 'e', '{}', 'pending', ${FAR_MS}, 0
         FROM ${numbers(count)}`,
      `INSERT INTO app_webhook_deliveries
           (id, team_id, app_id, event_type, body, state, next_at, created_at, settled_at)
       SELECT '${tag}' || i, :team, 'app_1', 'e', '{}', 'delivered', 0, ${settled}, ${settled}
         FROM ${numbers(count)}`,
      `INSERT INTO app_webhook_attempts (delivery_id, attempt, at, status, answer)
       SELECT '${tag}' || i, 1, ${settled}, 200, 'ok' FROM ${numbers(count)}`,
    ],
    due: (at) => ({ settled: at - 7 * DAY_MS }),
    live: { settled: START_MS },
  },
  {
    name: 'operations (1 effect each)',
    rows: (tag, count, { settled }) => [
      operations(`settled_${tag}`, count, 'succeeded', settled, settled),
      effects(`settled_${tag}`, count, 'succeeded', settled),
    ],
    due: (at) => ({ settled: at - 30 * DAY_MS }),
    live: { settled: START_MS },
  },
  {
    name: 'attachments',
    rows: (tag, count, { settled }) => [
      `INSERT INTO attachments
           (team_id, id, session_id, machine_id, binding_id, principal_id, state, created_at, settled_at)
       SELECT :team, '${tag}' || i, 'session_1', 'machine_1', 'b', 'user_1', 'closed', 0, ${settled}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ settled: at - 30 * DAY_MS }),
    live: { settled: START_MS },
  },
  {
    name: 'continuations, settled',
    rows: (tag, count, { settled }) => [
      `INSERT INTO continuations
           (team_id, id, session_id, state, value_json, created_at, updated_at, settled_at)
       SELECT :team, 'settled_${tag}' || i, 'session_1', 'completed', '{}', 0, ${settled}, ${settled}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ settled: at - 30 * DAY_MS }),
    live: { settled: START_MS },
  },
  {
    name: 'credentials',
    rows: (tag, count, { expires }) => [
      `INSERT INTO credentials
           (id, token_hash, kind, team_id, principal_id, created_at, expires_at)
       SELECT '${tag}' || i, x'00', 'user', :team, 'user_1', 0, ${expires} FROM ${numbers(count)}`,
    ],
    due: (at) => ({ expires: at - 30 * DAY_MS }),
    live: { expires: FAR_MS },
  },
  {
    name: 'effects lost (with operation, event)',
    removes: 100,
    rows: (tag, count, { created }) => [
      operations(`lost_${tag}`, count, 'running', created, null),
      effects(`lost_${tag}`, count, 'pending', created),
    ],
    due: (at) => ({ created: at - DAY_MS }),
    live: { created: START_MS },
  },
  {
    name: 'continuations expired (with event)',
    removes: 100,
    rows: (tag, count, { updated }) => [
      `INSERT INTO continuations
           (team_id, id, session_id, machine_id, state, value_json, created_at, updated_at)
       SELECT :team, ${id('continuation', `lost_${tag}`)}, ${id('session', 'none')}, NULL, 'pending',
              '{}', 0, ${updated}
         FROM ${numbers(count)}`,
    ],
    due: (at) => ({ updated: at - DAY_MS }),
    live: { updated: START_MS },
  },
  ...['uploads', 'captures', 'blobs'].map((walk) => ({
    name: `walk ${walk}`,
    stored: 0, // All that the other kinds left; the newest captures have ten parts each.
    removes: walk === 'captures' ? SMALL / 10 : REMOVES,
    rows: () => [],
    queue: (_, count) => {
      const table = walk === 'blobs' ? 'artifact_blobs' : walk;
      return [
        `UPDATE maintain_backfill
            SET done = 0, after_rowid = (SELECT max(rowid) - ${count} FROM ${table})
          WHERE name = '${walk}'`,
      ];
    },
  })),
  {
    name: 'a whole team',
    stored: 0, // The other team is beside it.
    rows: (tag, count) => [
      `INSERT INTO teams (id, name, epoch, created_at) VALUES (:team, 'Gone', '00000000', ${START_MS})`,
      ...wholeSessions(`team_${tag}`, count, FAR_MS),
    ],
    team: `team_${'0'.repeat(32)}`,
    queue: () => [`UPDATE teams SET removing = 'delete' WHERE id = :team`],
  },
];

function upload(tag, count, state, at) {
  return `INSERT INTO uploads
              (team_id, id, source_id, media_type, size, sha256, chunk_size, state, committed_at, created_at)
          SELECT :team, '${tag}' || i, 'source_1', 'a/b', 1, '', 65536, '${state}',
                 ${state === 'committed' ? at : null}, ${at}
            FROM ${numbers(count)}`;
}

/** Chunks whose blob another upload names too, so that it stays. */
function chunks(tag, uploads, each) {
  return `INSERT INTO artifact_chunk_refs (team_id, upload_id, chunk_index, sha256, size, source_id)
          SELECT :team, '${tag}' || (i / ${each}), i % ${each}, 'shared' || (i % 100), 1, 'source_1'
            FROM ${numbers(uploads * each)}`;
}

function blobs(tag, count, bytes) {
  return `INSERT INTO artifact_blobs (team_id, sha256, size, bytes)
          SELECT :team, '${tag}' || i, ${bytes}, zeroblob(${bytes}) FROM ${numbers(count)}`;
}

function queuedBlobs(tag, count) {
  return [
    `INSERT INTO blob_prune_queue (team_id, sha256)
     SELECT :team, '${tag}' || i FROM ${numbers(count)}`,
  ];
}

/** The id of the `i`-th thing of a kind that a step makes an event of. */
function id(kind, tag, i = 'i') {
  const number = [...tag].reduce((sum, char) => (sum * 31 + char.charCodeAt(0)) % 0xffff_fffb, 7);
  return `'${kind}_' || printf('%08x%024x', ${number}, ${i})`;
}

function session(tag, count, { at, revision }) {
  return [
    `INSERT INTO sessions
         (team_id, id, revision, harness, title, message_count, created_at, updated_at)
     SELECT :team, ${id('session', tag)}, ${revision}, 'codex', 'title', 10, ${at}, ${at}
       FROM ${numbers(count)}`,
    `INSERT INTO origins (team_id, source_id, harness, native_id, session_id)
     SELECT :team, 'source_1', 'codex', '${tag}' || i, ${id('session', tag)} FROM ${numbers(count)}`,
  ];
}

function version(tag, count, revision, at) {
  return `INSERT INTO session_versions
              (team_id, session_id, revision, source_id, message_count, created_at)
          SELECT :team, ${id('session', tag)}, ${revision}, '${SOURCE}', 10, ${at}
            FROM ${numbers(count)}`;
}

function messages(tag, count, { revision, until = '9007199254740991', perSession = 10 }) {
  return `INSERT INTO messages
              (team_id, session_id, ordinal, revision, until_revision, role, digest, value_json)
          SELECT :team, ${id('session', tag, `i / ${perSession}`)}, i % ${perSession}, ${revision},
                 ${until}, 'user', '', '{"role":"user"}'
            FROM ${numbers(count)}`;
}

function deadMessages(tag, sessions) {
  return [
    `INSERT INTO message_prune_queue (team_id, session_id, revision, after_until)
     SELECT :team, ${id('session', tag)}, 1, 1 FROM ${numbers(sessions)}`,
  ];
}

function wholeSessions(tag, count, updated) {
  return [
    ...session(tag, count / 10, { at: updated, revision: 1 }),
    version(tag, count / 10, 1, START_MS),
    messages(tag, count, { revision: 1 }),
  ];
}

function operations(tag, count, state, at, settled) {
  return `INSERT INTO operations
              (team_id, id, principal_id, kind, state, input_json, created_at, updated_at, settled_at)
          SELECT :team, ${id('operation', tag)}, 'user_1', 'prompt', '${state}', '{}', ${at}, ${at},
                 ${settled}
            FROM ${numbers(count)}`;
}

function effects(tag, count, state, at) {
  return `INSERT INTO native_effects
              (team_id, id, operation_id, machine_id, state, request_json, created_at)
          SELECT :team, ${id('effect', tag)}, ${id('operation', tag)}, '${MACHINE}', '${state}', '{}', ${at}
            FROM ${numbers(count)}`;
}

const minuteOf = (index) => START_MS + (index + 10) * MINUTE_MS;

let plane;
before(async () => {
  plane = await startPlane();
});
after(() => plane?.stop());

/** Fills a store with `stored` rows of each kind, then has each kind's turn come. */
async function measure(stored, t) {
  const { team, token } = await plane.createTeam('Acme', { now: START_MS });
  const object = plane.team(team.id);
  const run = async (statements, teamId = team.id) => {
    for (const sql of statements) await object.query(sql.replaceAll(':team', `'${teamId}'`));
  };
  const pass = { plane, team, token };
  const settings = { retention: { sessions_days: SESSIONS_DAYS } };
  await plane.api('PATCH', `/v1/teams/${team.id}`, { token, now: START_MS, body: settings });
  // What making the team wrote would stand in front of what is older.
  await run(['DELETE FROM org_events', 'DELETE FROM event_resources', 'DELETE FROM journal']);
  for (const kind of KINDS) {
    // Those without a time are beyond anybody's reach until they are queued.
    const index = KINDS.indexOf(kind);
    await run(kind.rows('due', kind.removes ?? REMOVES, kind.due?.(minuteOf(index)) ?? {}), kind.team);
  }
  for (const kind of KINDS) {
    if (kind.stored !== 0) await run(kind.rows('live', stored, kind.live ?? {}), kind.team);
  }
  await run([`INSERT OR IGNORE INTO artifact_chunk_refs (team_id, upload_id, chunk_index, sha256, size, source_id)
              SELECT :team, 'forever', i, 'shared' || i, 1, 'source_1' FROM ${numbers(100)}`]);

  const settled = await maintainAll(pass, START_MS);
  t.diagnostic(`${stored} rows a table: ${settled.passes} passes over what the seed queued`);
  const idle = await maintain(pass, START_MS);
  assert.deepEqual([idle.removed, idle.backlog], [{}, false]);

  const figures = new Map();
  for (const [index, kind] of KINDS.entries()) {
    const now = minuteOf(index);
    if (kind.queue) await run(kind.queue('due', kind.removes ?? REMOVES), kind.team);
    const { removed, units, passes } = await maintainAll(pass, now);
    const rows = sum(removed);
    figures.set(kind.name, { removed, rows, units: (units - passes * idle.cost.units) / rows });
  }
  const last = await maintain(pass, minuteOf(KINDS.length));
  return { figures, idle, last };
}

test('units per removed row do not depend on how much is stored', { timeout: 600_000 }, async (t) => {
  const small = await measure(SMALL, t);
  const large = await measure(LARGE, t);

  for (const { idle, last } of [small, large]) {
    for (const { cost, removed } of [idle, last]) {
      assert.deepEqual(removed, {});
      assert.equal(cost.rows_written, 0);
      assert.ok(cost.rows_read <= IDLE_ROWS_MAX, `an idle pass read ${cost.rows_read} rows`);
    }
  }
  t.diagnostic(`idle pass: ${small.last.cost.rows_read} and ${large.last.cost.rows_read} rows read`);
  const grown = [];
  t.diagnostic(`| what goes | rows | units a row at ${SMALL} | at ${LARGE} |`);
  for (const [name, { rows, units, removed }] of small.figures) {
    const other = large.figures.get(name);
    t.diagnostic(`| ${name} | ${rows} | ${units.toFixed(2)} | ${other.units.toFixed(2)} |`);
    assert.ok(rows > 0, `${name}: nothing went`);
    assert.deepEqual(other.removed, removed, name);
    if (other.units > units * GROWTH_MAX) grown.push(`${name}: ${units} → ${other.units}`);
  }
  assert.deepEqual(grown, []);
});

test('an idle pass over 500 teams in one object reads at most 60 rows and writes none', async (t) => {
  const shared = await startPlane({ bindings: { SHARDING: 'server' } });
  try {
    const first = await shared.createTeam('First', { now: START_MS });
    const others = Array.from({ length: 499 }, (_, n) => ({
      method: 'POST',
      path: '/v1/teams',
      token: OPERATOR_TOKEN,
      headers: { 'x-test-now-ms': String(START_MS) },
      body: { name: `Team ${n}`, owner: { name: 'Ada' } },
    }));
    const { results } = await shared.load(others, { concurrency: 4 });
    assert.deepEqual(new Set(results.map(({ status }) => status)), new Set([201]));
    assert.deepEqual(await shared.team('server').query('SELECT count(*) AS n FROM teams'), [{ n: 500 }]);

    const settled = await maintainAll({ plane: shared, ...first }, START_MS);
    const { cost, removed, backlog } = await maintain({ plane: shared, ...first }, START_MS);
    t.diagnostic(`500 teams: ${cost.rows_read} rows read, ${settled.units} units in the first pass`);
    assert.deepEqual([removed, backlog, cost.rows_written], [{}, false, 0]);
    assert.ok(cost.rows_read <= IDLE_ROWS_MAX, `read ${cost.rows_read} rows`);
  } finally {
    await shared.stop();
  }
});
