/* Shown if no plan fits: rejected plans by reason, the nearest miss, and changes that would fit. */

import { html } from "htm/preact";
import { bytes, count, planLine, seconds, value, words } from "../format.js";
import { planAlone } from "../form/encoders.js";
import { useReasons } from "./rejection_reasons.js";
import { answer, apply, resolved, units } from "../state.js";

export function NoPlanFits() {
  const meaning = useReasons();
  const { conflicts = [], counts, nearest } = answer.value;
  const reasons = Object.entries(counts.rejected).sort((a, b) => b[1] - a[1]);
  const encoders = resolved.value?.model.encoders.length > 0;
  const most = Math.max(...reasons.map(([, number]) => number));
  return html`
    <section class="card no-plan-fits" aria-label="What would fit">
      ${conflicts.length > 0 && html`<h3>Limits that no plan meets</h3>
        <ul class="conflicts">${conflicts.map(({ text }) => html`<li>${text}</li>`)}</ul>`}
      ${nearest.map((miss) => html`<${Miss} miss=${miss} />`)}
      ${encoders && html`<h3>What can be planned</h3>
        <ul class="changes"><li><button type="button" onClick=${planAlone}>Language model alone</button><span class="muted">without the encoder</span></li></ul>`}
      <h3>Why the other plans were rejected</h3>
      <table class="reasons"><caption class="for-readers">Plans rejected, by reason</caption><tbody>
        ${reasons.map(([code, number]) => html`<tr key=${code}>
          <th scope="row">${meaning(code)}</th><td class="number">${count(number)}</td>
          <td class="reason-bar"><i style=${{ width: `${Math.max(0.5, (100 * number) / most)}%` }}></i></td>
          <td class="muted">${counts.examples[code] ?? ""}</td></tr>`)}
      </tbody></table>
    </section>`;
}

const setting = ([name, to]) => (name === "nodes" ? `${to} nodes` : `${words(name)} ${value(to)}`);

function Miss({ miss }) {
  return html`
    ${miss.plan && html`<p class="miss">Nearest: <b>${planLine(miss.plan)}</b>. Stage ${miss.stage} needs <b>${bytes(miss.over_by_bytes, units.value)}</b> more than is available.</p>`}
    ${miss.changes.length > 0 && html`<h3>Changes that fit</h3>
      <ul class="changes">${miss.changes.map((change) => html`<li>
        <button type="button" onClick=${() => apply(change.set)}>${Object.entries(change.set).map(setting).join(", ")}</button>
        <span class="muted">${planLine(change.plan)} · ${seconds(change.iteration_time_s)} · ${bytes(change.peak_bytes, units.value)}</span>
      </li>`)}</ul>`}`;
}
