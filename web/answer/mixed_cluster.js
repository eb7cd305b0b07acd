/* A cluster with several kinds of nodes: the ways to use it, fastest first. */

import { html } from "htm/preact";
import { money, number, planLine, seconds, tokensPerSecond } from "../format.js";
import { answer } from "../state.js";
import { DataTable } from "../ui/table.js";

/* An option in words; its `order` holds indices into `groups`, the kinds of nodes. */
function way({ kind, order }, groups) {
  const names = order.map((i) => groups[i].accelerator);
  if (kind === "part") return `Only the ${names[0]} nodes`;
  return kind === "slowest" ? "All nodes, each treated as the slowest" : `One pipeline: ${names.join(", then ")}`;
}

const columns = (groups) => [
  { key: "kind", label: "Option", value: (option) => way(option, groups) },
  { key: "accelerators", label: "Accelerators", number: true },
  { key: "iteration_time_s", label: "Iteration", number: true, show: (value) => seconds(value) },
  { key: "tokens_per_s", label: "Throughput", number: true, show: (value) => tokensPerSecond(value) },
  { key: "days", label: "Days", number: true, show: (value) => number(value) },
  { key: "cost_usd", label: "Cost", number: true, show: (value) => money(value) },
  { key: "plan", label: "Plan", value: ({ plan }) => planLine(plan) },
];

export function MixedCluster() {
  const { groups, options, notes } = answer.value;
  return html`
    <section class="card stack" aria-label="Ways to use a mixed cluster">
      <${DataTable} name="mixed" caption="Ways to use this cluster" columns=${columns(groups)} rows=${options} filter=${false} />
      <ul class="muted">${notes.map(({ code, text }) => html`<li key=${code}>${text}</li>`)}</ul>
    </section>`;
}
