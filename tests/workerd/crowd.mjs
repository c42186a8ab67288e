// A whole company on one object: a team with as many machines as a team may have, their links, and
// those who watch.

const START_MS = 1_700_000_000_000;
const MEMBERS = 10;
/** As many as a member may have. */
const MACHINES_EACH = 100;
const AT_ONCE = 50;

/** Does something for each item, some at a time. */
export async function forEach(items, work) {
  const left = items.entries();
  const worker = async () => {
    for (const [index, item] of left) await work(item, index);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

export class Crowd {
  static startMs = START_MS;

  /** Makes the team and enrols its machines. */
  static async gather(plane) {
    const { team, token } = await plane.createTeam('Acme', { now: START_MS });
    const base = `/v1/teams/${team.id}`;
    const enrolments = [];
    for (let m = 0; m < MEMBERS; m += 1) {
      const member = await plane.addMember(team.id, token, { name: `Member ${m}`, now: START_MS });
      for (let n = 0; n < MACHINES_EACH; n += 1) {
        const body = { name: `machine ${m}-${n}`, enrollment_key: `${n}` };
        enrolments.push({ method: 'POST', path: `${base}/machines`, token: member.token, body });
      }
    }
    const { results } = await plane.load(enrolments, { concurrency: 8, keepBodies: true });
    const machines = results.map(({ body }) => {
      const { machine, credential } = JSON.parse(body).data;
      return { id: machine.id, token: credential.token };
    });
    return Object.assign(new Crowd(), { plane, team, token, base, machines });
  }

  /** Links every machine, each at the time that `now(index)` says. */
  async link(now = () => START_MS) {
    const links = [];
    await forEach(this.machines, async (machine, index) => {
      const path = `${this.base}/machines/${machine.id}/link`;
      const link = await this.plane.connect(path, { token: machine.token, now: now(index) });
      if (link.status) throw new Error(JSON.stringify(link.body));
      links.push(link);
    });
    return links;
  }

  /** Opens streams of the team's events, from now on. */
  async watch(count) {
    const { last } = (await this.plane.api('GET', `${this.base}/events/current?limit=1`, { token: this.token })).body;
    const streams = [];
    await forEach(Array.from({ length: count }), async () => {
      const stream = await this.plane.stream(`${this.base}/events?after=${last}`, { token: this.token });
      if (stream.status) throw new Error(JSON.stringify(stream.body));
      streams.push(stream);
    });
    return streams;
  }

  /** Makes one event. Resolves with what each stream got next, and how long the last one took. */
  async tell(streams, name) {
    const beganMs = performance.now();
    const made = await this.plane.api('POST', `${this.base}/groups`, { token: this.token, body: { name } });
    if (made.status !== 201) throw new Error(JSON.stringify(made.body));
    const events = await Promise.all(streams.map((stream) => stream.next()));
    return { events, ms: performance.now() - beganMs };
  }
}
