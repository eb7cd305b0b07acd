/* <Nearest rows=${[…]} />: the published runs nearest to a plan, with their predictions. */

import { html } from "htm/preact";
import { count, seconds } from "../format.js";
import { signed } from "../charts/predicted_measured.js";
import { nameOf, runPlan } from "../published_runs.js";

export default function Nearest({ rows }) {
  return html`
    <table class="coverage nearest-runs">
      <thead><tr><th scope="col">Run and plan</th><th scope="col" class="number">Predicted</th><th scope="col" class="number">Measured</th><th scope="col" class="number">Off by</th></tr></thead>
      <tbody>${rows.map((row) => html`
        <tr key=${row.id} title=${row.title}>
          <td>${row.model} on ${count(row.accelerators)} × ${nameOf("accelerator", row.accelerator)}, ${row.precision}<br /><span class="muted">${runPlan(row)}</span></td>
          <td class="number">${seconds(row.predicted_s)}</td>
          <td class="number">${seconds(row.measured_s)}</td>
          <td class="number">${signed(row.predicted_s / row.measured_s - 1)}</td>
        </tr>`)}</tbody>
    </table>`;
}
