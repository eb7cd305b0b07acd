/* What stands behind the plan on show: runs measured near it, and its best rival. */

import { html } from "htm/preact";
import { signal, useSignalEffect } from "@preact/signals";
import { useState } from "preact/hooks";
import { post } from "./api.js";
import { SPACE } from "./format.js";
import { answer, fresh, planRequest, report } from "./state.js";
import { Icon } from "./ui/icon.js";
import { Lazy } from "./ui/lazy.js";

/* By ground: colour, icon, badge, and how the sentence begins that the badge stands for. */
export const GROUNDS = {
  measured: ["good", "check", "Measured", /^measured /],
  extrapolated: ["warn", "info", "Extrapolated", /^no run on /],
  unseen: ["bad", "alert", "No run on this chip", /^no run at all on /],
};

const found = signal({}); // {of: the report, evidence}

async function look(of, asked, aborted) {
  try {
    found.value = { of, evidence: await post("/v1/accuracy/nearest", asked, { signal: aborted }) };
  } catch (error) {
    if (error.name !== "AbortError" && !error.problem) throw error;
  }
}

/* An answer brings that of its best plan; that of any other is asked for. */
function follow() {
  const [shown, asked] = [report.value, planRequest.value];
  if (shown === answer.value?.best && answer.value?.evidence) {
    found.value = { of: shown, evidence: answer.value.evidence };
  } else if (shown) {
    const aborter = new AbortController();
    look(shown, asked, aborter.signal);
    return () => aborter.abort();
  }
  return undefined;
}

/* No line breaks between a number and its unit. */
const whole = (text) => text.replace(/(\d) (?=(?:[mu]?s|%)(?:\W|$))/g, `$1${SPACE}`);

const nearest = () => import("./views/nearest_runs.js");

export function PlanEvidence({ shown }) {
  useSignalEffect(follow);
  const [open, setOpen] = useState(false);
  const { of, evidence } = found.value;
  const rival = fresh.value && shown === answer.value?.best && answer.value.rival;
  if (!evidence) return null;
  const [kind, icon, badge, begins] = GROUNDS[evidence.ground];
  // What belongs to another plan keeps its place, unseen.
  return html`
    <div class="plan-evidence">
      ${rival && html`<p class="rival">${whole(rival.sentence)}.</p>`}
      <div class=${of === shown ? "" : "stale"}>
        <p><span class="evidence-badge ${kind}"><${Icon} name=${icon} />${badge}</span> ${evidence.text.replace(begins, "")}</p>
        <details onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Nearest published runs</summary>
          ${open && html`<${Lazy} load=${nearest} props=${{ rows: evidence.nearest }} />`}</details>
      </div>
    </div>`;
}
