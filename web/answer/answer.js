/* The answer at the top of the Plan view: the plan, its results, their uncertainty, assumptions. */

import { html } from "htm/preact";
import { bytes, capitalized, chance, clusterLine, count, energy, foldedStages, fullOfCache, layersLine, money, number, percent, planLine, seconds, secondsRange, SPACE, teraflops, times, tokensPerSecond, unit, words } from "../format.js";
import {
  answer, busy, cancel, change, current, failure, fresh, isPinned, open, pick, picked, problems, progress, report, request,
  resolved, searchNow, togglePin, units,
} from "../state.js";
import { PlanPicks } from "./picks.js";
import { PlanEvidence } from "./evidence.js";
import { PublishedRecipe } from "./recipe.js";
import { Icon } from "../ui/icon.js";
import { Progress } from "../ui/progress.js";

export function Answer({ onEdit }) {
  const shown = report.value;
  const found = answer.value;
  return html`
    <section class="answer card" aria-label="Answer" aria-busy=${String(Boolean(busy.value))}>
      <${Searching} />
      <div class="answer-top">
        <p class="request-summary">${requestSummary()}</p>
        <button type="button" class="edit" onClick=${onEdit}>Change</button>
      </div>
      <${Problems} />
      <div role="status" aria-live="polite" class="answer-body ${current.value ? "" : "outdated"}">
        ${shown ? html`<${Headline} shown=${shown} /><${Figures} shown=${shown} />`
          : found?.options ? html`<h2 class="headline none">Mixed cluster</h2><p class="lead">${found.verdict}.</p>`
          : found?.unbuildable ? html`<${Unbuildable} of=${found.unbuildable} />`
          : found ? html`<h2 class="headline none"><${Icon} name="alert" /> Nothing fits</h2>
              <p class="lead">None of ${count(found.counts.enumerated)} plans runs on this cluster within your limits.</p>`
          : busy.value && html`<div class="skeleton" aria-hidden="true"><i></i><i></i><i></i></div>`}
      </div>
      ${shown && html`<${PlanPicks} shown=${shown} />`}
      ${shown && html`<${PublishedRecipe} />`}
      ${shown && html`<${PlanEvidence} shown=${shown} />`}
      ${shown && html`<${SiteLine} shown=${shown} />`}
      ${shown && html`<${Footing} shown=${shown} />`}
    </section>`;
}

/* Shown if the chosen framework cannot run the model: reasons, and other frameworks' best plan. */
function Unbuildable({ of: { title, builds, reasons, able, instead } }) {
  const names = instead ? [instead.framework, ...able.filter((name) => name !== instead.framework)] : able;
  return html`
    <h2 class="headline none"><${Icon} name="alert" /> ${title} cannot ${builds ? "run it as asked" : "build it"}</h2>
    <p class="lead">${reasons.join("; ")}.</p>
    ${names.length > 0
      ? html`<ul class="changes">${names.map((name) => html`<li key=${name}>
          <button type="button" onClick=${() => change("/search/framework", name)}>Plan for ${name}</button>
          ${name === instead?.framework && html`<span class="muted">the fastest: ${planLine(instead.plan.plan)} · ${seconds(instead.plan.iteration_time_s)}</span>`}</li>`)}</ul>`
      : html`<p><button type="button" onClick=${() => change("/search/framework", undefined)}>Plan without a framework</button></p>`}`;
}

const LAST = "The numbers below belong to the last request that was answered.";

/* Why the numbers shown do not match the form, and what to do about it. */
function Problems() {
  const marked = problems.value.length;
  if (!marked && !failure.value) {
    return !busy.value && !fresh.value && html`<div class="notice">
      The search was stopped.${report.value && (current.value ? " This plan is priced for the form as it stands; others may be better." : ` ${LAST}`)}
      ${" "}<button type="button" class="link" onClick=${searchNow}>Search</button></div>`;
  }
  const last = report.value ? ` ${LAST}` : "";
  return html`<div class="notice bad" role="alert">
    ${marked
      ? html`<ul>${problems.value.map((problem) => html`<${ProblemLine} problem=${problem} />`)}</ul>${last}`
      : html`${failure.value.detail ?? failure.value.title}${last} <button type="button" class="link" onClick=${searchNow}>Try again</button>`}
  </div>`;
}

/* A problem with the name of its field, which may be in a collapsed part of the form. */
function ProblemLine({ problem: { pointer, detail, did_you_mean: meant = [] } }) {
  return html`<li>${pointer && html`<b>${words(pointer.slice(1).replaceAll("/", ", "))}</b> `}${detail}
    ${meant.map((name) => html` <button type="button" class="link" onClick=${() => change(pointer, name)}>Use ${name}</button>`)}</li>`;
}

