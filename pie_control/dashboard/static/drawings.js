// The canvases: waves over time, and pages by owner.
import { WINDOW } from "./store.js";

export const KINDS = [
  ["embed", /^embed/],
  ["forward", /^forward/],
  ["sample", /^(sample|verify)/],
  ["read", /^get_/],
  ["move", /copy|shift|export|import/],
  ["other", /./],
];
export const OWNED = ["shared", "pinned", "coming", "others", "free"];
const MOST_CELLS = 1600;

export const kindOf = (call) => KINDS.find(([, pattern]) => pattern.test(call))[0];
const palette = (names) => {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
};
export const colorOf = (number) => `hsl(${(number * 137.5) % 360} 55% 50%)`;

// The context of a canvas whose pixels are those of the screen, in units of CSS.
export function prepared(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

export const colorsOf = () => palette([...KINDS.map(([name]) => name), "line", "dim"]);

// An inferlet keeps its lane as long as something of it is to be seen.
export class Lanes {
  constructor() {
    this.of = new Map();
  }

  assign(waves) {
    const seen = new Set();
    for (const wave of waves) for (const numbers of Object.values(wave.commands)) for (const one of numbers) seen.add(one);
    for (const number of [...this.of.keys()]) if (!seen.has(number)) this.of.delete(number);
    const taken = new Set(this.of.values());
    let lane = 0;
    for (const number of seen) {
      if (this.of.has(number)) continue;
      while (taken.has(lane)) lane++;
      taken.add(lane);
      this.of.set(number, lane);
    }
    return Math.max(0, ...taken) + 1;
  }
}

export function drawWaves(canvas, store, lanes) {
  const { context, width, height } = prepared(canvas);
  const colors = colorsOf();
  const count = Math.max(8, lanes.assign(store.waves)), axis = 16, lane = (height - axis) / count;
  const x = (time) => width * (1 - (store.time - time) / WINDOW);
  context.fillStyle = colors.dim;
  context.font = "11px system-ui";
  for (let ago = 0; ago <= WINDOW; ago += 2) {
    const at = x(store.time - ago);
    context.fillText(ago ? `-${ago} s` : "", at + 2, height - 4);
    context.fillRect(at, height - axis, 1, 4);
  }
  for (const wave of store.waves) {
    const left = x(wave.begin), wide = Math.max(1, x(wave.begin + wave.seconds) - left - 0.5);
    const strips = new Map(); // by inferlet, the kinds of its commands
    for (const [call, numbers] of Object.entries(wave.commands))
      for (const number of numbers) strips.set(number, [...(strips.get(number) ?? []), kindOf(call)]);
    for (const [number, kinds] of strips) {
      const top = lanes.of.get(number) * lane, high = Math.max(1, lane - (lane > 4 ? 1 : 0)) / kinds.length;
      kinds.forEach((kind, place) => {
        context.fillStyle = colors[kind];
        context.fillRect(left, top + place * high, wide, high);
      });
    }
  }
}

// Which inferlet has its lane at a point, and what a wave there is.
export function waveAt(canvas, store, lanes, offsetX, offsetY) {
  const time = store.time - WINDOW * (1 - offsetX / canvas.clientWidth);
  const wave = store.waves.find((one) => one.begin <= time && time <= one.begin + one.seconds);
  const count = Math.max(8, Math.max(0, ...lanes.of.values()) + 1);
  const lane = Math.floor((offsetY / (canvas.clientHeight - 16)) * count);
  const number = [...lanes.of].find(([, place]) => place === lane)?.[0];
  return { wave, number };
}

export function drawPages(canvas, pages) {
  const { context, width, height } = prepared(canvas);
  const colors = palette(OWNED);
  const each = Math.max(1, Math.ceil(pages.total / MOST_CELLS)), cells = Math.ceil(pages.total / each);
  const columns = Math.max(1, Math.ceil(Math.sqrt((cells * width) / height)));
  const side = Math.min(width / columns, height / Math.ceil(cells / columns));
  const parts = Object.entries(pages.owners).map(([number, count]) => [colorOf(Number(number)), count]);
  for (const name of OWNED) parts.push([colors[name], pages[name]]);
  let page = 0, place = 0;
  for (const [color, count] of parts) {
    page += count;
    context.fillStyle = color;
    for (; place < Math.round(page / each); place++)
      context.fillRect((place % columns) * side, Math.floor(place / columns) * side, side - 0.7, side - 0.7);
  }
  return each;
}
