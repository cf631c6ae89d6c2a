// The calls of one inferlet over time: a row for each kind of command.
import { colorsOf, kindOf, prepared } from "./drawings.js";

export function drawTimeline(canvas, number, began, waves) {
  const { context, width, height } = prepared(canvas), colors = colorsOf();
  const calls = [], parts = [];
  for (const { begin, seconds, commands } of waves)
    for (const [call, numbers] of Object.entries(commands)) {
      const count = numbers.filter((one) => one === number).length;
      if (!count) continue;
      if (!calls.includes(call)) calls.push(call);
      parts.push({ call, begin, seconds, count });
    }
  const name = 150, row = Math.min(26, (height - 18) / Math.max(1, calls.length));
  const end = Math.max(began + 0.1, ...parts.map((one) => one.begin + one.seconds));
  const x = (time) => name + ((width - name - 60) * Math.max(0, time - began)) / (end - began);
  context.font = "12px system-ui";
  context.fillStyle = colors.dim;
  calls.forEach((call, place) => context.fillText(call, 4, place * row + row / 2 + 4));
  for (let part = 0; part <= 4; part++) {
    const time = began + ((end - began) * part) / 4;
    context.fillText(`${((time - began) * 1000).toFixed(0)} ms`, x(time), height - 4);
  }
  for (const { call, begin, seconds } of parts) {
    context.fillStyle = colors[kindOf(call)];
    const left = x(begin);
    context.fillRect(left, calls.indexOf(call) * row + 2, Math.max(1, x(begin + seconds) - left), row - 4);
  }
  return parts.reduce((counts, one) => ({ ...counts, [one.call]: (counts[one.call] ?? 0) + one.count }), {});
}
