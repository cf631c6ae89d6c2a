// "Save as one HTML file": the page as it is now, without any script, with all inferlets in its table.
import { COLUMNS, rowsOf } from "./table.js";

const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

async function stylesheets() {
  const links = [...document.querySelectorAll('link[rel="stylesheet"]')];
  const texts = await Promise.all(links.map(async (link) => (await fetch(link.href)).text()));
  return texts.join("\n");
}

export async function pageAsFile(store) {
  const page = document.documentElement.cloneNode(true);
  for (const one of page.querySelectorAll("script, link, noscript, nav, .scroll, form, input, label")) one.remove();
  const canvases = document.querySelectorAll("canvas");
  page.querySelectorAll("canvas").forEach((copy, place) => {
    const label = copy.getAttribute("aria-label") ?? "chart";
    const width = `${canvases[place].clientWidth}px`;
    const image = element("img", "", { src: canvases[place].toDataURL("image/png"), alt: label });
    image.style.width = width;
    copy.replaceWith(image);
  });
  page.querySelector("head").append(
    element("meta", "", { "http-equiv": "content-security-policy", content: POLICY }),
    element("style", await stylesheets()),
  );
  const table = element("table", "");
  const head = table.appendChild(element("tr", ""));
  for (const [name] of COLUMNS) head.append(element("th", name));
  for (const one of rowsOf(store, { column: 0, down: false }, "")) {
    const row = table.appendChild(element("tr", ""));
    for (const [, show] of COLUMNS) row.append(element("td", String(show(one, store.time))));
  }
  page.querySelector("main").append(table);
  page.querySelector("h1").textContent = `Pie at ${new Date(store.time * 1000).toISOString()}`;
  return new Blob(["<!doctype html>\n", page.outerHTML], { type: "text/html" });
}

export async function save(store) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await pageAsFile(store));
  link.download = `pie-${new Date(store.time * 1000).toISOString().replaceAll(":", "-").slice(0, 19)}.html`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