function requestSummary() {
  const known = resolved.value;
  if (!known) return "";
  const { seq_length, global_batch_size, precision } = known.training;
  return `${known.model.name} · ${clusterLine(known.cluster)} · ${count(global_batch_size)} × ${count(seq_length)} tokens · ${precision}`;
}

function Searching() {
  if (!busy.value) return null;
  const told = progress.value;
  const over = told?.total > 0 && told.done >= told.total; // all plans are priced, the best are being explained
  return html`<${Progress} label=${over ? "Explaining" : "Searching"} told=${over ? null : told} noun="plans" onCancel=${busy.value === "search" && cancel}
    more=${told?.best ? `, best so far ${seconds(told.best.iteration_time_s)}` : ""} />`;
}

/* Fields shown as chips: parallel degrees always, the others only if they are not trivial. */
const CHIPS = [
  ["tp", "TP", () => true], ["pp", "PP", () => true], ["dp", "DP", () => true],
  ["cp", "CP", (v) => v > 1], ["ep", "EP", (v) => v > 1], ["etp", "ETP", (v, { ep }) => v > 1 || (ep > 1 && v !== 1)],
  ["vpp", "VPP", (v) => v > 1], ["micro_batch_size", "micro batch", () => true],
  ["zero_stage", "ZeRO", () => true], ["recompute", "recompute", () => true], ["schedule", "schedule", (_, { pp }) => pp > 1],
];

const BEST = { tokens_per_s: "Fastest plan", memory_headroom: "Leanest plan", cost: "Cheapest plan" };

function Headline({ shown }) {
  const best = answer.value?.best;
  const isBest = !picked.value || shown === best; // a picked plan is shown only once it is priced
  const limits = request.value.search ?? {};
  const pinned = isPinned(shown.plan);
  return html`
    <div class="headline">
      <h2>${!shown.fits ? "Does not fit" : isBest ? BEST[request.value.search?.objective ?? "tokens_per_s"] : "Picked plan"}</h2>
      <div class="headline-tools">
        ${!isBest && best && html`<button type="button" onClick=${() => pick(null)}>Back to the best</button>`}
        <button type="button" class="quiet" aria-pressed=${String(pinned)} title="Keep this plan, to compare it with another" onClick=${() => togglePin(shown.plan)}><${Icon} name="pin" />${pinned ? "Pinned" : "Pin"}</button>
      </div>
      <div class="chips">
        ${CHIPS.filter(([name, , says]) => says(shown.plan[name], shown.plan)).map(([name, label]) => {
          const fixed = limits[name] !== undefined;
          const now = shown.plan[name];
          return html`<button key=${name} type="button" class="chip ${fixed ? "fixed" : ""}" aria-pressed=${String(fixed)}
            title=${fixed ? `${words(name)} is fixed; click to search it again` : `Fix ${words(name)} at ${now}`}
            onClick=${() => change(`/search/${name}`, fixed ? undefined : now)}>
            <span>${label}</span> <b>${now}</b>${fixed && html`<${Icon} name="lock" />`}</button>`;
        })}
      </div>
      <${Layers} shown=${shown} />
      ${shown === best && answer.value.fallback && html`<p class="notice" role="note">${answer.value.fallback}.</p>`}
      ${shown === best && answer.value.no_launch && html`<p class="notice" role="note"><b>No framework here can launch this plan.</b> ${answer.value.no_launch}.</p>`}
    </div>`;
}

/* The number of layers of each stage, if they differ. */
function Layers({ shown }) {
  const { plan, layers_per_stage: stages, layers_by_kind: kinds } = shown;
  const folded = plan.pp > 1 ? foldedStages(kinds) : [];
  if (new Set(stages).size === 1 && plan.stage_layers.length === 0 && folded.length === 0) return null;
  const chunks = plan.stage_layers.length > plan.pp;
  return html`
    <div class="stage-layers muted">
      <p>Layers per stage: ${layersLine(stages)}${chunks && ` · per virtual stage: ${layersLine(plan.stage_layers)}`}</p>
      ${folded.length > 0 && html`<${StageKinds} stages=${folded} />`}
    </div>`;
}

const MOST_LINES = 8; // stages shown at first

function StageKinds({ stages }) {
  const line = ({ name, line }) => html`<div key=${name}><dt>${name}</dt><dd>${line}</dd></div>`;
  const rest = stages.slice(MOST_LINES);
  return html`
    <dl aria-label="Layers of each stage by kind">${stages.slice(0, MOST_LINES).map(line)}</dl>
    ${rest.length > 0 && html`<details><summary>More stages</summary><dl>${rest.map(line)}</dl></details>`}`;
}

