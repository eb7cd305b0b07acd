/* The pipeline of the plan on show, step by step, under its own schedule or any other. */

import { html } from "htm/preact";
import { ChartFrame } from "../charts/frame.js";
import { Timeline, timelineTable } from "../charts/timeline.js";
import { download, post } from "../api.js";
import { number, percent, seconds } from "../format.js";
import { persist, question } from "../state.js";
import { Icon } from "../ui/icon.js";
import { DataTable } from "../ui/table.js";
import { toast } from "../ui/toast.js";
import { NoPlan, Trouble, useAsked } from "./asked.js";

const TRACE = "application/vnd.chrome-trace+json";
const chosen = persist("schedule", null); // {schedule, chunks} instead of the plan's own

const own = (plan) => ({ schedule: plan.schedule, chunks: plan.vpp });
const same = (a, b) => a.schedule === b.schedule && a.chunks === b.chunks;
const key = ({ schedule, chunks }) => `${schedule} ${chunks}`;

export default function TimelineTab() {
  const asked = question.value;
  const drawn = asked && withSchedule(asked, chosen.value);
  const schedules = useAsked("/v1/schedule-comparisons", asked);
  const { answer, problem, busy } = useAsked("/v1/timelines", drawn);
  if (!asked) return html`<${NoPlan} />`;
  const tools = html`
    <${Choice} plan=${asked.plan} rows=${schedules.answer?.schedules ?? []} />
    <button type="button" title="A Chrome trace: open it at ui.perfetto.dev or chrome://tracing" onClick=${() => save(drawn)}>
      <${Icon} name="download" /> Trace
    </button>`;
  return html`<div class="timeline-tab" aria-busy=${String(busy)}>
    <${Trouble} problem=${problem}>
      ${chosen.value && html`<p><button type="button" class="link" onClick=${() => { chosen.value = null; }}>Back to the plan's own schedule</button></p>`}
    <//>
    ${answer && !problem && html`
      <${ChartFrame} title=${answer.title} name="timeline" caption=${caption(answer)} tools=${tools} ...${timelineTable(answer)}>
        <${Facts} answer=${answer} />
        ${answer.staleness && html`<p class="notice">${answer.staleness}</p>`}
        <${Timeline} answer=${answer} />
      <//>`}
    ${problem && html`<div class="chart card"><header>${tools}</header></div>`}
    ${schedules.answer && html`<${Schedules} plan=${asked.plan} answer=${schedules.answer} />`}
  </div>`;
}

/* The question with another schedule in its plan. */
export function withSchedule(asked, choice) {
  if (!choice) return asked;
  return { ...asked, plan: { ...asked.plan, schedule: choice.schedule, vpp: choice.chunks } };
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

function Choice({ plan, rows }) {
  const current = chosen.value ?? own(plan);
  const runs = rows.filter((row) => !row.reason);
  const label = (row) => `${row.title}${row.chunks > 1 ? `, ${row.chunks} chunks` : ""}`;
  const option = (row) => html`<option key=${key(row)} value=${key(row)} selected=${same(row, current)} title=${row.reason}>
    ${label(row)}${same(row, own(plan)) ? " (the plan's)" : ""}
  </option>`;
  const pick = ({ target }) => choose(plan, runs.find((row) => key(row) === target.value));
  return html`<label class="inline">Schedule
    <select value=${key(current)} onChange=${pick}>
      ${!runs.some((row) => same(row, current)) && html`<option value=${key(current)} selected>${current.schedule}</option>`}
      ${runs.map(option)}
    </select>
  </label>`;
}

function Facts({ answer }) {
  const peak = Math.max(...answer.peak_in_flight);
  const facts = [
    ["step", seconds(answer.makespan_s, 4)],
    ["busiest rank works", seconds(answer.ideal_s, 4)],
    ["bubble", percent(answer.bubble_of_total)],
    ["most in flight", `${number(peak)} on rank ${answer.peak_in_flight.indexOf(peak)}`],
    ["micro-batches", answer.micro_batches],
  ];
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function caption(answer) {
  const basis = answer.closed_form_extra_s === null
    ? "simulated; there is no closed form"
    : `simulated; the closed form says ${seconds(answer.ideal_s + answer.closed_form_extra_s, 4)} (${answer.holds})`;
  return `One lane per pipeline rank, what it holds in activations below: ${basis}. Activations are freed at the ${answer.freed_at}. ${answer.citation}`;
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

function Schedules({ plan, answer }) {
  const current = chosen.value ?? own(plan);
  return html`<details class="card schedules">
    <summary>All schedules on this pipeline: ${answer.schedules.filter((row) => !row.reason).length} can run</summary>
    <${DataTable} name="schedules" caption="Pipeline schedules with the work and links of this plan, fastest first"
      columns=${COLUMNS.filter(({ key: name }) => name !== "reason" || answer.schedules.some(({ reason }) => reason))} rows=${answer.schedules} filter=${false}
      onRow=${(row) => !row.reason && choose(plan, row)} isCurrent=${(row) => same(row, current)} />
  </details>`;
}
