// The dashboard: one stream of deltas, drawn four times a second.
import { events, Refused, request, useKey } from "./client.js";
import { colorOf, drawPages, drawWaves, KINDS, Lanes, OWNED, waveAt } from "./drawings.js";
import { KeyForm } from "./key.js";
import { save } from "./save.js";
import { Store } from "./store.js";
import { InferletTable } from "./table.js";
import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";

const AGAIN = 2000; // milliseconds until a lost server is asked again
const LOG = 1000; // milliseconds between two looks at a log
const MOST_LINES = 5000; // of a log, the last ones
const store = new Store(), lanes = new Lanes();
const bytes = (value) => `${(value / 2 ** 20).toFixed(0)} MiB`;

function Waves({ paused }) {
  const canvas = useRef(), [told, tell] = useState("");
  useEffect(() => {
    if (!paused) drawWaves(canvas.current, store, lanes);
  });
  const point = (event) => {
    const { wave, number } = waveAt(canvas.current, store, lanes, event.offsetX, event.offsetY);
    const one = store.inferlets.get(number);
    const who = one ? `${one.id} ${one.program}` : "";
    tell(wave ? `${who} · wave of ${wave.total} commands, ${wave.tokens} tokens, ${(wave.seconds * 1000).toFixed(1)} ms, model ${wave.model}` : who);
  };
  const recent = store.waves.filter((wave) => wave.begin > store.time - 1);
  const label = `Waves of the last 10 seconds by inferlet. In the last second ${recent.length} waves with ${recent.reduce((sum, one) => sum + one.total, 0)} commands.`;
  return html`<section aria-labelledby="waves"><h2 id="waves">Waves: time × inferlet, a rectangle a command</h2>
    <canvas ref=${canvas} class="waves" role="img" aria-label=${label} onMouseMove=${point} onMouseLeave=${() => tell("")}></canvas>
    <ul class="legend">${KINDS.map(([name]) => html`<li><i class=${name}></i>${name}</li>`)}
      <li>${told}</li>${store.skipped > 0 && html`<li>${store.skipped} waves more than could be shown</li>`}</ul></section>`;
}

function Pages({ worker }) {
  const canvas = useRef(), { pages } = worker;
  useEffect(() => {
    if (pages) drawPages(canvas.current, pages);
  });
  const title = `Pages of ${worker.model}, worker ${worker.worker}`;
  if (!pages) return html`<section class="half"><h2>${title}</h2><p class="bad">${worker.state}: ${worker.outage}</p></section>`;
  const most = Object.entries(pages.owners).sort((a, b) => b[1] - a[1]).slice(0, 8);
  const owned = Object.values(pages.owners).reduce((sum, one) => sum + one, 0);
  const label = `${pages.total} pages: ${owned} of inferlets, ${OWNED.map((name) => `${pages[name]} ${name}`).join(", ")}`;
  return html`<section class="half"><h2>${title}: ${pages.total - pages.free} of ${pages.total} in use</h2>
    <canvas ref=${canvas} class="grid" role="img" aria-label=${label}></canvas>
    <ul class="legend">${OWNED.map((name) => html`<li><i class=${name}></i>${name} ${pages[name]}</li>`)}
      ${most.map(([number, count]) => html`<li key=${number}><i style=${{ background: colorOf(Number(number)) }}></i>i${number} ${count}</li>`)}</ul>
  </section>`;
}

