// The playground: write a program, run it, and see what it does.
import { events, Refused, request, useKey } from "./client.js";
import { Editor, goTo } from "./editor.js";
import { KeyForm } from "./key.js";
import { Store } from "./store.js";
import { drawTimeline } from "./timeline.js";
import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";

const NAME = "playground";
const FIRST = `from inferlet_sdk import Context


async def main(args, prompt="Once upon a time"):
    context = Context(args.model)
    context.fill(prompt)
    return await args.stream(context.generate(max_tokens=40))
`;
const MOST_TEXT = 200000; // letters of the output that are kept

// Arguments as a shell would take them apart. A quote without another one is a letter.
export function words(text) {
  return [...text.matchAll(/(?:[^\s"']+|"[^"]*"|'[^']*'|["'])+/g)].map(([word]) => word.replaceAll(/"([^"]*)"|'([^']*)'/g, "$1$2"));
}

// Lines of this program that a traceback names, with what it says at last.
export function marksOf(error) {
  const lines = [...error.matchAll(/File "playground(?:\.py)?", line (\d+)/g)].map(([, line]) => Number(line));
  const syntax = error.match(/line (\d+)/);
  if (!lines.length && syntax) lines.push(Number(syntax[1]));
  const last = error.trim().split("\n").findLast((line) => line && !line.startsWith(" ")) ?? error;
  return new Map(lines.map((line) => [line, last]));
}

function Timeline({ run }) {
  const canvas = useRef(), [counts, setCounts] = useState({});
  useEffect(() => {
    const found = drawTimeline(canvas.current, run.number, run.began, run.waves);
    if (JSON.stringify(found) !== JSON.stringify(counts)) setCounts(found);
  });
  const told = Object.entries(counts).map(([call, count]) => `${count} ${call}`).join(", ") || "no commands yet";
  return html`<section><h2>Calls over time: ${told}</h2>
    <canvas ref=${canvas} class="grid" role="img" aria-label=${`Commands of the inferlet: ${told}`}></canvas></section>`;
}

// What the inferlet receives. What the server refuses stands in the field again.
function Message({ id, failed }) {
  const field = useRef();
  const send = async (event) => {
    event.preventDefault();
    const text = field.current.value;
    field.current.value = "";
    const put = () => request(`v1/inferlets/${id}/messages`, { method: "POST", body: JSON.stringify({ text }) }).catch((error) => {
      if (field.current) field.current.value ||= text;
      failed(error, put);
    });
    await put();
  };
  return html`<form class="row" onSubmit=${send}><label>Message <input ref=${field} /></label><button>Send</button></form>`;
}

