// One line per step, with the seconds since the command began.

const began = performance.now();

export const seconds = (sinceMs) => `${((performance.now() - sinceMs) / 1000).toFixed(1)} s`;

export function say(text) {
  process.stdout.write(`[${seconds(began).padStart(7)}] ${text}\n`);
}

/** An error that is the person's to mend: shown as its message, without a stack. */
export class Stop extends Error {
  constructor(message, exitCode = 1) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** Runs a script's main function and ends the process with the right exit code. */
export async function main(body) {
  try {
    await body();
  } catch (error) {
    process.stderr.write(`\n${error instanceof Stop ? error.message : error.stack}\n`);
    process.exit(error.exitCode ?? 1);
  }
}
