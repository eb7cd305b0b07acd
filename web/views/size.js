/* Cluster sizing: which cluster to rent for a model and a number of tokens, with days and cost. */

import { html } from "htm/preact";
import { signal, useSignalEffect } from "@preact/signals";
import { useState } from "preact/hooks";
import { catalog } from "../api.js";
import { DaysCostChart } from "../charts/days_cost.js";
import { big, chance, count, energy, money, number, percent, planLine, SPACE, unit } from "../format.js";
import { canonical } from "../url.js";
import { Dialog } from "../ui/dialog.js";
import { isNarrowScreen } from "../ui/narrow_screen.js";
import { Progress } from "../ui/progress.js";
import { DataTable } from "../ui/table.js";
import { SizeForm } from "./size_form.js";
import { change } from "../state.js";
import { asked, changeSizing, openRow, sizes } from "./size_query.js";

const PAUSE_MS = 300;

export const days = (value) => (value < 2 ? unit(number(value * 24), "hours") : unit(number(value), "days"));
const share = (value) => percent(value, value < 0.1 ? 2 : 3);
/* Display names of accelerator kinds. */
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
  const known = sizes.busy.value && sizes.progress.value?.best?.rows; // of the sizing under way
  const found = known ? null : sizes.answer.value;
  return html`
    <div class="plan-view">
      <h1 class="for-readers">Size</h1>
      ${isNarrowScreen.value
        ? html`<${Dialog} title="What to size" kind="sheet" open=${sheet} onClose=${() => setSheet(false)}><${SizeForm} /><//>`
        : html`<div class="form-column"><${SizeForm} /></div>`}
      <div class="results" id="results" tabindex="-1">
        <section class="answer card" aria-label="What to rent" aria-busy=${String(sizes.busy.value)}>
          ${sizes.busy.value
            ? html`<${Progress} label="Sizing" noun="clusters" told=${sizes.progress.value} onCancel=${sizes.cancel} />`
            : html`<div class="progress" hidden></div>`}
          <div class="answer-top">
            <p class="request-summary">${found && question(found)}</p>
            <button type="button" class="edit" onClick=${() => setSheet(true)}>Change</button>
          </div>
          ${sizes.failure.value && html`<${Refusal} problem=${sizes.failure.value} />`}
          <div role="status" aria-live="polite" class="answer-body ${sizes.busy.value ? "waiting" : ""}">
            ${found ? html`<${Choices} found=${found} />` : known ? html`<p class="lead">The clusters that are known so far; which to rent is said when all are.</p>` : html`<div class="skeleton" aria-hidden="true"><i></i><i></i><i></i></div>`}
          </div>
        </section>
        ${known && html`<${PartialRows} rows=${known} />`}
        ${found && html`
          <${DaysCostChart} found=${found} nameOf=${kind} onOpen=${openRow} />
          <${Rows} found=${found} />
          <${AssumptionList} found=${found} />`}
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

/* The recommendation in a sentence, then the alternatives. */
function Choices({ found }) {
  const { rows, request } = found;
  const kept = limits(request.sizing);
  const first = rows[found.recommended ?? found.fastest];
  if (!first) return html`<${NoneWithinLimits} found=${found} kept=${kept} />`;
  const cards = [
    ["Recommended", found.recommended], ["Cheapest", found.cheapest], ["Fastest", found.fastest],
    ["Fewest accelerators", found.fewest],
  ].filter(([, at]) => at !== null);
  const merged = new Map();
  for (const [label, at] of cards) merged.set(at, [...(merged.get(at) ?? []), label]);
  return html`
    <h2 class="verdict"><span>Rent ${name(first)}: done in ${days(first.days)}${first.cost_usd === null ? "; no price is known, so no cost" : ` for ${money(first.cost_usd)}`}</span></h2>
    <${ChanceKept} row=${first} spec=${request.sizing} />
    <${Ties} found=${found} />
    <p class="lead">${recommended(first, rows.length, kept)}</p>
    <ul class="choices">
      ${[...merged].map(([at, labels]) => html`<${Choice} key=${at} label=${labels.join(" and ").replace(/ and ./g, (word) => word.toLowerCase())} row=${rows[at]} />`)}
    </ul>
    <${Kinds} found=${found} chosen=${first} />
    <${StopsPaying} found=${found} />`;
}

