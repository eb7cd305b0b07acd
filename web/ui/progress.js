/* <Progress label="Sizing" told=${{done, total}} onCancel=${() => …} noun="clusters" />
   A progress bar with the count in words and a cancel button (if onCancel is given).
   more: text after the count. */

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
