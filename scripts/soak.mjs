// Runs the retention pass over random histories for as long as wanted, each round with other seeds.
//
//   npm run soak               until it is stopped or finds one that fails
//   npm run soak -- 10000      so many histories
//   npm run soak -- 10000 7001 as many, from this seed on

import { join } from 'node:path';
import { Stop, main, say } from './lib/log.mjs';
import { run } from './lib/run.mjs';
import { rustEnv } from './lib/rust.mjs';
import { setup } from './setup.mjs';

const HISTORIES_A_ROUND = 1_000;
/** Behind those that `npm test` runs. */
const FIRST_SEED = 2_001;

await main(async () => {
  const [wanted = Infinity, first = FIRST_SEED] = process.argv.slice(2).map(number);
  const { host } = await setup();
  for (let done = 0; done < wanted; done += HISTORIES_A_ROUND) {
    const histories = Math.min(HISTORIES_A_ROUND, wanted - done);
    say(`Histories ${first + done} to ${first + done + histories - 1}`);
    const args = ['test', '--locked', '--test', 'it', 'maintain::histories'];
    const seeds = { SOAK_FIRST: String(first + done), SOAK_HISTORIES: String(histories) };
    await run(join(host, 'bin/cargo'), args, { show: 'failure', env: rustEnv(host, seeds) });
  }
});

function number(text) {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw new Stop(`${text} is no number of histories or seed.`);
}
