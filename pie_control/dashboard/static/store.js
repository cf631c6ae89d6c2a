// What is known of the server: the deltas of /v1/dashboard, one after the other.
const ABOUT = ["id", "tenant", "program", "created"];
const NOW = ["status", "waits_for", "waits_since", "generated", "pages", "cpu", "ended"];
const WAVE = ["model", "worker", "begin", "seconds", "tokens", "total", "commands"];
export const WINDOW = 10; // seconds of waves
const MOST_WAVES = 4000;
const MOST_POINTS = 600; // of charts, one a second

const named = (names, values) => Object.fromEntries(names.map((name, place) => [name, values[place]]));

export class Store {
  constructor() {
    this.forget();
  }

  forget() {
    this.time = 0;
    this.inferlets = new Map();
    this.sections = { workers: [], tenants: [], line: [], hosts: [], outages: [], counts: {} };
    this.waves = [];
    this.skipped = 0;
    this.points = []; // [seconds, generated tokens a second, tokens run a second, pages in use]
    this.measured = 0;
    this.tenants = new Map(); // of each, tokens when they were measured, and how fast they came
  }

  apply(delta) {
    this.time = delta.time;
    for (const [number, values] of Object.entries(delta.about ?? {}))
      this.inferlets.set(Number(number), { number: Number(number), rate: 0, before: 0, ...named(ABOUT, values) });
    for (const [number, values] of Object.entries(delta.now ?? {}))
      Object.assign(this.inferlets.get(Number(number)), named(NOW, values));
    for (const number of delta.gone ?? []) this.inferlets.delete(number);
    Object.assign(this.sections, delta.sections);
    for (const wave of delta.waves ?? []) this.waves.push(named(WAVE, wave));
    this.skipped += delta.skipped ?? 0;
    const begin = this.time - WINDOW - 1;
    const first = this.waves.findIndex((wave) => wave.begin + wave.seconds > begin);
    this.waves.splice(0, Math.max(first < 0 ? this.waves.length : first, this.waves.length - MOST_WAVES));
    if (this.time - this.measured >= 1) this.measure();
    for (const one of this.sections.tenants) one.rate = this.tenants.get(one.tenant)?.rate ?? 0;
  }

  // The times that charts show, ten seconds at least. Of a single point uPlot would show the years behind it.
  get span() {
    const last = this.points.at(-1)?.[0] ?? this.time;
    return [Math.min(this.points[0]?.[0] ?? last, last - 10), last];
  }

  // Once a second: how fast tokens come.
  measure() {
    const seconds = this.time - this.measured;
    let generated = 0;
    for (const one of this.inferlets.values()) {
      one.rate = this.measured ? Math.max(0, one.generated - one.before) / seconds : 0;
      one.before = one.generated;
      generated += one.rate;
    }
    const before = this.tenants;
    this.tenants = new Map(this.sections.tenants.map(({ tenant, tokens }) => {
      const more = before.has(tenant) ? Math.max(0, tokens - before.get(tenant).tokens) : 0;
      return [tenant, { tokens, rate: more / seconds }];
    }));
    const used = this.sections.workers.reduce((sum, one) => sum + (one.pages ? one.pages.total - one.pages.free : 0), 0);
    if (this.measured) this.points.push([this.time, generated, used]);
    if (this.points.length > MOST_POINTS) this.points.shift();
    this.measured = this.time;
  }
}
