/* Which cards fine-tune a model: kinds of card by ways to tune it, at one length of sequence. */

import { html } from "htm/preact";
import { bytes, count, money, number, unit } from "../format.js";
import { units } from "../state.js";
import { choose } from "./fit_query.js";

const fitting = ({ cells }) => Object.values(cells).filter((cell) => cell?.fits);

export function CardsVerdict({ found }) {
  const able = found.rows.filter((row) => fitting(row).length);
  const rates = able.flatMap((row) => Object.values(row.usd_per_million_tokens).map((usd) => ({ usd, name: row.name })));
  const cheapest = rates.sort((a, b) => a.usd - b.usd)[0];
  return html`
    <h2 class="verdict ${able.length ? "" : "none"}"><span>${able.length ? `${able.length} of ${found.rows.length} cards can fine-tune it` : "No card can fine-tune it"}</span></h2>
    <p class="lead">${able.length > 0 && `The smallest is ${able[0].name}.`}${cheapest && ` ${cheapest.name} takes the least money: ${money(cheapest.usd)} for a million tokens.`}</p>
    <p class="muted">Sequences of ${count(found.seq_length)} tokens. Pick a card to see it alone.</p>`;
}

export function Cards({ found }) {
  const methods = Object.keys(found.trainers);
  return html`
    <section class="card" aria-label="Cards by method">
      ${methods.length > 0 && html`<div class="table-scroll data-table" tabindex="0" role="region" aria-label="Cards by method: table">
        <table class="fit-table"><caption>Tokens a second, or memory that is missing</caption>
          <thead><tr><th scope="col">Card</th>${methods.map((method) => html`<th scope="col">${found.titles[method]}</th>`)}<th scope="col">Price</th></tr></thead>
          <tbody>${found.rows.map((row) => html`<${Card} key=${row.accelerator} row=${row} methods=${methods} />`)}</tbody>
        </table>
      </div>`}
      ${Object.entries(found.reasons).map(([method, why]) => html`<p class="muted">${found.titles[method]}: ${why}</p>`)}
    </section>`;
}

function Card({ row, methods }) {
  const price = row.price_usd_per_accelerator_hour;
  return html`<tr>
    <th scope="row"><button type="button" class="link" onClick=${() => choose({ card: row.accelerator, cards: 1, on: undefined })}>${row.name}</button>
      <small class="muted">${bytes(row.capacity_bytes, units.value)}${row.precision === "bf16" ? "" : `, ${row.precision}`}</small></th>
    ${methods.map((method) => html`<td><${Cell} cell=${row.cells[method]} usd=${row.usd_per_million_tokens[method]} /></td>`)}
    <td>${price === null ? html`<span class="muted">none known</span>` : unit(money(price), "an hour")}</td></tr>`;
}

function Cell({ cell, usd }) {
  if (!cell) return html`<span class="muted">no plan</span>`;
  if (!cell.fits) return html`<span class="bad">${bytes(Math.abs(cell.spare_bytes), units.value)} over</span>`;
  return html`${unit(number(cell.tokens_per_s, 4), "tokens/s")}${usd !== undefined && html`<small class="muted">${unit(money(usd), "per million")}</small>`}`;
}