/* By what the recommended row is the first of all. */
function recommended(row, clusters, kept) {
  const least = row.cost_usd === null ? "smallest" : "cheapest";
  const runs = unseen(row) ? "" : " on accelerators with published runs";
  if (!kept) return `The ${least} of ${count(clusters)} clusters${runs}; name a deadline to see what a faster one costs.`;
  const surely = row.chance_kept >= SAFE ? `surely (${chance(SAFE)}) finishes` : "finishes";
  return `The ${least} of ${count(clusters)} clusters${runs} that ${surely} ${kept}.`;
}

/* The interval of days, in hours if it is short. */
function daysRange({ low_days: low, high_days: high }) {
  return high < 2 ? unit(`${number(low * 24)} to ${number(high * 24)}`, "hours") : unit(`${number(low)} to ${number(high)}`, "days");
}

/* The interval of the time, and the chance that the limits are kept. */
function ChanceKept({ row, spec }) {
  const both = spec.deadline_days !== undefined && spec.budget_usd !== undefined;
  const what = both ? "Deadline and budget are met" : spec.budget_usd !== undefined ? "The budget is met" : "The deadline is met";
  const said = row.chance_kept !== null && ` ${what} with a chance of ${chance(row.chance_kept)}${row.chance_kept < SAFE ? ": leave more room, or measure first" : ""}.`;
  return html`<p class="surely">${daysRange(row)} at 80${SPACE}%.${said}${unseen(row) && ` No published run on ${kind(row.accelerator)} is known.`}</p>`;
}
const SAFE = 0.9; // chance from which a limit is surely kept, as for what is recommended
const unseen = ({ error_band: band }) => band.accelerator_rows === 0;

const within = (value) => value !== null && value > OVERLAP[0] && value < OVERLAP[1];

/* The other kinds that are statistically tied with the choice, or cost as much as far as is known. */
function Ties({ found }) {
  const tied = found.rivals.filter(({ chance_cheaper, chance_sooner }) => within(chance_sooner) && within(chance_cheaper ?? chance_sooner));
  const asCheap = found.rivals.filter((rival) => !tied.includes(rival) && rival.chance_cheaper !== null && within(rival.chance_cheaper));
  const names = (rivals) => rivals.map(({ row }) => name(found.rows[row])).join(", ").replace(/, (?=[^,]*$)/, " or ");
  return html`
    ${tied.length > 0 && html`<p class="apart">It is statistically tied with ${names(tied)}: their intervals overlap, so measure both, or choose by price and delivery.</p>`}
    ${asCheap.length > 0 && html`<p class="apart">Whether it is cheaper than ${names(asCheap)} is not sure: the intervals of the costs overlap.</p>`}`;
}

/* The best cluster of every requested kind, compared with the chosen one. */
function Kinds({ found, chosen }) {
  const kinds = Object.entries(found.best_of_kind);
  if (kinds.length < 2) return null;
  const rivals = new Map(found.rivals.map((rival) => [rival.row, rival]));
  return html`
    <div class="table-scroll" tabindex="0" role="region" aria-label="Kinds side by side: table">
      <table class="kinds-table"><caption>The best of each kind${found.rivals.length > 0 ? `, beside ${name(chosen)}` : ""}</caption>
        <thead><tr><th scope="col">Cluster</th><th scope="col">Days</th><th scope="col">Cost</th><th scope="col">Meets the limits</th><th scope="col">Sooner</th><th scope="col">Cheaper</th><th scope="col" title="the fewest, in whole nodes or a part of one, that the model fits on">Fits from</th></tr></thead>
        <tbody>${kinds.map(([id, at]) => html`<${Kind} key=${id} id=${id} row=${at === null ? null : found.rows[at]} rival=${rivals.get(at)} chosen=${chosen} from=${found.fits_from[id]} found=${found} />`)}</tbody>
      </table>
    </div>`;
}

const OVERLAP = [0.05, 0.95]; // range of chances in which two clusters count as tied

