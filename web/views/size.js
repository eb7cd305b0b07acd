/* Cluster sizing: what to rent for this model and these tokens, and when it is done. */

import { html } from "htm/preact";
import { signal, useSignalEffect } from "@preact/signals";
import { useState } from "preact/hooks";
import { catalog } from "../api.js";
import { DaysCostChart } from "../charts/days_cost.js";
import { big, count, energy, money, number, percent, planLine, unit } from "../format.js";
import { canonical } from "../url.js";
import { Dialog } from "../ui/dialog.js";
import { narrow } from "../ui/narrow.js";
import { Progress } from "../ui/progress.js";
import { DataTable } from "../ui/table.js";
import { SizeForm } from "./size_form.js";
import { asked, openRow, sizes } from "./size_state.js";

const PAUSE_MS = 300;

export const days = (value) => (value < 2 ? unit(number(value * 24), "hours") : unit(number(value), "days"));
const share = (value) => percent(value, value < 0.1 ? 2 : 3);
/* Kinds by the names people call them. */
const titles = signal({});
catalog("accelerators").then((all) => { titles.value = Object.fromEntries(all.map(({ id, spec }) => [id, spec.name])); }, () => {});
const kind = (id) => titles.value[id] ?? id;
const name = (row) => `${count(row.accelerators)} × ${kind(row.accelerator)}`;

