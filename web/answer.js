/* The answer, first: the plan, what it brings, how sure that is, and what it assumes. */

import { html } from "htm/preact";
import { bytes, count, energy, money, number, percent, seconds, teraflops, times, tokensPerSecond, unit, words } from "./format.js";
import { answer, answered, busy, cancel, change, failure, fresh, open, pick, picked, problems, progress, report, request, resolved, units, isPinned, togglePin } from "./state.js";
import { Icon } from "./ui/icon.js";

export function Answer({ onEdit }) {
  const shown = report.value;
  const found = answer.value;
  return html`
    <section class="answer card" aria-label="Answer" aria-busy=${String(Boolean(busy.value))}>
      <${Progress} />
      <div class="answer-top">
        <p class="asked">${asked()}</p>
        <button type="button" class="edit" onClick=${onEdit}>Change</button>
      </div>
      <div role="status" aria-live="polite" class="answer-body ${busy.value === "search" && !fresh.value ? "waiting" : ""}">
        ${shown ? html`<${Headline} shown=${shown} /><${Figures} shown=${shown} />`
          : found ? html`<h2 class="headline none"><${Icon} name="alert" /> Nothing fits</h2>
              <p class="lead">None of ${count(found.counts.enumerated)} plans runs on this cluster within your limits.</p>`
          : html`<div class="skeleton" aria-hidden="true"><i></i><i></i><i></i></div>`}
      </div>
      ${shown && html`<${Footing} shown=${shown} />`}
    </section>`;
}

function asked() {
  const known = resolved.value;
  if (!known) return "";
  const [group] = known.cluster.groups;
  const { seq_length, global_batch_size, precision } = known.training;
  return `${known.model.name} · ${count(group.nodes * group.accelerators_per_node)} × ${group.accelerator.name} · ${count(global_batch_size)} × ${count(seq_length)} tokens · ${precision}`;
}

function Progress() {
  if (!busy.value) return html`<div class="progress" hidden></div>`;
  const told = progress.value;
  const share = told?.total ? told.done / told.total : null;
  return html`
    <div class="progress ${share === null ? "unknown" : ""}" role="progressbar" aria-label="Search"
      aria-valuenow=${share === null ? undefined : Math.round(share * 100)}>
      <i style=${{ transform: `scaleX(${share ?? 1})` }}></i>
    </div>
    ${busy.value === "search" && html`<div class="progress-text">
      <span>${told?.total ? `${count(told.done)} of ${count(told.total)} plans` : "Searching"}</span>
      <button type="button" class="link" onClick=${cancel}>Cancel</button></div>`}`;
}

/* Fields worth a chip: those that split the work always, the others where they say something. */
const CHIPS = [
  ["tp", "TP", () => true], ["pp", "PP", () => true], ["dp", "DP", () => true],
  ["cp", "CP", (v) => v > 1], ["ep", "EP", (v) => v > 1], ["etp", "ETP", (v, { ep }) => v > 1 || (ep > 1 && v !== 1)],
  ["vpp", "VPP", (v) => v > 1], ["micro_batch_size", "micro batch", () => true],
  ["zero_stage", "ZeRO", () => true], ["recompute", "recompute", () => true], ["schedule", "schedule", (_, { pp }) => pp > 1],
];

function Headline({ shown }) {
  const best = answer.value?.best;
  const isBest = !picked.value;
  const limits = request.value.search ?? {};
  const pinned = isPinned(shown.plan);
  return html`
    <div class="headline">
      <h2>${!shown.fits ? "Does not fit" : isBest ? "Fastest plan" : "Picked plan"}</h2>
      <div class="chips">
        ${CHIPS.filter(([name, , says]) => says(shown.plan[name], shown.plan)).map(([name, label]) => {
          const fixed = limits[name] !== undefined;
          const now = shown.plan[name];
          return html`<button key=${name} type="button" class="chip ${fixed ? "fixed" : ""}" aria-pressed=${String(fixed)}
            title=${fixed ? `${words(name)} is bound; click to free it` : `Keep ${words(name)} at ${now}`}
            onClick=${() => change(`/search/${name}`, fixed ? undefined : now)}>
            <span>${label}</span> <b>${now}</b>${fixed && html`<${Icon} name="lock" />`}</button>`;
        })}
      </div>
      <span class="spring"></span>
      <div class="headline-tools">
        ${!isBest && best && html`<button type="button" onClick=${() => pick(null)}>Back to the fastest</button>`}
        <button type="button" aria-pressed=${String(pinned)} onClick=${() => togglePin(shown.plan)}><${Icon} name="pin" />${pinned ? "Pinned" : "Pin"}</button>
      </div>
    </div>`;
}

