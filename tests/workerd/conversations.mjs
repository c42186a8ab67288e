// Scripted conversations, tests/vectors/*.json: one file per area, had here with the Worker, and by
// tests/it/vectors.rs with the core alone.
//
// A file is a list of conversations `{ title, steps }`. Each begins with a new team, at the time
// 1700000000000, with `{team}` its id and "owner" the name of its owner's token. A step is:
//
//   note      what it shows
//   after_ms  the time, in milliseconds after the beginning; that of the step before if left out
//   as        the name of the token to send; none if left out
//   send      "METHOD /path", the path as it goes on the wire
//   headers   more headers, their names in lower case
//   body      JSON to send; a string is sent as it is
//   expect    { status, headers?, body? }: objects may hold more than is expected, lists may not.
//             "<any>" fits everything but null, "<absent>" a field that is not there
//   save      { name: "path.in.the.body" } keeps a value; then "{name}" stands for it in every text
//             below, and `as` may name it
//   save_headers  { name: "header" } keeps a header likewise

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';

const START_MS = 1_700_000_000_000;
const folder = new URL('../vectors/', import.meta.url);

export const conversations = readdirSync(folder)
  .filter((name) => name.endsWith('.json'))
  .flatMap((name) =>
    JSON.parse(readFileSync(new URL(name, folder), 'utf8')).map((found) => ({ ...found, name })),
  );

/** Has a conversation. Resolves with what its steps saved, and what they sent. */
export async function converse(plane, steps) {
  const { team, token } = await plane.createTeam('Acme', { now: START_MS });
  const known = { team: team.id, owner: token };
  const all = [];
  let now = START_MS;
  for (const step of steps) {
    const { note, after_ms: afterMs, as, send, headers, body, expect } = step;
    if (afterMs !== undefined) now = START_MS + afterMs;
    const [method, path] = filled(send, known).split(' ');
    const token = as && (known[as] ?? assert.fail(`no token is called ${as}`));
    const sent = { token, headers: filled(headers ?? {}, known), body: filled(body, known), now };
    const answer = await plane.api(method, path, sent);
    all.push({ method, path, ...sent });

    const what = `${note}: ${send} answered ${JSON.stringify(answer.body)}`;
    const wanted = filled(expect, known);
    assert.equal(answer.status, wanted.status, what);
    for (const [name, value] of Object.entries(wanted.headers ?? {})) {
      assert.equal(answer.headers.get(name), value, `${what}, header ${name}`);
    }
    if (wanted.body !== undefined) fits(answer.body, wanted.body, what);
    for (const [name, path] of Object.entries(step.save ?? {})) {
      known[name] = path.split('.').reduce((value, key) => value?.[key], answer.body);
      assert.ok(known[name] !== undefined, `${what}, nothing at ${path}`);
    }
    for (const [name, header] of Object.entries(step.save_headers ?? {})) {
      known[name] = answer.headers.get(header) ?? assert.fail(`${what}, no header ${header}`);
    }
  }
  return { team, known, sent: all };
}

/** `value` with every "{name}" in its texts replaced. */
function filled(value, known) {
  if (typeof value === 'string') {
    return value.replace(/\{([a-z_0-9]+)\}/g, (whole, name) => known[name] ?? whole);
  }
  if (Array.isArray(value)) return value.map((item) => filled(item, known));
  if (value === null || typeof value !== 'object') return value; // Undefined, too.
  return Object.fromEntries(
    Object.entries(value).map(([name, field]) => [name, filled(field, known)]),
  );
}

function fits(value, wanted, what) {
  if (wanted === '<any>') {
    assert.ok(value !== undefined && value !== null, what);
  } else if (wanted === '<absent>') {
    assert.equal(value, undefined, what);
  } else if (Array.isArray(wanted)) {
    assert.equal(value?.length, wanted.length, what);
    wanted.forEach((item, index) => fits(value[index], item, `${what}, at ${index}`));
  } else if (wanted !== null && typeof wanted === 'object') {
    for (const [name, field] of Object.entries(wanted)) {
      fits(value?.[name], field, `${what}, field ${name}`);
    }
  } else {
    assert.deepEqual(value, wanted, what);
  }
}
