// Asks for a key.
import { canBeKey } from "./client.js";
import { html, useEffect, useRef, useState } from "./vendor/preact.js";

export function KeyForm({ message, submit }) {
  const field = useRef(), [wrong, setWrong] = useState(false);
  useEffect(() => field.current.focus(), []);
  const send = (event) => {
    event.preventDefault();
    setWrong(!canBeKey(field.current.value));
    if (canBeKey(field.current.value)) submit(field.current.value);
    field.current.value = "";
  };
  return html`<main><section><h2>Key</h2><p>${message}</p>
    ${wrong && html`<p class="bad" role="alert">A key has no spaces, and no letters but A to Z: copy it as it was shown</p>`}
    <form onSubmit=${send}><label>Key or token <input ref=${field} type="password" autocomplete="off" /></label>
    <button>Look</button></form>
    <p class="dim">This page keeps it in its memory only: after a reload it asks again.</p></section></main>`;
}
