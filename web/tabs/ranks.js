/* The placement of the displayed plan's ranks, in the order of any framework. */

import { html } from "htm/preact";
import { ChartFrame } from "../charts/frame.js";
import { RankMap, ranksTable } from "../charts/rank_map.js";
import { bytes, count, percent, rate, seconds } from "../format.js";
import { framework, persist, planRequest, units } from "../state.js";
import { DataTable } from "../ui/table.js";
import { Loading, NoPlanNotice, RefusalNotice } from "../ui/notices.js";
import { useCatalog, useQuery } from "../use_query.js";

const order = persist("rank_order_of", null); // a framework; null: that of the displayed plan

export default function RanksTab() {
  const asked = planRequest.value;
  const frameworks = useCatalog("frameworks");
  const current = order.value ?? framework.value ?? frameworks[0]?.id ?? "";
  const { answer, problem, busy } = useQuery(`/v1/ranks?order=${encodeURIComponent(current)}`, current ? asked : null);
  if (!asked) return html`<${NoPlanNotice} />`;
  const tools = html`<label class="inline">Rank order
    <select value=${current} onChange=${({ target }) => { order.value = target.value; }}>
      ${frameworks.map(({ id, title }) => html`<option key=${id} value=${id} selected=${id === current}>${title}</option>`)}
    </select>
  </label>`;
  return html`<div aria-busy=${String(busy)}>
    <${RefusalNotice} problem=${problem} />
    <${Loading} when=${!answer && !problem} />
    ${problem && html`<div class="chart card"><header>${tools}</header></div>`}
    ${answer && !problem && html`
      <${ChartFrame} title="${count(answer.world_size)} ranks on ${count(answer.nodes)} nodes" name="ranks" tools=${tools}
        caption=${caption(answer)} ...${ranksTable(answer)}>
        <${RankMap} answer=${answer} />
      <//>
      <${Traffic} traffic=${answer.traffic} orders=${answer.rank_orders} own=${answer.request.plan.rank_order} />`}
  </div>`;
}

function caption(answer) {
  const axes = answer.axes.filter(({ size }) => size > 1).map(({ name, size }) => `${name} ${size}`);
  return `Rank order of ${answer.framework}, fastest axis first: ${axes.join(", ") || "one rank"}. ${answer.source}`;
}

/* The bytes that each kind of group sends over each network tier in one iteration. */
function Traffic({ traffic, orders, own }) {
  if (traffic.tiers.length === 0) return null;
  const size = (item) => bytes(item, units.value);
  const rows = traffic.groups.flatMap(({ links, ...group }) => links.map((link) => ({ ...group, ...link })));
  const columns = [
    { key: "name", label: "Group" },
    { key: "carries", label: "Carries" },
    { key: "tier", label: "Link" },
    { key: "rank_bytes", label: "Sent per accelerator", number: true, show: size },
    { key: "domain_bytes", label: "Sent per domain", number: true, show: size },
    { key: "line_s", label: "Time at full rate", number: true, show: (item) => seconds(item) },
  ];
  return html`<section class="chart card" aria-labelledby="traffic-title">
    <h3 id="traffic-title">Traffic of one iteration</h3>
    <ul class="muted">
      ${traffic.tiers.map((tier) => html`<li key=${tier.tier}>
        ${tier.tier === traffic.busiest ? html`<strong>${tier.tier}, the busiest</strong>` : tier.tier}:
        ${" "}${size(tier.rank_bytes)} from an accelerator at ${rate(tier.link_bytes_per_s)}, ${percent(tier.busy)} of the iteration
      </li>`)}
    </ul>
    <${DataTable} name="traffic" caption="Traffic by kind of group and tier" columns=${columns} rows=${rows} filter=${false} />
    <${Orders} orders=${orders} own=${own} />
  </section>`;
}

/* The plan's time in other rank orders, if one is faster. */
function Orders({ orders, own }) {
  const mine = orders.find(({ rank_order }) => rank_order === own);
  if (!mine || mine.slower_by === 0) return null;
  const [best] = orders;
  return html`<p>In the rank order <code>${best.rank_order}</code> an iteration takes ${seconds(best.iteration_time_s)}; in this one
    ${" "}${percent(mine.slower_by)} more. Frameworks that can use that order: ${best.frameworks.join(", ") || "no framework"}.</p>`;
}
