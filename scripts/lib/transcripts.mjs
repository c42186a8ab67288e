// Turns transcript files of coding agents into messages, as a connector does.
//
// A message is the row as the agent wrote it, with `ordinal`, `role` and `text` in front. The row's
// JSON is passed on as text: parsed and written again, a number beyond 2^53 would come out changed.

import { readFileSync } from 'node:fs';

/** Reads a JSON Lines file: its rows as `{ json, value }`. */
export function readRows(path) {
  const lines = readFileSync(path, 'utf8').split('\n').filter((line) => line.trim() !== '');
  return lines.map((json) => ({ json, value: JSON.parse(json) }));
}

/** The messages of a transcript of which these rows have been written so far. */
export function messagesOf(harness, rows) {
  const { isMessage = () => true, describe } = HARNESSES[harness];
  const current = harness === 'gemini' ? replay(rows) : rows;
  return current.filter((row) => isMessage(row.value)).map((row) => ({ row, ...describe(row.value) }));
}

/** A message as the JSON that is published. */
export function messageJson({ row, role, text }, ordinal) {
  const added = text === '' ? { ordinal, role } : { ordinal, role, text };
  const own = Object.entries(added).filter(([name]) => !Object.hasOwn(row.value, name));
  const head = own.map(([name, value]) => `${JSON.stringify(name)}:${JSON.stringify(value)}`);
  const rest = row.json.slice(row.json.indexOf('{') + 1);
  return `{${head.join(',')}${rest.trimStart().startsWith('}') ? '' : ','}${rest}`;
}

const HARNESSES = {
  'claude-code': {
    describe(row) {
      const content = row.message?.content ?? row.summary ?? row.content ?? row.customTitle ?? '';
      const isToolResult = Array.isArray(content) && content.some((block) => block.type === 'tool_result');
      const role = isToolResult ? 'tool' : (row.message?.role ?? 'system');
      return { role, text: textOf(content) };
    },
  },
  codex: {
    // Each text is in the file twice; the event is the copy.
    isMessage: ({ type, payload }) =>
      !(type === 'event_msg' && ['user_message', 'agent_message', 'agent_reasoning'].includes(payload.type)),
    describe({ payload }) {
      const isTool = /_call(_output)?$/.test(payload.type ?? '');
      const { content, arguments: called, input, output, message } = payload;
      const summary = payload.type === 'reasoning' ? payload.summary : null;
      return {
        role: payload.role ?? (isTool ? 'tool' : 'system'),
        text: textOf(content ?? summary ?? called ?? input ?? output ?? message ?? ''),
      };
    },
  },
  gemini: {
    describe({ type, content }) {
      const roles = { user: 'user', gemini: 'assistant' };
      return { role: roles[type] ?? 'system', text: textOf(content ?? '') };
    },
  },
};

// Gemini's file is a log of changes: a row with the id of an earlier one replaces it, `$rewindTo`
// takes back a message and all that follow it, `$set` changes what is no message.
function replay(rows) {
  let current = [];
  for (const row of rows) {
    const { id, $rewindTo } = row.value;
    const index = current.findIndex((earlier) => earlier.value.id === (id ?? $rewindTo));
    if ($rewindTo !== undefined) current = index < 0 ? [] : current.slice(0, index);
    else if (id !== undefined && index >= 0) current = current.with(index, row);
    else if (id !== undefined) current = [...current, row];
  }
  return current;
}

/** The readable text of a string, a block or a list of blocks. */
function textOf(content) {
  if (typeof content === 'string') return content;
  if (Array.isArray(content)) return content.map(textOf).filter(Boolean).join('\n');
  if (content === null || typeof content !== 'object') return '';
  const { text, thinking, name, input } = content;
  return text ?? thinking ?? (name ? `${name} ${JSON.stringify(input)}` : textOf(content.content ?? ''));
}