export default function Size() {
  const [sheet, setSheet] = useState(false);
  useSignalEffect(() => {
    const body = asked.value;
    if (canonical(body) === sizes.answered.peek() && !sizes.failure.peek()) return undefined;
    const timer = setTimeout(() => sizes.ask(body), sizes.answer.peek() ? PAUSE_MS : 0);
    return () => { clearTimeout(timer); sizes.cancel(); };
  });
  const found = sizes.answer.value;
  return html`
    <div class="plan-view">
      <h1 class="for-readers">Size</h1>
      ${narrow.value
        ? html`<${Dialog} title="What to size" kind="sheet" open=${sheet} onClose=${() => setSheet(false)}><${SizeForm} /><//>`
        : html`<div class="form-column"><${SizeForm} /></div>`}
      <div class="results" id="results" tabindex="-1">
        <section class="answer card" aria-label="What to rent" aria-busy=${String(sizes.busy.value)}>
          ${sizes.busy.value
            ? html`<${Progress} label="Sizing" noun="clusters" told=${sizes.progress.value} onCancel=${sizes.cancel} />`
            : html`<div class="progress" hidden></div>`}
          <div class="answer-top">
            <p class="asked">${found && question(found)}</p>
            <button type="button" class="edit" onClick=${() => setSheet(true)}>Change</button>
          </div>
          ${sizes.failure.value && html`<${Refusal} problem=${sizes.failure.value} />`}
          <div role="status" aria-live="polite" class="answer-body ${sizes.busy.value ? "waiting" : ""}">
            ${found ? html`<${Choices} found=${found} />` : html`<div class="skeleton" aria-hidden="true"><i></i><i></i><i></i></div>`}
          </div>
        </section>
        ${found && html`
          <${DaysCostChart} found=${found} nameOf=${kind} onOpen=${openRow} />
          <${Rows} found=${found} />
          <${RestsOn} found=${found} />`}
      </div>
    </div>`;
}

function question({ request: { model, training } }) {
  return `${model.name} · ${big(training.tokens)} tokens · ${count(training.global_batch_size)} × ${count(training.seq_length)} tokens · ${training.precision}`;
}

const Refusal = ({ problem }) => html`
  <div class="notice bad" role="alert">
    ${problem.errors?.length ? problem.errors.map(({ pointer, detail }) => html`<p><code>${pointer}</code> ${detail}</p>`) : html`<p>${problem.detail ?? problem.title}</p>`}
  </div>`;

const LIMITS = [
  ["deadline_days", (value) => `within ${days(value)}`],
  ["budget_usd", (value) => `for at most ${money(value)}`],
  ["power_watts", (value) => `on at most ${unit(number(value / 1000), "kW")}`],
];
const limits = (spec) => LIMITS.filter(([key]) => spec[key] !== undefined).map(([key, say]) => say(spec[key])).join(", ");

/* The answer in a sentence, then the ways to choose. */
function Choices({ found }) {
  const { rows, request } = found;
  const kept = limits(request.sizing);
  const first = rows[found.cheapest ?? found.fewest ?? found.fastest];
  if (!first) return html`<${Nothing} found=${found} kept=${kept} />`;
  const cards = [
    ["Cheapest", found.cheapest], ["Fastest", found.fastest], ["Fewest accelerators", found.fewest],
  ].filter(([, at]) => at !== null);
  const merged = new Map();
  for (const [label, at] of cards) merged.set(at, [...(merged.get(at) ?? []), label]);
  return html`
    <h2 class="verdict"><span>Rent ${name(first)}: done in ${days(first.days)}${first.cost_usd === null ? "; no price is known, so no cost" : ` for ${money(first.cost_usd)}`}</span></h2>
    <p class="lead">${kept ? `The ${first.cost_usd === null ? "smallest" : "cheapest"} of ${count(rows.length)} clusters that finishes ${kept}.` : `The cheapest of ${count(rows.length)} clusters; name a deadline to see what a faster one costs.`}</p>
    <ul class="choices">
      ${[...merged].map(([at, labels]) => html`<${Choice} key=${at} label=${labels.join(" and ").replace("and Fewest", "and fewest").replace("and Fastest", "and fastest")} row=${rows[at]} />`)}
    </ul>
    <${StopsPaying} found=${found} />`;
}

function Choice({ label, row }) {
  return html`
    <li><button type="button" class="choice" onClick=${() => openRow(row)}>
      <span class="choice-label">${label}</span>
      <b>${name(row)}</b>
      <span class="choice-figures"><span>${days(row.days)}</span><span>${row.cost_usd === null ? "no price known" : money(row.cost_usd)}</span>${row.energy_kwh !== null && html`<span>${energy(row.energy_kwh)}</span>`}</span>
      <span class="muted">${planLine(row.plan)}</span>
      <span class="muted">MFU ${percent(row.mfu)} · ${share(row.memory_headroom)} of memory free · ${share(1 - row.effective_share)} lost to failures and checkpoints</span>
      <span class="choice-open">Open in Plan →</span>
    </button></li>`;
}

function StopsPaying({ found }) {
  const step = found.stops_paying;
  if (!step) return found.steps.length > 0 && html`<p class="stops-paying">Up to the largest number here, a day saved costs less than a day of training: scaling still pays.</p>`;
  const slow = found.rows[step.row];
  const fast = found.rows[step.faster_row];
  return html`
    <p class="stops-paying"><b>Scaling stops paying after ${name(slow)}</b> (${days(slow.days)}, ${money(slow.cost_usd)}):
      ${" "}${name(fast)} is done ${days(step.days_saved)} earlier for ${money(step.cost_added_usd)} more, which is ${money(step.usd_per_day_saved)} for each day saved, where a day of training costs ${money(slow.cost_usd / slow.days)}.</p>`;
}

/* No cluster keeps the limits, or nothing fits at all: what comes nearest. */
function Nothing({ found, kept }) {
  const ends = [["Cheapest of all", found.front[0]], ["Fastest of all", found.front.at(-1)]].filter(([, at]) => at !== undefined);
  return html`
    <h2 class="verdict none">${ends.length || found.rows.some((row) => row.plan) ? `Nothing here finishes ${kept}` : "The model fits on none of these clusters"}</h2>
    <p class="lead">${ends.length ? "Without these limits:" : "Choose larger ones, or other kinds."}</p>
    <ul class="choices">${ends.map(([label, at]) => html`<${Choice} key=${label} label=${label} row=${found.rows[at]} />`)}</ul>`;
}

const EXCEEDS = { deadline: "late", budget: "over budget", power: "over power" };

function marks(row, i, found) {
  const own = row.exceeds.map((limit) => EXCEEDS[limit]);
  for (const one of ["cheapest", "fastest", "fewest"]) if (found[one] === i) own.push(one);
  return own.join(", ");
}

const COLUMNS = [
  { key: "accelerators", label: "Number", number: true },
  { key: "accelerator", label: "Kind", show: kind },
  { key: "days", label: "Days", number: true, show: (value, row) => (value === null ? row.reason : number(value)) },
  { key: "cost_usd", label: "Cost", number: true, show: money },
  { key: "marks", label: "What it is" },
  { key: "power_watts", label: "Power, kW", number: true, show: (value) => number(value === null ? null : value / 1000) },
  { key: "energy_kwh", label: "Energy", number: true, show: energy },
  { key: "mfu", label: "MFU", number: true, show: (value) => percent(value) },
  { key: "memory_headroom", label: "Memory free", number: true, show: share },
  { key: "effective_share", label: "Time used", number: true, title: "share of the wall clock that trains; the rest goes to failures and checkpoints", show: (value) => percent(value) },
  { key: "tokens_per_usd", label: "Tokens per $", number: true, show: (value) => big(value) },
  { key: "plan", label: "Plan", value: (row) => row.plan && planLine(row.plan) },
];

const SHOWN = { front: "Front", kept: "Within limits", all: "All" };

function Rows({ found }) {
  const [which, setWhich] = useState("front");
  const marked = found.rows.map((row, i) => ({ ...row, at: i, marks: marks(row, i, found), class: row.exceeds.length || row.reason ? "dim" : "" }));
  const lists = {
    front: found.front.map((i) => marked[i]),
    kept: marked.filter((row) => row.plan && !row.exceeds.length),
    all: marked,
  };
  const segments = html`<div class="segments" role="group" aria-label="Rows">
    ${Object.entries(SHOWN).map(([id, label]) => html`<button key=${id} type="button" aria-pressed=${String(which === id)} onClick=${() => setWhich(id)}>${label} ${lists[id].length}</button>`)}
  </div>`;
  return html`
    <section class="card" aria-label="Clusters">
      <${DataTable} name="sizing" caption="Clusters" columns=${COLUMNS} rows=${lists[which]} rowKey=${(row) => row.at}
        onRow=${(row) => row.plan && openRow(row)} filter=${which !== "front"} actions=${segments} />
    </section>`;
}

function RestsOn({ found }) {
  return html`
    <details class="card rests-on" open>
      <summary>What this rests on</summary>
      <ul>${found.assumptions.map(({ text }) => html`<li key=${text}>${text}</li>`)}</ul>
      <p class="muted">Every number can be changed at the left; prices and failures change days and cost at once.</p>
    </details>`;
}
