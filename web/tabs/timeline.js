/* The pipeline timeline of the displayed plan, with its own schedule or another. */

import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { ChartFrame } from "../charts/frame.js";
import { Timeline, timelineTable } from "../charts/timeline.js";
import { download, post } from "../api.js";
import { number, percent, seconds } from "../format.js";
import { persist, planRequest } from "../state.js";
import { Icon } from "../ui/icon.js";
import { DataTable } from "../ui/table.js";
import { toast } from "../ui/toast.js";
import { Loading, NoPlanNotice, RefusalNotice } from "../ui/notices.js";
import { useCatalog, useQuery } from "../use_query.js";

const TRACE = "application/vnd.chrome-trace+json";
const chosen = persist("schedule", null); // {schedule, chunks}; null: those of the plan

const own = (plan) => ({ schedule: plan.schedule, chunks: plan.vpp });
const same = (a, b) => a.schedule === b.schedule && a.chunks === b.chunks;
const key = ({ schedule, chunks }) => `${schedule} ${chunks}`;

export default function TimelineTab() {
  const asked = planRequest.value;
  const drawn = asked && withSchedule(asked, chosen.value);
  const { answer, problem, busy } = useQuery("/v1/timelines", drawn);
  if (!asked) return html`<${NoPlanNotice} />`;
  const tools = html`
    <${Choice} plan=${asked.plan} />
    <button type="button" title="A Chrome trace: open it at ui.perfetto.dev or chrome://tracing" onClick=${() => save(drawn)}>
      <${Icon} name="download" /> Trace
    </button>`;
  return html`<div class="timeline-tab" aria-busy=${String(busy)}>
    <${RefusalNotice} problem=${problem} title="This schedule does not run with this plan">
      ${chosen.value && html`<p><button type="button" class="link" onClick=${() => { chosen.value = null; }}>Back to the plan's own schedule</button></p>`}
    <//>
    <${Loading} when=${!answer && !problem} />
    ${answer && !problem && html`
      <${ChartFrame} title=${answer.title} name="timeline" caption=${caption(answer)} tools=${tools} ...${timelineTable(answer)}>
        <${Facts} answer=${answer} />
        ${answer.staleness && html`<p class="notice">${answer.staleness}</p>`}
        <${Timeline} answer=${answer} />
      <//>`}
    ${problem && html`<div class="chart card"><header>${tools}</header></div>`}
    <${Schedules} asked=${asked} />
  </div>`;
}

/* The request with another schedule in its plan; other numbers of chunks reset the layer split. */
function withSchedule(asked, choice) {
  if (!choice) return asked;
  const { first_stage_layers, last_stage_layers, stage_layers, ...rest } = asked.plan;
  const split = choice.chunks === asked.plan.vpp ? { first_stage_layers, last_stage_layers, stage_layers } : {};
  return { ...asked, plan: { ...rest, ...split, schedule: choice.schedule, vpp: choice.chunks } };
}

function choose(plan, row) {
  chosen.value = same(own(plan), row) ? null : { schedule: row.schedule, chunks: row.chunks };
}

async function save(asked) {
  try {
    const trace = await post("/v1/timelines", asked, { accept: TRACE });
    download(`${asked.plan.schedule}.trace.json`, typeof trace === "string" ? trace : JSON.stringify(trace));
  } catch (error) {
    toast(error.message, { kind: "bad" });
  }
}

/* A choice of all schedules, with the possible or usual numbers of chunks of each. */
function Choice({ plan }) {
  const schedules = useCatalog("schedules");
  const current = chosen.value ?? own(plan);
  const options = schedules.flatMap(({ id, title, chunk_counts: counts }) => {
    const any = counts.length ? counts : [...new Set([2, 4, Math.max(2, plan.vpp)])].sort((a, b) => a - b);
    return any.map((chunks) => ({ schedule: id, chunks, label: any.length > 1 ? `${title}, ${chunks} chunks` : title }));
  });
  const pick = ({ target }) => choose(plan, options.find((row) => key(row) === target.value));
  return html`<label class="inline">Schedule
    <select value=${key(current)} onChange=${pick}>
      ${options.map((row) => html`<option key=${key(row)} value=${key(row)} selected=${same(row, current)}>
        ${row.label}${same(row, own(plan)) ? " (the plan's)" : ""}</option>`)}
    </select>
  </label>`;
}

function Facts({ answer }) {
  const peak = Math.max(...answer.peak_in_flight);
  const facts = [
    ["step", seconds(answer.makespan_s, 4)],
    ["work of the busiest rank", seconds(answer.ideal_s, 4)],
    ["bubble", percent(answer.bubble_of_total)],
    ["most in flight", `${number(peak)} on rank ${answer.peak_in_flight.indexOf(peak)}`],
    ["micro-batches", answer.micro_batches],
  ];
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function caption(answer) {
  const basis = answer.closed_form_extra_s === null
    ? "simulated; there is no closed form"
    : `simulated; the closed form gives ${seconds(answer.ideal_s + answer.closed_form_extra_s, 4)}${answer.holds === "always" ? "" : ` (valid: ${answer.holds})`}`;
  return `One lane per pipeline rank, with the activations it holds below it. Times are ${basis}. Activations are freed at the ${answer.freed_at}. ${answer.citation}`;
}

const COLUMNS = [
  { key: "title", label: "Schedule" },
  { key: "chunks", label: "Chunks", number: true },
  { key: "makespan_s", label: "Step", number: true, show: (value) => (value === null ? "–" : seconds(value)) },
  { key: "bubble_of_total", label: "Bubble", number: true, show: (value) => (value === null ? "–" : percent(value)) },
  { key: "peak_in_flight", label: "In flight", number: true, title: "activations of one micro-batch on the fullest rank", show: (value) => (value === null ? "–" : number(value)) },
  { key: "weight_copies", label: "Weight copies", number: true, show: (value) => number(value) },
  { key: "messages_per_micro_batch", label: "Messages", number: true, title: "per micro-batch" },
  { key: "frameworks", label: "Runs in", show: (names) => names.join(", ") || "none" },
  { key: "reason", label: "Why not here" },
];

/* All schedules side by side, loaded on demand, since it takes the service a second. */
function Schedules({ asked }) {
  const [open, setOpen] = useState(false);
  const { answer, problem, busy } = useQuery("/v1/schedule-comparisons", open ? asked : null);
  const current = chosen.value ?? own(asked.plan);
  const columns = COLUMNS.filter(({ key: name }) => name !== "reason" || answer?.schedules.some(({ reason }) => reason));
  return html`<details class="card schedules" onToggle=${({ target }) => setOpen(target.open)} aria-busy=${String(busy)}>
    <summary>All schedules on this pipeline</summary>
    <${RefusalNotice} problem=${problem} />
    ${open && answer && html`<${DataTable} name="schedules" caption="Pipeline schedules with the work and links of this plan, fastest first"
      columns=${columns} rows=${answer.schedules} filter=${false}
      onRow=${(row) => !row.reason && choose(asked.plan, row)} isCurrent=${(row) => same(row, current)} />`}
    ${open && !answer && !problem && html`<p class="muted">Running all of them …</p>`}
  </details>`;
}
