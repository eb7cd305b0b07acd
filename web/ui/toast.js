/* toast(text, {action, run, kind}): a temporary message at the bottom of the page, announced to
   screen readers.
     action   label of a button (optional), run: its action; such a toast stays longer
     kind     "" or "bad"
   <Toasts /> is rendered once in the page. */

import { signal } from "@preact/signals";
import { html } from "htm/preact";
import { Icon } from "./icon.js";

const toasts = signal([]);
let next = 0;

export function toast(text, { action, run, kind = "" } = {}) {
  const id = next++;
  toasts.value = [...toasts.peek(), { id, text, action, run, kind }].slice(-3);
  setTimeout(() => dismiss(id), action ? 12_000 : 4000);
}

const dismiss = (id) => { toasts.value = toasts.peek().filter((one) => one.id !== id); };

export const Toasts = () => html`
  <div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map(({ id, text, action, run, kind }) => html`
      <div key=${id} class="toast ${kind}">
        <span>${text}</span>
        ${action && html`<button type="button" class="link" onClick=${() => { run(); dismiss(id); }}>${action}</button>`}
        <button type="button" class="quiet square" aria-label="Dismiss" onClick=${() => dismiss(id)}><${Icon} name="close" /></button>
      </div>`)}
  </div>`;