function Kind({ id, row, rival, chosen, from, found }) {
  const fits = from ? count(from) : "none here";
  if (!row) {
    const why = found.rows.find(({ accelerator, reason }) => accelerator === id && reason)?.reason ?? "nothing fits";
    return html`<tr><th scope="row">${kind(id)}</th><td colspan="5" class="muted">${why} at any of these numbers</td><td>${fits}</td></tr>`;
  }
  const against = (value) => (value === undefined ? html`<span class="muted">${row === chosen ? "the choice" : "–"}</span>`
    : value === null ? "no price known"
    : html`${chance(value)}${value > OVERLAP[0] && value < OVERLAP[1] ? html` <span class="muted">not sure</span>` : ""}`);
  const kept = row.exceeds.length ? html`<span class="bad">${row.exceeds.map((limit) => EXCEEDS[limit]).join(", ")}</span>` : row.chance_kept === null ? "–" : `with ${chance(row.chance_kept)}`;
  return html`
    <tr class=${row === chosen ? "chosen" : ""}>
      <th scope="row"><button type="button" class="link" onClick=${() => openRow(row)}>${name(row)}</button></th>
      <td class="days" title=${row.error_band.basis}>${days(row.days)} <span class="muted">${daysRange(row)}${unseen(row) && ", no run known"}</span></td>
      <td>${row.cost_usd === null ? "no price known" : money(row.cost_usd)}</td>
      <td>${kept}</td><td>${against(rival?.chance_sooner)}</td><td>${against(rival?.chance_cheaper)}</td><td>${fits}</td></tr>`;
}

function Choice({ label, row }) {
  return html`
    <li><button type="button" class="choice" onClick=${() => openRow(row)}>
      <span class="choice-label">${label}</span>
      <b>${name(row)}</b>
      <span class="choice-figures"><span>${days(row.days)}</span><span class="muted">${daysRange(row)}</span><span>${row.cost_usd === null ? "no price known" : money(row.cost_usd)}</span>${row.energy_kwh !== null && html`<span>${energy(row.energy_kwh)}</span>`}</span>
      <span class="muted">${planLine(row.plan)}</span>
      <span class="muted">MFU ${percent(row.mfu)} · ${share(row.memory_headroom)} of memory free · ${share(1 - row.effective_share)} lost to failures and checkpoints</span>
      <span class="choice-open">Open in Plan →</span>
    </button></li>`;
}

function StopsPaying({ found }) {
  const step = found.stops_paying;
  if (!step) return found.steps.length > 0 && html`<p class="stops-paying">Up to the largest cluster here, each day saved costs less than a day of training.</p>`;
  const slow = found.rows[step.row];
  const fast = found.rows[step.faster_row];
  return html`
    <p class="stops-paying"><b>More accelerators stop paying off after ${name(slow)}</b> (${days(slow.days)}, ${money(slow.cost_usd)}):
      ${" "}${name(fast)} is done ${days(step.days_saved)} earlier for ${money(step.cost_added_usd)} more, which is ${money(step.usd_per_day_saved)} for each day saved, where a day of training costs ${money(slow.cost_usd / slow.days)}.</p>`;
}

const OFFERS = {
  deadline: ["A deadline of", days, "deadline_days"],
  budget: ["A budget of", money, "budget_usd"],
  power: ["A site of", (watts) => unit(number(watts / 1000), "kW"), "power_watts"],
  tokens: ["Only", (tokens) => unit(big(tokens), "tokens"), "tokens"],
};
const ROUND = 1.02; // margin of an offered limit over the value that just keeps it

/* Shown if no cluster keeps the limits or nothing fits: relaxed limits and the nearest clusters. */
function NoneWithinLimits({ found, kept }) {
  const [cheapest, fastest] = [found.front[0], found.front.at(-1)];
  const ends = cheapest === undefined ? [] : cheapest === fastest ? [["Cheapest and fastest of all", cheapest]] : [["Cheapest of all", cheapest], ["Fastest of all", fastest]];
  return html`
    <h2 class="verdict none">${ends.length || found.rows.some((row) => row.plan) ? `Nothing here finishes ${kept}` : "The model fits on none of these clusters"}</h2>
    ${found.offers.length > 0 && html`<ul class="changes" aria-label="What would do">${found.offers.map((offer) => html`<${Offer} key=${offer.limit} offer=${offer} row=${found.rows[offer.row]} />`)}</ul>`}
    <p class="lead">${ends.length ? "Without these limits:" : "Choose larger clusters or other accelerators."}</p>
    <ul class="choices">${ends.map(([label, at]) => html`<${Choice} key=${label} label=${label} row=${found.rows[at]} />`)}</ul>
    <${Kinds} found=${found} />`;
}

