/* <Evidence />: the published runs nearest to the displayed plan, and how they support its time. */

import { html } from "htm/preact";
import { capitalized, count, percent, planLine, seconds } from "../format.js";
import { GROUNDS, usePlanEvidence } from "./evidence.js";
import { report, resolved } from "../state.js";
import { signed } from "../charts/predicted_measured.js";
import { Icon } from "../ui/icon.js";
import { nameOf, runPlan } from "../published_runs.js";

/* One line that says whether the time is measured, extrapolated or unseen. */
export const EvidenceLine = ({ of: { ground, text } }) => {
  const [kind, icon] = GROUNDS[ground];
  return html`<p class="ground ${kind}"><${Icon} name=${icon} /> <span>${capitalized(text)}</span></p>`;
};

export function Evidence({ onRun }) {
  const { evidence } = usePlanEvidence();
  const shown = report.value;
  if (!shown || !evidence || !resolved.value) {
    return html`<section class="card evidence" aria-label="The current plan"><h2>The current plan</h2><p class="muted">There is no plan yet: open the Plan view.</p></section>`;
  }
  const { error_band: band } = shown;
  return html`
    <section class="card evidence" aria-label="The current plan">
      <h2>The current plan</h2>
      <p class="muted">${resolved.value.model.name} · ${planLine(shown.plan)}</p>
      <${EvidenceLine} of=${evidence} />
      <p><b>${seconds(shown.iteration_time_s)}</b> per iteration, ${seconds(band.low_s)} to ${seconds(band.high_s)} at 80${"\u202f"}%:
        ${" "}${percent(1 - band.low_s / shown.iteration_time_s, 2)} faster to ${percent(band.high_s / shown.iteration_time_s - 1, 2)} slower.</p>
      <h3>Nearest published runs</h3>
      <ul class="nearest">${evidence.nearest.map((row) => html`
        <li key=${row.id}>
          <button type="button" class="link" onClick=${() => onRun(row)}>${row.model} on ${count(row.accelerators)} × ${nameOf("accelerator", row.accelerator)}</button>
          <span class="off"><b>${signed(row.predicted_s / row.measured_s - 1)}</b></span>
          <p class="muted">${runPlan(row)} · ${row.precision} · ${count(row.seq_length)} tokens · ${row.stack}</p>
          <p>predicted ${seconds(row.predicted_s)}, measured ${seconds(row.measured_s)} <span class="muted">(${row.title})</span></p>
        </li>`)}</ul>
    </section>`;
}