function Figures({ shown }) {
  const { error_band: band, memory, iteration_time_s: time } = shown;
  const baseline = answer.value?.baseline;
  const off = [band.low_s / time - 1, band.high_s / time - 1];
  const mfu = [shown.mfu / (1 + off[1]), shown.mfu / (1 + off[0])];
  const used = memory.peak_bytes / memory.capacity_bytes;
  const cached = memory.peak_bytes - memory.needed_bytes;
  const givesWay = fullOfCache(memory) ? ` ${bytes(cached, units.value)} of it returnable cache,` : "";
  const speedup = baseline && fresh.value ? baseline.report.iteration_time_s / time : null;
  const trained = shown.days !== null && shown.days !== undefined;
  const figure = (label, main, more, title, below) => html`
    <div class="figure" title=${title}><dt>${label}</dt><dd><${Amount} text=${main} /><span>${more}</span>${below}</dd></div>`;
  return html`
    <dl class="figures">
      ${figure("Per iteration", seconds(time), secondsRange(band.low_s, band.high_s), band.basis)}
      ${figure("Throughput", tokensPerSecond(shown.tokens_per_s), `${tokensPerSecond(shown.tokens_per_s_per_accelerator)} each`)}
      ${figure("Per accelerator", teraflops(shown.model_flop_per_s_per_accelerator), `MFU ${percent(shown.mfu)} (${number(100 * mfu[0], 2)}–${number(100 * mfu[1], 2)})`, shown.definitions.mfu)}
      ${figure(`Peak memory, stage ${memory.worst_stage}`, bytes(memory.peak_bytes, units.value), `of ${bytes(memory.capacity_bytes, units.value)},${givesWay} ${chance(memory.chance_of_running_out)} risk of running out`, `${shown.definitions.peak_bytes}. The risk of running out is ${memory.chance_basis}`, html`<${Meter} used=${used} />`)}
      ${trained
        ? figure("Training", unit(number(shown.days), "days"), [shown.cost_usd !== null && money(shown.cost_usd), shown.energy_kwh !== null && energy(shown.energy_kwh)].filter(Boolean).join(" · "))
        : figure("Training", "–", "needs a number of tokens")}
      ${baseline && figure("Speed-up", times(speedup), "over a hand-made plan", `The hand-made plan: ${baseline.rule}`)}
    </dl>`;
}

/* A large number with a small unit. */
function Amount({ text }) {
  const [amount, ...unitName] = text.split(SPACE);
  return html`<b>${amount}${unitName.length > 0 && html`<small>${SPACE}${unitName.join(SPACE)}</small>`}</b>`;
}

const Meter = ({ used }) => html`
  <i class="meter ${used > 1 ? "over" : used > 0.95 ? "tight" : ""}" role="img" aria-label=${`${Math.round(used * 100)} percent`}>
    <i style=${{ width: `${Math.min(100, used * 100)}%` }}></i></i>`;

/* How the request's site changed this plan's time and the choice of the best plan. */
function SiteLine({ shown }) {
  const note = shown.assumptions.find(({ code }) => code === "site");
  if (!note) return null;
  const { best, replanned: before } = answer.value ?? {};
  const moved = before && shown === best && fresh.value;
  const other = moved && Object.keys(before.differences).length > 0;
  return html`<p class="site-line">${capitalized(note.text)}.
    ${moved && !other && ` With the efficiency profile ${before.usual_profile} the same plan is best, at ${seconds(before.usual_time_s)}.`}
    ${other && html` With the efficiency profile ${before.usual_profile} <button type="button" class="link" onClick=${() => pick(before.plan.plan)}>another plan</button> is best,
      ${percent(before.slower_by, 2)} slower here.`}</p>`;
}

function Footing({ shown }) {
  const found = answer.value;
  const { profile } = found ?? {};
  return html`
    <div class="footing">
      <details><summary>${shown.assumptions.length} assumptions, ${shown.not_modelled.length} not modelled</summary>
        <div class="notes">
          <div><h3>Assumed</h3><ul>${shown.assumptions.map(({ code, text }) => html`<li key=${code}>${text}</li>`)}</ul></div>
          <div><h3>Not modelled</h3><ul>${shown.not_modelled.map(({ code, text }) => html`<li key=${code}>${text}</li>`)}</ul></div>
        </div>
      </details>
      ${profile && html`<span title=${profile.source}>${profile.kind === "calibrated" ? html`<${Icon} name="check" /> Calibrated: ${profile.name}` : `Not calibrated: ${profile.kind.replaceAll(" ", "-")} numbers for ${profile.name}`}</span>`}
      <button type="button" class="link" onClick=${() => open("validate")}>Validate on this machine</button>
      ${found && html`<span class="muted spring">${count(found.counts.enumerated)} plans, ${count(found.counts.feasible)} fit</span>`}
    </div>`;
}
