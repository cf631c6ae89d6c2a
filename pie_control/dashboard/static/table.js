// The table of inferlets: only the rows that can be seen are in the page.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";

const ROW = 24, SPARE = 8;
const seconds = (value) => (value >= 3600 ? `${(value / 3600).toFixed(1)} h` : value >= 60 ? `${(value / 60).toFixed(1)} min` : `${value.toFixed(1)} s`);

export const COLUMNS = [
  ["id", (one) => one.id, (one) => one.number],
  ["tenant", (one) => one.tenant],
  ["program", (one) => one.program],
  ["status", (one) => one.status],
  ["waits for", (one, time) => (one.waits_for ? `${one.waits_for}, ${seconds(Math.max(0, time - one.waits_since))}` : ""), (one) => one.waits_for],
  ["tokens/s", (one) => one.rate.toFixed(1), (one) => one.rate, "number"],
  ["tokens", (one) => one.generated, (one) => one.generated, "number"],
  ["pages", (one) => one.pages, (one) => one.pages, "number"],
  ["processor", (one) => seconds(one.cpu), (one) => one.cpu, "number"],
  ["age", (one, time) => seconds(Math.max(0, (one.ended || time) - one.created)), (one, time) => (one.ended || time) - one.created, "number"],
];

export function rowsOf(store, sort, wanted) {
  const text = wanted.toLowerCase();
  const found = [...store.inferlets.values()].filter(
    (one) => !text || [one.id, one.tenant, one.program, one.status, one.waits_for].some((each) => each.toLowerCase().includes(text)),
  );
  const [, show, value = show] = COLUMNS[sort.column];
  const sign = sort.down ? -1 : 1;
  return found.sort((a, b) => {
    const left = value(a, store.time), right = value(b, store.time);
    return sign * (left < right ? -1 : left > right ? 1 : 0) || a.number - b.number;
  });
}

export function InferletTable({ store, chosen, choose }) {
  const [sort, setSort] = useState({ column: 0, down: true });
  const [wanted, setWanted] = useState("");
  const [top, setTop] = useState(0);
  const box = useRef();
  const rows = rowsOf(store, sort, wanted);
  const first = Math.max(0, Math.floor(top / ROW) - SPARE), last = Math.min(rows.length, first + Math.ceil(360 / ROW) + 2 * SPARE);
  useEffect(() => {
    const most = Math.max(0, rows.length * ROW - 300);
    if (top > most && box.current) box.current.scrollTop = most;
  });
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -rows.length, End: rows.length }[event.key];
    if (!step || event.target !== box.current) return;
    event.preventDefault();
    const place = Math.min(rows.length - 1, Math.max(0, rows.findIndex((one) => one.number === chosen) + step));
    if (rows[place]) choose(rows[place].number);
    const y = place * ROW;
    if (y < box.current.scrollTop) box.current.scrollTop = y;
    if (y > box.current.scrollTop + 300) box.current.scrollTop = y - 300;
  };
  return html`<section aria-labelledby="inferlets">
    <div class="row">
      <h2 id="inferlets">Inferlets</h2>
      <label>Find <input type="search" value=${wanted} onInput=${(event) => setWanted(event.target.value)} /></label>
      <span class="dim">${rows.length} of ${store.inferlets.size}</span>
    </div>
    <div class="scroll" tabindex="0" ref=${box} onKeyDown=${move} onScroll=${(event) => setTop(event.target.scrollTop)}
      role="group" aria-label="Inferlets: arrow keys choose one, whose log is shown below"
      aria-activedescendant=${chosen ? `inferlet-${chosen}` : undefined}>
      <table aria-rowcount=${rows.length + 1}>
        <thead><tr aria-rowindex="1">
          ${COLUMNS.map(([name, , , kind], column) => html`<th class=${kind} scope="col"
            aria-sort=${sort.column === column ? (sort.down ? "descending" : "ascending") : "none"}>
            <button onClick=${() => setSort({ column, down: sort.column === column ? !sort.down : true })}>${name}</button></th>`)}
        </tr></thead>
        <tbody>
          ${first > 0 && html`<tr class="space" key="before" aria-hidden="true"><td colspan=${COLUMNS.length} style=${{ height: `${first * ROW}px` }}></td></tr>`}
          ${rows.slice(first, last).map((one, place) => html`<tr key=${one.number} id=${`inferlet-${one.number}`} aria-rowindex=${first + place + 2}
            class=${one.number === chosen ? "chosen" : ""} onClick=${() => choose(one.number)}>
            ${COLUMNS.map(([, show, , kind]) => html`<td class=${kind}>${show(one, store.time)}</td>`)}</tr>`)}
          ${last < rows.length && html`<tr class="space" key="after" aria-hidden="true"><td colspan=${COLUMNS.length} style=${{ height: `${(rows.length - last) * ROW}px` }}></td></tr>`}
        </tbody>
      </table>
    </div>
  </section>`;
}
