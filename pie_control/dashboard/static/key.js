// Asks for a key.
import { html, useEffect, useRef } from "./vendor/preact.js";

export function KeyForm({ message, submit }) {
  const field = useRef();
  useEffect(() => field.current.focus(), []);
  const send = (event) => {
    event.preventDefault();
    submit(field.current.value);
    field.current.value = "";
  };
  return html`<main><section><h2>Key</h2><p>${message}</p>
    <form onSubmit=${send}><label>Key or token <input ref=${field} type="password" autocomplete="off" /></label>
    <button>Look</button></form>
    <p class="dim">This page keeps it in its memory only: after a reload it asks again.</p></section></main>`;
}
