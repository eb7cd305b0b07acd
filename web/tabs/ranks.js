/* Which rank of the plan on show sits where, in the order of any framework. */

import { html } from "htm/preact";
import { ChartFrame } from "../charts/frame.js";
import { RankMap, ranksTable } from "../charts/rank_map.js";
import { count } from "../format.js";
import { persist, question } from "../state.js";
import { NoPlan, Trouble, useAsked, useCatalog } from "./asked.js";

const order = persist("rank_order_of", null); // a framework; null: the request's own

export default function RanksTab() {
  const asked = question.value;
  const frameworks = useCatalog("frameworks");
  const current = order.value ?? asked?.search?.framework ?? "megatron";
  const { answer, problem, busy } = useAsked(`/v1/ranks?order=${encodeURIComponent(current)}`, asked);
  if (!asked) return html`<${NoPlan} />`;
  const tools = html`<label class="inline">Rank order
    <select value=${current} onChange=${({ target }) => { order.value = target.value; }}>
      ${frameworks.map(({ id, title }) => html`<option key=${id} value=${id} selected=${id === current}>${title}</option>`)}
    </select>
  </label>`;
  return html`<div aria-busy=${String(busy)}>
    <${Trouble} problem=${problem} />
    ${problem && html`<div class="chart card"><header>${tools}</header></div>`}
    ${answer && !problem && html`
      <${ChartFrame} title="${count(answer.world_size)} ranks on ${count(answer.nodes)} nodes" name="ranks" tools=${tools}
        caption=${caption(answer)} ...${ranksTable(answer)}>
        <${RankMap} answer=${answer} />
      <//>`}
  </div>`;
}

function caption(answer) {
  const axes = answer.axes.filter(({ size }) => size > 1).map(({ name, size }) => `${name} ${size}`);
  return `Rank order of ${answer.framework}, fastest axis first: ${axes.join(", ") || "one rank"}. ${answer.source}`;
}