function App() {
  const [examples, setExamples] = useState({}), [chosen, setChosen] = useState(""), [text, setText] = useState(FIRST);
  const [given, setGiven] = useState(""), [asks, setAsks] = useState(null), [trouble, setTrouble] = useState("");
  const [findings, setFindings] = useState(null), [run, setRun] = useState(null);
  const area = useRef(), leave = useRef(null), own = useRef();
  useEffect(() => {
    request("assets/examples.json").then((answer) => answer.json()).then(setExamples, (error) => setTrouble(error.message));
    return () => leave.current?.abort();
  }, []);

  const failed = (error, again) => {
    if (error.name === "AbortError") return;
    if (error instanceof Refused && error.status === 401) setAsks({ message: error.message, again });
    else setTrouble(error.message);
  };
  const check = async () => {
    setTrouble("");
    try {
      setFindings(await (await request("v1/programs/check", { method: "POST", body: text })).json());
    } catch (error) {
      failed(error, check);
    }
  };
  const start = async () => {
    leave.current?.abort();
    const leaving = new AbortController(), { signal } = leaving;
    leave.current = leaving;
    setTrouble("");
    const now = { id: "", number: 0, began: Date.now() / 1000, waves: [], output: "", status: "starts", result: null, error: "" };
    const show = () => setRun({ ...now });
    const say = (more) => {
      now.output = (now.output + more).slice(-MOST_TEXT);
      show();
    };
    show();
    try {
      const program = await (await request(`v1/programs?file=${NAME}.py`, { method: "POST", body: text, signal })).json();
      await watch(now, show, signal).catch((error) => {
        if (!(error instanceof Refused) || error.status !== 429) throw error;
        setTrouble(`no calls over time: ${error.message}`);
      });
      const body = JSON.stringify({ program: program.program, arguments: words(given) });
      const found = (answer) => {
        now.id = answer.headers.get("location").split("/").at(-1);
        now.number = Number(now.id.slice(1));
        now.status = "runs";
        show();
      };
      for await (const { event, data } of events("v1/inferlets?stream=true", { method: "POST", body, signal }, found)) {
        if (event === "message") say(data.text);
        if (event === "log") say(`${now.output.endsWith("\n") || !now.output ? "" : "\n"}[${data.stream}] ${data.text}\n`);
        if (event === "ended") Object.assign(now, { status: data.status, result: data.result, error: data.error ?? "" });
      }
    } catch (error) {
      if (error.name === "AbortError") now.status = "stopped";
      else now.status = "refused";
      if (error instanceof Refused && error.status === 422) now.error = error.message;
      else failed(error, start);
    }
    now.over = true;
    show();
  };
  const marks = new Map([...(findings ?? []).map((one) => [one.line, one.message]), ...(run?.error ? marksOf(run.error) : [])]);
  const loaded = (name) => {
    if (text !== examples[chosen]?.source) own.current = { source: text, arguments: given };
    const shown = examples[name] ?? own.current;
    setChosen(name);
    setText(shown.source);
    setGiven(shown.arguments);
    setFindings(null);
    setRun(null);
  };
  if (asks) {
    const submit = (value) => {
      useKey(value);
      setAsks(null);
      asks.again();
    };
    return html`<header><h1>Pie: playground</h1></header><${KeyForm} message=${asks.message} submit=${submit} />`;
  }
  return html`<header><h1>Pie: playground</h1><span class="bad" role="status">${trouble}</span>
    <nav><a href="./">Dashboard</a><a href="docs">API</a></nav></header>
  <main>
    <section class="half"><div class="row">
      <label>Example <select value=${chosen} onChange=${(event) => loaded(event.target.value)}>
        <option value="">your own</option>${Object.keys(examples).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
      <label>Arguments <input value=${given} placeholder="--prompt 'Once upon'" onInput=${(event) => setGiven(event.target.value)} /></label></div>
      <p class="dim">${examples[chosen]?.about ?? ""}</p>
      <${Editor} area=${area} value=${text} change=${setText} marks=${marks} run=${start} />
      <div class="row"><button class="run" onClick=${start}>Run (Ctrl+Enter)</button><button class="check" onClick=${check}>Check</button>
        <button onClick=${() => leave.current?.abort()} disabled=${!run || run.over}>Stop</button></div>
      ${findings && html`<ul class="findings" aria-label="Findings of the check">${findings.length === 0 && html`<li>nothing found</li>`}
        ${findings.map((one) => html`<li><button onClick=${() => goTo(area.current, one.line)}>line ${one.line}</button> ${one.message}; ${one.advice}</li>`)}</ul>`}
    </section>
    <section class="half"><h2 aria-live="polite">${run ? `${run.id} ${run.status}` : "Output"}</h2>
      <pre class="output" tabindex="0">${run?.output ?? ""}</pre>
      ${run?.id && !run.over && html`<${Message} id=${run.id} failed=${failed} />`}
      ${run?.result != null && html`<h2>Result</h2><pre class="result">${run.result}</pre>`}
      ${run?.error && html`<h2>Error ${[...marksOf(run.error).keys()].map((line) => html`<button onClick=${() => goTo(area.current, line)}>line ${line}</button> `)}</h2><pre class="bad error">${run.error}</pre>`}
    </section>
    ${run && html`<${Timeline} run=${run} />`}
  </main>`;
}

// Looks at what is launched from now on. Returns when the server has begun to tell.
function watch(run, show, signal) {
  const store = new Store();
  let after = 0;
  return new Promise((begun, failed) => {
    (async () => {
      try {
        for await (const { data } of events("v1/dashboard?launched=later", { signal })) {
          begun();
          store.apply(data);
          if (data.about && run.number in data.about) run.began = store.inferlets.get(run.number).created;
          run.waves.push(...(data.waves ?? []).map(([, , begin, seconds, , , commands]) => ({ begin, seconds, commands })));
          if (run.waves.length > 5000) run.waves.splice(0, 1000);
          show();
          if (run.over && ++after > 2) return; // its last waves were told
        }
      } catch (error) {
        failed(error);
      }
    })();
  });
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
