// A textarea with line numbers, of which some are marked.
import { html, useRef } from "./vendor/preact.js";

export function goTo(area, line) {
  const lines = area.value.split("\n"), begin = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  area.focus();
  area.setSelectionRange(begin, begin + (lines[line - 1] ?? "").length);
  area.scrollTop = Math.max(0, (line - 8) * 18);
}

export function Editor({ area, value, change, marks, run }) {
  const gutter = useRef();
  const press = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  };
  const numbers = value.split("\n").map((_, place) => place + 1);
  return html`<div class="editor">
    <div class="gutter" ref=${gutter} aria-hidden="true">${numbers.map((line) => html`<div class=${marks.has(line) ? "marked" : ""} title=${marks.get(line) ?? ""}>${line}</div>`)}</div>
    <textarea ref=${area} value=${value} spellcheck=${false} wrap="off" aria-label="Program. Control and Enter run it; Tab leaves the editor."
      onInput=${(event) => change(event.target.value)} onKeyDown=${press} onScroll=${(event) => (gutter.current.scrollTop = event.target.scrollTop)}></textarea>
  </div>`;
}