/* A button that relaxes one limit. */
function Offer({ offer: { limit, value }, row }) {
  const [head, say, field] = OFFERS[limit];
  const wider = Number((limit === "tokens" ? value / ROUND : value * ROUND).toPrecision(3));
  const apply = () => (limit === "tokens" ? change("/training/tokens", wider) : changeSizing(field, wider));
  return html`<li><button type="button" onClick=${apply}>${head} ${say(wider)}</button>
    <span class="muted">${name(row)} ${limit === "tokens" ? "then keeps all limits" : `takes ${days(row.days)}${row.cost_usd === null ? "" : ` and ${money(row.cost_usd)}`}`}</span></li>`;
}

const EXCEEDS = { deadline: "late", budget: "over budget", power: "over power" };

function marks(row, i, found) {
  const own = row.exceeds.map((limit) => EXCEEDS[limit]);
  for (const one of ["recommended", "cheapest", "fastest", "fewest"]) if (found[one] === i) own.push(one);
  return own.join(", ");
}

const daysOf = (days, { low_days: low, high_days: high, reason }) => (days === null ? reason
  : html`${number(days)}<small class="muted">${number(low)}–${number(high)}</small>`);

const COLUMNS = [
  { key: "accelerators", label: "Number", number: true },
  { key: "accelerator", label: "Kind", show: kind },
  { key: "days", label: "Days", title: "and the interval of 80 %", number: true, show: daysOf },
  { key: "low_days", label: "Low days", saved: true },
  { key: "high_days", label: "High days", saved: true },
  { key: "cost_usd", label: "Cost", number: true, show: money },
  { key: "chance_kept", label: "Meets limits", number: true, title: "chance that deadline and budget are met", show: (value) => (value === null ? "–" : chance(value)) },
  { key: "marks", label: "Notable for" },
  { key: "power_watts", label: "kW", title: "power", number: true, show: (value) => number(value === null ? null : value / 1000) },
  { key: "energy_kwh", label: "Energy", number: true, show: energy },
  { key: "mfu", label: "MFU", number: true, show: (value) => percent(value) },
  { key: "memory_headroom", label: "Free", title: "memory of the fullest stage that stays free", number: true, show: share },
  { key: "effective_share", label: "Used", number: true, title: "share of the wall clock that trains; the rest goes to failures and checkpoints", show: (value) => percent(value) },
  { key: "tokens_per_usd", label: "Tokens per $", saved: true },
  { key: "plan", label: "Plan", wraps: true, value: (row) => row.plan && planLine(row.plan) },
];

const FEW = 16; // up to this many clusters, all are shown at first
const SHOWN = { front: "Front", kept: "Within limits", all: "All" };

/* The rows of a sizing under way, which have no plans yet. */
function PartialRows({ rows }) {
  const columns = COLUMNS.filter(({ key, saved }) => !saved && key !== "marks" && key !== "plan");
  const listed = rows.map((row, at) => ({ ...row, at, class: row.exceeds.length || row.reason ? "dim" : "" }));
  return html`
    <section class="card" aria-label="Clusters so far">
      <${DataTable} name="sizing" caption="Clusters so far" columns=${columns} rows=${listed} rowKey=${(row) => row.at} />
    </section>`;
}

function Rows({ found }) {
  const [which, setWhich] = useState(found.rows.length <= FEW ? "all" : "front");
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

function AssumptionList({ found }) {
  return html`
    <details class="card rests-on" open>
      <summary>Assumptions</summary>
      <ul>${found.assumptions.map(({ text }) => html`<li key=${text}>${text}</li>`)}</ul>
      <p class="muted">Every number can be changed in the form.</p>
    </details>`;
}