function Figures({ shown }) {
  const { error_band: band, memory, iteration_time_s: time } = shown;
  const best = answer.value?.best;
  const baseline = answer.value?.baseline;
  const off = [band.low_s / time - 1, band.high_s / time - 1];
  const mfu = [shown.mfu / (1 + off[1]), shown.mfu / (1 + off[0])];
  const used = memory.peak_bytes / memory.capacity_bytes;
  const speedup = baseline && baseline.report.iteration_time_s / time;
  const trained = shown.days !== null && shown.days !== undefined;
  const figure = (label, main, more, title) => html`
    <div class="figure" title=${title}><dt>${label}</dt><dd><b>${main}</b><span>${more}</span></dd></div>`;
  return html`
    <dl class="figures">
      ${figure("Per iteration", seconds(time), `${number(band.low_s)} – ${seconds(band.high_s)}`, band.basis)}
      ${figure("Throughput", tokensPerSecond(shown.tokens_per_s), `${tokensPerSecond(shown.tokens_per_s_per_accelerator)} each`)}
      ${figure("Per accelerator", teraflops(shown.model_flop_per_s_per_accelerator), `MFU ${percent(shown.mfu)} (${number(100 * mfu[0], 2)} – ${number(100 * mfu[1], 2)})`, shown.definitions.mfu)}
      <div class="figure" title=${shown.definitions.peak_bytes}><dt>Stage ${memory.worst_stage}, the fullest</dt>
        <dd><b>${bytes(memory.peak_bytes, units.value)}</b><span>of ${bytes(memory.capacity_bytes, units.value)}</span>
        <i class="meter ${used > 1 ? "over" : used > 0.95 ? "tight" : ""}" role="img" aria-label=${`${Math.round(used * 100)} percent`}><i style=${{ width: `${Math.min(100, used * 100)}%` }}></i></i></dd></div>
      ${trained
        ? figure("Training", unit(number(shown.days), "days"), [shown.cost_usd !== null && money(shown.cost_usd), shown.energy_kwh !== null && energy(shown.energy_kwh)].filter(Boolean).join(" · "))
        : figure("Training", "–", "say how many tokens")}
      ${speedup && figure("Against a careful hand", times(speedup), shown === best || speedup >= 1 ? "as fast" : "as fast: slower", `A careful hand: ${baseline.rule}`)}
    </dl>`;
}

function Footing({ shown }) {
  const found = answer.value;
  const { profile } = found ?? {};
  const launch = found?.launch;
  return html`
    <div class="footing">
      <details><summary>${shown.assumptions.length} assumptions, ${shown.not_modelled.length} not modelled</summary>
        <div class="notes">
          <div><h4>Assumed</h4><ul>${shown.assumptions.map(({ code, text }) => html`<li key=${code}>${text}</li>`)}</ul></div>
          <div><h4>Not modelled</h4><ul>${shown.not_modelled.map(({ code, text }) => html`<li key=${code}>${text}</li>`)}</ul></div>
        </div>
      </details>
      ${profile && html`<span title=${profile.source}>${profile.kind === "calibrated" ? html`<${Icon} name="check" /> Calibrated: ${profile.name}` : `Not calibrated: ${profile.kind} numbers for ${profile.name}`}</span>`}
      <button type="button" class="link" onClick=${() => open("validate")}>Validate on this machine</button>
      ${found && html`<span class="muted spring">${count(found.counts.enumerated)} plans, ${count(found.counts.feasible)} fit</span>`}
    </div>`;
}
