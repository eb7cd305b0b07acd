/* What fits: ways to fine-tune a model on a card or an instance, by length of sequence. */

import { html } from "htm/preact";
import { useSignalEffect } from "@preact/signals";
import { bytes, count, money, number, unit } from "../format.js";
import { units } from "../state.js";
import { canonical } from "../url.js";
import { CopyButton } from "../ui/copy.js";
import { NumberField, SelectField } from "../ui/field.js";
import { Progress } from "../ui/progress.js";
import { Section } from "../form/section.js";
import { useCatalog } from "../use_query.js";
import { CardsVerdict, Cards } from "./fit_cards.js";
import { EVERY, asked, choose, chosen, fits, ofEvery, query, refusedAt } from "./fit_query.js";

const PAUSE_MS = 300;

export default function Fit() {
  useSignalEffect(() => {
    const [body, one] = [asked.value, query.value];
    if (canonical(body) === one.answered.peek() && !one.failure.peek()) return undefined;
    const timer = setTimeout(() => one.ask(body), one.answer.peek() ? PAUSE_MS : 0);
    return () => { clearTimeout(timer); one.cancel(); };
  });
  const { answer, busy, failure, progress, cancel } = query.value;
  const found = answer.value;
  return html`
    <div class="plan-view">
      <h1 class="for-readers">Fit</h1>
      <div class="form-column"><${FitForm} /></div>
      <div class="results" id="results" tabindex="-1">
        <section class="answer card" aria-label="What fits" aria-busy=${String(busy.value)}>
          ${busy.value
            ? html`<${Progress} label="Trying" noun=${ofEvery.value ? "cards" : "methods"} told=${progress.value} onCancel=${cancel} />`
            : html`<div class="progress" hidden></div>`}
          ${failure.value && html`<div class="notice bad" role="alert">
            ${(failure.value.errors ?? [{ detail: failure.value.detail }]).map(({ detail }) => html`<p>${detail}</p>`)}</div>`}
          <div role="status" aria-live="polite" class="answer-body ${busy.value ? "waiting" : ""}">
            ${found ? html`<${ofEvery.value ? CardsVerdict : Verdict} found=${found} />` : html`<div class="skeleton" aria-hidden="true"><i></i><i></i><i></i></div>`}
          </div>
        </section>
        ${found && html`${ofEvery.value ? html`<${Cards} found=${found} />` : html`<${Methods} found=${found} /><${Commands} found=${found} />`}
          <details class="card rests-on" open><summary>Assumptions</summary>
            <ul>${found.assumptions.map(({ text }) => html`<li key=${text}>${text}</li>`)}</ul></details>`}
      </div>
    </div>`;
}

function FitForm() {
  const models = useCatalog("models");
  const cards = useCatalog("accelerators");
  const nodes = useCatalog("clusters").filter(({ provider }) => provider);
  const { model, card, cards: several, on, tokens, global_batch_size: batch } = chosen.value;
  const hardware = [
    { value: EVERY, label: "Every card, one of each", group: "Compare" },
    ...cards.map(({ id, spec }) => ({ value: id, label: spec.name, group: "Cards" })),
    ...nodes.map(({ id, name, provider }) => ({ value: id, label: name, group: provider })),
  ];
  const pick = (id) => choose(id === EVERY || cards.some((one) => one.id === id) ? { card: id, on: undefined } : { on: id });
  return html`
    <form class="form" aria-label="What to fit" onSubmit=${(event) => event.preventDefault()}>
      <${Section} title="Model">
        <${SelectField} id="fit-model" label="Model" value=${model} options=${models.map(({ id }) => ({ value: id, label: id }))}
          onChange=${(id) => choose({ model: id })} problems=${refusedAt("/model")} />
      <//>
      <${Section} title="On">
        <${SelectField} id="fit-on" label="Card or instance" value=${on ?? card} options=${hardware} onChange=${pick} problems=${refusedAt("/cluster")} />
        ${on === undefined && card !== EVERY && html`<${NumberField} id="fit-cards" label="Cards in the node" value=${several} usual=${1} onChange=${(value) => choose({ cards: value })} />`}
      <//>
      <${Section} title="Training">
        <${NumberField} id="fit-tokens" label="Tokens" title="of the data set, all epochs: 10M" value=${tokens}
          onChange=${(value) => choose({ tokens: value })} problems=${refusedAt("/training/tokens")} />
        <${NumberField} id="fit-batch" label="Batch" unit="seq." length value=${batch} usual=${fits.answer.value?.global_batch_size}
          onChange=${(value) => choose({ global_batch_size: value })} problems=${refusedAt("/training/global_batch_size")} />
      <//>
    </form>`;
}

