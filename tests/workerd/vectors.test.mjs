// Has the conversations of tests/vectors with the Worker: a statement that workerd forbids fails only
// here. conversations.mjs says what they are.

import { after, before, describe, test } from 'node:test';
import { conversations, converse } from './conversations.mjs';
import { startPlane } from './harness.mjs';

describe('an object per team', () => {
  let plane;
  before(async () => {
    plane = await startPlane();
  });
  after(() => plane.stop());

  for (const { name, title, steps } of conversations) {
    test(`${name}: ${title}`, () => converse(plane, steps));
  }
});

describe('one object for all teams', () => {
  for (const { name, title, steps } of conversations) {
    test(`${name}: ${title}`, async () => {
      // All teams of the object share its clock, and each conversation begins at the same time.
      const plane = await startPlane({ bindings: { SHARDING: 'server' } });
      try {
        await converse(plane, steps);
      } finally {
        await plane.stop();
      }
    });
  }
});
