/* toast(text, {action, run, kind}): a temporary message at the bottom of the page, announced to
   screen readers.
     action   label of a button (optional), run: its action; such a toast stays longer, and as long
              as a search runs: who takes a change back wants to see first what it gave
     kind     "" or "bad"
   <Toasts /> is rendered once in the page. */

import { signal } from "@preact/signals";
import { html } from "htm/preact";
import { busy } from "../state.js";
import { Icon } from "./icon.js";

const toasts = signal([]);
let next = 0;

export function toast(text, { action, run, kind = "" } = {}) {
  const id = next++;
  toasts.value = [...toasts.peek(), { id, text, action, run, kind }].slice(-3);
  let left = action ? 20 : 4;
  const clock = setInterval(() => {
    if (action && busy.peek()) return;
    if (--left > 0) return;
    clearInterval(clock);
    dismiss(id);
  }, 1000);
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
