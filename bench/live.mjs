// What a company on one object costs: its links, those who watch, and one event that reaches them all.

import { Crowd } from '../tests/workerd/crowd.mjs';
import { ROUNDS, median, table, whole, withPlane } from './lib.mjs';

const WATCHERS = 1_000;

export const title = 'Links and watchers';

export async function run(print) {
  await withPlane({}, async (plane) => {
    const crowd = await Crowd.gather(plane);
    const object = plane.team(crowd.team.id);
    const timed = async (work) => {
      const beganMs = performance.now();
      return { result: await work(), ms: performance.now() - beganMs };
    };
    const linking = await timed(() => crowd.link());
    const watching = await timed(() => crowd.watch(WATCHERS));
    const told = [];
    let counts;
    for (let round = 0; round < ROUNDS; round += 1) {
      await object.resetCounts();
      told.push((await crowd.tell(watching.result, `round ${round}`)).ms);
      counts = await object.counts();
    }
    const links = linking.result.length;
    table(print, ['', 'figure'], [
      [`${whole(links)} machines link, a second`, whole((links * 1000) / linking.ms)],
      [`${whole(WATCHERS)} streams open, a second`, whole((WATCHERS * 1000) / watching.ms)],
      ['one event until the last of them has it, in ms', whole(median(told))],
      ['rows read for that', whole(counts.rowsRead)],
      ['statements', whole(counts.statements)],
    ]);
  });
}