function Chart({ title, column, unit }) {
  const box = useRef(), chart = useRef();
  useEffect(() => {
    const style = getComputedStyle(document.documentElement), dim = style.getPropertyValue("--dim");
    const axis = { stroke: dim, grid: { stroke: style.getPropertyValue("--line") } };
    const options = {
      width: box.current.clientWidth, height: 140, legend: { show: false }, cursor: { show: false },
      axes: [{ ...axis }, { ...axis, size: 60 }],
      scales: { x: { range: () => store.span }, y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
      series: [{}, { stroke: style.getPropertyValue("--mark"), width: 1.5 }],
    };
    chart.current = new uPlot(options, [[], []], box.current);
    const resize = () => chart.current.setSize({ width: box.current.clientWidth, height: 140 });
    addEventListener("resize", resize);
    return () => {
      removeEventListener("resize", resize);
      chart.current.destroy();
    };
  }, []);
  const last = store.points.at(-1)?.[column] ?? 0;
  useEffect(() => chart.current.setData([store.points.map((one) => one[0]), store.points.map((one) => one[column])]), [store.points.at(-1)?.[0]]);
  return html`<section class="half"><h2>${title}: ${last.toFixed(unit ? 1 : 0)} ${unit}</h2>
    <div ref=${box} class="chart" role="img" aria-label=${`${title}, now ${last.toFixed(1)} ${unit}`}></div></section>`;
}

function Values({ title, names, rows, wide = "half" }) {
  if (!rows.length) return null;
  return html`<section class=${wide}><h2>${title}</h2><table><thead><tr>${names.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((value) => html`<td>${value}</td>`)}</tr>`)}</tbody></table></section>`;
}

function Queues({ workers }) {
  const known = workers.filter((one) => one.queues);
  return html`<${Values} title="Queues" wide="" names=${["worker", "waiting", "ready", "starved", "in flight", "oldest", "commands", "runs", "waves", "evictions"]}
    rows=${known.map((one) => [`${one.model} ${one.worker}`, ...Object.values(one.queues), `${(one.oldest_wait * 1000).toFixed(0)} ms`, one.commands_waiting, one.runs, one.waves, one.evictions])} />`;
}

function Pools({ workers }) {
  const of = ([used, total]) => (total ? `${used} of ${total}` : "");
  const known = workers.filter((one) => one.queues);
  return html`<${Values} title="Memory" names=${["worker", "pages", "embeds", "states"]}
    rows=${known.map((one) => [`${one.model} ${one.worker}`, ...[[one.pages.total - one.pages.free, one.pages.total], one.embeds, one.states].map(of)])} />`;
}

function Tenants({ tenants }) {
  const sum = tenants.reduce((total, one) => total + (one.rate ?? 0), 0) || 1;
  const share = (one) => `${((100 * (one.rate ?? 0)) / sum).toFixed(0)} %`;
  return html`<${Values} title="Shares of tenants" names=${["tenant", "class", "weight", "running", "tokens run/s", "share"]}
    rows=${tenants.map((one) => [one.tenant, one.class, one.weight, one.running, (one.rate ?? 0).toFixed(1), share(one)])} />`;
}

function Line({ line }) {
  return html`<${Values} title="Requests in line" names=${["tenant", "served", "waiting", "the first for"]}
    rows=${line.map((one) => [one.tenant, one.served, one.waiting, one.waiting ? `${one.oldest_wait.toFixed(1)} s` : ""])} />`;
}

function Hosts({ hosts }) {
  return html`<${Values} title="Hosts" names=${["host", "state", "restarts", "inferlets", "memory", "processor", "warm"]}
    rows=${hosts.map((one) => [one.host, one.outage ?? one.state, one.restarts, one.inferlets, bytes(one.memory_bytes), `${one.guest_seconds.toFixed(1)} s`, one.warm.join(" of ")])} />`;
}

function Log({ number }) {
  const [lines, setLines] = useState([]), [trouble, setTrouble] = useState("");
  const one = store.inferlets.get(number);
  const id = one?.id;
  useEffect(() => {
    let timer, stopped = false, last = 0;
    setLines([]);
    setTrouble("");
    const look = async () => {
      try {
        const found = await (await request(`v1/inferlets/${encodeURIComponent(id)}/logs?after=${last}`)).json();
        last = found.at(-1)?.number ?? last;
        if (!stopped && found.length) setLines((known) => [...known, ...found].slice(-MOST_LINES));
      } catch (error) {
        if (!stopped) setTrouble(error.message);
        return;
      }
      if (!stopped) timer = setTimeout(look, LOG);
    };
    if (id) look();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [id]);
  if (!one) return null;
  return html`<section aria-labelledby="log"><h2 id="log">Log of ${one.id} (${one.program})</h2>
    ${trouble && html`<p class="bad">${trouble}</p>`}
    <pre tabindex="0">${lines.map((line) => `${new Date(line.time * 1000).toISOString().slice(11, 23)} ${line.stream} ${line.text}`).join("\n") || "no lines"}</pre></section>`;
}

function App() {
  const [, drawn] = useState(0), [trouble, setTrouble] = useState(""), [asks, setAsks] = useState("");
  const [chosen, choose] = useState(0), [paused, setPaused] = useState(false), [tries, setTries] = useState(0);
  const pausing = useRef(false);
  pausing.current = paused;
  useEffect(() => {
    const leave = new AbortController();
    let timer;
    (async () => {
      try {
        for await (const { data } of events("v1/dashboard", { signal: leave.signal })) {
          store.apply(data);
          setTrouble("");
          if (!pausing.current && !document.hidden) drawn(store.time);
        }
        throw new Error("the server has ended the stream");
      } catch (error) {
        if (leave.signal.aborted) return;
        if (error instanceof Refused && error.status === 401) return setAsks(error.message);
        setTrouble(`${error.message}: trying again`);
        timer = setTimeout(() => {
          store.forget();
          setTries((count) => count + 1);
        }, AGAIN);
      }
    })();
    return () => {
      leave.abort();
      clearTimeout(timer);
    };
  }, [tries]);
  useEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return; // the browser's own
      if (event.target.closest?.("input, textarea, button, a, select")) return;
      if (event.key === "p") setPaused((value) => !value);
      if (event.key === "s") save(store);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  if (asks) {
    const submit = (given) => {
      useKey(given);
      setAsks("");
      setTries((count) => count + 1);
    };
    return html`<header><h1>Pie</h1></header><${KeyForm} message=${asks} submit=${submit} />`;
  }
  const { workers, tenants, line, hosts, outages, counts } = store.sections;
  return html`<header><h1>Pie</h1>
    <span>${counts.running ?? 0} run${counts.launched != null ? ` · ${counts.launched} launched` : ""}</span>
    <span class="dim">${counts.all ? "all tenants" : counts.all === false ? "your tenant" : ""}</span>
    <span class="bad" role="status">${trouble || outages.join("; ")}</span>
    <nav><button aria-pressed=${paused} onClick=${() => setPaused(!paused)}>Pause (p)</button>
      <button onClick=${() => save(store)}>Save as one file (s)</button><a href="playground">Playground</a><a href="docs">API</a></nav></header>
  <main data-ready=${store.time > 0}>
    <${Waves} paused=${paused} />
    <${Chart} title="Tokens" column=${1} unit="a second" /><${Chart} title="Pages in use" column=${2} unit="" />
    ${workers.map((worker) => html`<${Pages} key=${`${worker.model} ${worker.worker}`} worker=${worker} />`)}
    <${Pools} workers=${workers} /><${Tenants} tenants=${tenants} /><${Hosts} hosts=${hosts} /><${Line} line=${line} /><${Queues} workers=${workers} />
    <${InferletTable} store=${store} chosen=${chosen} choose=${choose} />
    <${Log} key=${chosen} number=${chosen} />
  </main>`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