const cardsOf = ({ accelerator, accelerators }) => `${count(accelerators)} × ${accelerator}`;
const runs = ({ rows }) => rows.filter(({ longest_seq_length: longest }) => longest !== null);

function Verdict({ found }) {
  const able = runs(found).map(({ title, longest_seq_length: longest }) => `${title} up to ${count(longest)} tokens`);
  return html`
    <h2 class="verdict ${able.length ? "" : "none"}"><span>${able.length ? `${able.length} of ${found.rows.length} ways fit on ${cardsOf(found)}` : `Nothing fits on ${cardsOf(found)}`}</span></h2>
    <p class="lead">${able.join(" · ")}</p>
    <p class="muted">${bytes(found.room_bytes, units.value)} may be needed of ${bytes(found.capacity_bytes, units.value)} of a card; the rest is for what estimates miss.</p>`;
}

/* A table of methods by lengths, with a bar of memory in each cell. */
function Methods({ found }) {
  return html`
    <section class="card" aria-label="Methods by length">
      <div class="table-scroll data-table" tabindex="0" role="region" aria-label="Methods by length: table">
        <table class="fit-table"><caption>Tokens of a sequence</caption>
          <thead><tr><th scope="col">Method</th>${found.lengths.map((length) => html`<th scope="col">${count(length)}</th>`)}<th scope="col">Longest</th></tr></thead>
          <tbody>${found.rows.map((row) => html`<${Method} key=${row.method} row=${row} found=${found} />`)}</tbody>
        </table>
      </div>
    </section>`;
}

function Method({ row, found }) {
  const head = html`<th scope="row">${row.title}<small class="muted">${row.trainer_title}</small></th>`;
  if (row.reason) return html`<tr>${head}<td colspan=${found.lengths.length + 1} class="muted">${row.reason}</td></tr>`;
  return html`<tr>${head}${row.cells.map((cell) => html`<td><${Cell} cell=${cell} found=${found} /></td>`)}
    <td>${row.longest_seq_length === null ? html`<span class="muted">${helps(row)}</span>` : count(row.longest_seq_length)}</td></tr>`;
}

const helps = ({ change, host_bytes: host, unmeasured_trainer: unmeasured }) => {
  const ways = host === null ? [] : [`the optimizer in ${bytes(host, units.value)} of host memory`];
  if (unmeasured !== null) ways.push(`${unmeasured}, of which no run is published`);
  if (change) ways.push(Object.entries(change.set).map(([name, value]) => (name === "nodes" ? `${count(value)} such nodes` : `${name} ${value}`)).join(", "));
  return ways.length ? `fits with ${ways.join(", or ")}` : "none";
};

function Cell({ cell, found }) {
  const spare = bytes(Math.abs(cell.spare_bytes), units.value);
  const share = Math.min(cell.needed_bytes / found.room_bytes, 1);
  return html`
    <span class=${cell.fits ? "" : "bad"}>${spare} ${cell.fits ? "free" : "over"}</span>
    <span class="meter ${cell.fits ? "" : "over"}"><i style=${{ width: `${100 * share}%` }}></i></span>
    ${cell.fits && html`<small class="muted">
      ${unit(number(cell.tokens_per_s, 4), "tokens/s")}${cell.largest_micro_batch !== null && html`<br />up to ${count(cell.largest_micro_batch)} seq.`}
      ${cell.hours !== null && html`<br />${unit(number(cell.hours), "h")}${cell.cost_usd !== null && `, ${money(cell.cost_usd)}`}`}</small>`}`;
}

function Commands({ found }) {
  return html`
    <section class="card" aria-label="To run">
      <h3>To run, at the longest of these lengths</h3>
      ${runs(found).map(({ method, title, cells }) => {
        const last = cells.findLast(({ fits: fitting }) => fitting);
        return html`<div key=${method} class="fit-command"><p><b>${title}</b>, ${count(last.seq_length)} tokens${" "}
          <${CopyButton} text=${last.command} label=${`Copy ${title}`} /></p><pre tabindex="0"><code>${last.command}</code></pre></div>`;
      })}
    </section>`;
}
