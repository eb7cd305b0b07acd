/* <Progress label="Sizing" told=${{done, total}} onCancel=${() => …} noun="clusters" />
   A bar for what takes a while, with how far it is in words and a way to stop it.
   `more` is said after that; without onCancel there is only the bar. */

import { html } from "htm/preact";
import { count } from "../format.js";

export function Progress({ label, told, noun, more, onCancel }) {
  const share = told?.total ? told.done / told.total : null;
  return html`
    <div class="progress ${share === null ? "unknown" : ""}" role="progressbar" aria-label=${label}
      aria-valuenow=${share === null ? undefined : Math.round(share * 100)}>
      <i style=${{ transform: `scaleX(${share ?? 1})` }}></i>
    </div>
    ${onCancel && html`<div class="progress-text">
      <span>${label}${told?.total ? `: ${count(told.done)} of ${count(told.total)} ${noun}` : ""}${more}</span>
      <button type="button" class="link" onClick=${onCancel}>Cancel</button>
    </div>`}`;
}
