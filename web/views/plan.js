/* The Plan view: the form on the left, the answer and its details on the right. */

import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { Answer } from "../answer/answer.js";
import { MemoryChart } from "../charts/memory.js";
import { ParetoChart } from "../charts/pareto.js";
import { TimeChart } from "../charts/time_parts.js";
import { Form } from "../form/form.js";
import { MixedCluster } from "../answer/mixed_cluster.js";
import { NoPlanFits } from "../answer/no_plan_fits.js";
import { TABS } from "../registry.js";
import { answer, report, tab } from "../state.js";
import { Dialog } from "../ui/dialog.js";
import { isNarrowScreen } from "../ui/narrow_screen.js";
import { Tabs } from "../ui/tabs.js";

export default function Plan() {
  const [sheet, setSheet] = useState(false);
  return html`
    <div class="plan-view">
      <h1 class="for-readers">Plan</h1>
      ${isNarrowScreen.value
        ? html`<${Dialog} title="What to plan" kind="sheet" open=${sheet} onClose=${() => setSheet(false)}><${Form} /><//>`
        : html`<div class="form-column"><${Form} /></div>`}
      <div class="results" id="results" tabindex="-1">
        <${Answer} onEdit=${() => setSheet(true)} />
        ${answer.value?.options ? html`<${MixedCluster} />` : answer.value && !report.value && html`<${NoPlanFits} />`}
        ${report.value && html`
          <div class="pair">
            <${ParetoChart} />
            <${MemoryChart} />
          </div>
          <${TimeChart} />
          <section class="card tabs-card" aria-label="More about this plan">
            <${Tabs} label="More about this plan" items=${TABS} current=${tab.value} onSelect=${(id) => { tab.value = id; }} />
          </section>`}
      </div>
    </div>`;
}
