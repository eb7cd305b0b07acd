/* The evidence for the displayed plan: the nearest published runs, and its closest rival. */

import { html } from "htm/preact";
import { signal, useSignalEffect } from "@preact/signals";
import { useState } from "preact/hooks";
import { post } from "../api.js";
import { movedTime } from "../charts/palette.js";
import { count, number, percent, seconds, teraflops } from "../format.js";
import { answer, fresh, planRequest, report } from "../state.js";
import { Icon } from "../ui/icon.js";
import { Lazy } from "../ui/lazy.js";

/* By `ground` of an Evidence document: colour, icon and label. */
export const GROUNDS = {
  measured: ["good", "check", "Measured"],
  extrapolated: ["warn", "info", "Extrapolated"],
  unseen: ["bad", "alert", "No run on this chip"],
};

const found = signal({}); // {of: the report, evidence}

async function load(of, body, aborted) {
  try {
    found.value = { of, evidence: await post("/v1/accuracy/nearest", body, { signal: aborted }) };
  } catch (error) {
    if (error.name !== "AbortError" && !error.problem) throw error;
  }
}

/* Load the evidence of the displayed plan; that of the best plan is part of the answer. */
function follow() {
  const [shown, body] = [report.value, planRequest.value];
  if (shown === answer.value?.best && answer.value?.evidence) {
    found.value = { of: shown, evidence: answer.value.evidence };
  } else if (shown) {
    const aborter = new AbortController();
    load(shown, body, aborter.signal);
    return () => aborter.abort();
  }
  return undefined;
}

/* {of, evidence}: the latest evidence and the report it belongs to; {} until it is loaded. */
export function usePlanEvidence() {
  useSignalEffect(follow);
  return found.value;
}

const LEAST_SELECTION = 0.01; // error of the picked plan's time that is told
const MOST_DIFFERENCES = 4; // from the record

const nearestRuns = () => import("./nearest_runs.js");

export function PlanEvidence({ shown }) {
  const { of, evidence } = usePlanEvidence();
  const [open, setOpen] = useState(false);
  const isBest = fresh.value && shown === answer.value?.best;
  const { rival, selection } = isBest ? answer.value : {};
  if (!evidence) return null;
  const [kind, icon, label] = GROUNDS[evidence.ground];
  // Outdated evidence is hidden but keeps its space until the new evidence is loaded.
  return html`
    <div class="plan-evidence">
      ${rival && html`<p class="rival"><${Rival} rival=${rival} /></p>`}
      ${selection?.share >= LEAST_SELECTION && html`<p class="selection">Expect <b>${seconds(selection.expected_time_s)}</b>: the shortest of ${selection.plans} close estimates is ${percent(selection.share, 2)} too short on average.</p>`}
      <div class=${of === shown ? "" : "stale"}>
        <p><span class="evidence-badge ${kind}"><${Icon} name=${icon} />${label}</span> ${evidence.detail}</p>
        ${evidence.record && html`<p class="record"><${Record} record=${evidence.record} shown=${shown} /></p>`}
        <details onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Nearest published runs</summary>
          ${open && html`<${Lazy} load=${nearestRuns} props=${{ rows: evidence.nearest }} />`}</details>
      </div>
    </div>`;
}

/* "Record: 349 TFLOP/s published of Qwen3-30B-A3B on 16; 1.16 times that here, with pp 1 -> 2." */
function Record({ record: { run, differs }, shown }) {
  const ratio = shown.model_flop_per_s_per_accelerator / run.model_flop_per_s;
  const more = differs.length - MOST_DIFFERENCES;
  const told = [...differs.slice(0, MOST_DIFFERENCES), ...(more > 0 ? [`${more} more`] : [])];
  return `Record: ${teraflops(run.model_flop_per_s)} published of ${run.model} on ${count(run.accelerators)} (${run.source} ${run.year}); ${number(ratio, 3)} times that here${ratio > 1 && told.length > 0 ? `, with ${told.join(", ")}` : ""}.`;
}

/* "TP 4 beats TP 8 by 9.8 %: saves 14.2 s of TP communication, costs 628 ms of CP communication." */
function Rival({ rival: { claim, saved_s: saved } }) {
  const moved = movedTime(saved);
  return `${claim}${moved && `: ${moved.join(", ")}`}.`;
}
