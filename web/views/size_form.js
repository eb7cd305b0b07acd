/* The form of the Size view: the request and all its assumptions, each editable. */

import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { count } from "../format.js";
import { Model } from "../form/model.js";
import { Section } from "../form/section.js";
import { change, field } from "../state.js";
import { NumberField, TextField } from "../ui/field.js";
import { changeSizing, refusedAt, sizes, sizing, sizingField } from "./size_query.js";
import { useCatalog } from "../use_query.js";

const bound = (name, more) => ({
  id: `size-${name.replaceAll("/", "-")}`, value: sizingField(name),
  onChange: (value) => changeSizing(name, value), problems: refusedAt(`/sizing/${name}`), ...more,
});
const training = (name, more) => ({
  id: `size-${name}`, value: field(`/training/${name}`),
  onChange: (value) => change(`/training/${name}`, value), problems: refusedAt(`/training/${name}`), ...more,
});

export function SizeForm() {
  const { assumed = {}, request: used } = sizes.answer.value ?? {};
  return html`
    <form class="form" aria-label="What to size" onSubmit=${(event) => event.preventDefault()}>
      <${Model} />
      <${Section} title="Training">
        <${NumberField} ...${training("tokens", { label: "Tokens", title: "of the whole training: 1T, 15e12" })} />
        <div class="two">
          <${NumberField} ...${training("seq_length", { label: "Sequence", length: true })} />
          <${NumberField} ...${training("global_batch_size", { label: "Batch", unit: "seq.", length: true })} />
        </div>
      <//>
      <${Section} title="Limits">
        <${NumberField} ...${bound("deadline_days", { label: "Deadline", unit: "days" })} />
        <${NumberField} ...${bound("budget_usd", { label: "Budget", unit: "$" })} />
        <${NumberField} ...${bound("power_watts", { label: "Power", unit: "kW", scale: 1000, title: "most that the site gives, PUE included" })} />
      <//>
      <${Section} title="Clusters to consider">
        <${Clusters} />
        ${!sizingField("clusters") && html`
          <${Kinds} used=${used?.sizing.accelerators ?? []} />
          <${Sizes} used=${used?.sizing.sizes ?? []} />`}
      <//>
      <${Section} title="Assumptions">
        <${NumberField} ...${bound("failures_per_1000_node_days", { label: "Failures per 1,000 node-days", usual: assumed.failures_per_1000_node_days, title: "of nodes; 0: nothing fails" })} />
        <${NumberField} ...${bound("detect_s", { label: "Failure detection", unit: "s", usual: assumed.detect_s })} />
        <${NumberField} ...${bound("restart_s", { label: "Restart time", unit: "s", usual: assumed.restart_s })} />
        <${NumberField} ...${bound("checkpoint_s", { label: "Checkpoint time", unit: "s", usual: "computed", title: "training stands still for one; empty: computed from the model's size and the host link" })} />
        <${NumberField} ...${bound("pue", { label: "PUE", usual: assumed.pue, title: "power of the site over power of the nodes" })} />
        <${NumberField} ...${bound("critical_batch_size", { label: "Critical batch size", unit: "seq.", length: true, usual: "not considered", title: "sequences at which twice the tokens are needed (arXiv 1812.06162)" })} />
      <//>
    </form>`;
}

/* "256 H100 or 128 B200": compare exactly these clusters instead of every kind in every size. */
function Clusters() {
  const given = sizingField("clusters");
  const split = (text) => text?.split(/,|;|\bor\b|\n/).map((one) => one.trim()).filter(Boolean);
  const problems = (given ?? []).flatMap((_, i) => refusedAt(`/sizing/clusters/${i}`)).map(({ detail, did_you_mean: meant = [] }) => ({
    detail: meant.length ? `${detail}; did you mean ${meant.join(" or ")}?` : detail,
  }));
  return html`<${TextField} id="size-clusters" label="Only these clusters" usual="256 H100 or 128 B200" value=${given?.join(" or ")}
    title="numbers of one kind each; empty: every kind and number chosen below" problems=${[...problems, ...refusedAt("/sizing/clusters")]}
    onChange=${(text) => changeSizing("clusters", split(text))} />`;
}

const PRICE = "prices_usd_per_accelerator_hour";

/* All kinds of the catalog: those of the request first, the others on demand. */
function Kinds({ used }) {
  const known = useCatalog("accelerators");
  const [all, setAll] = useState(false);
  const chosen = sizingField("accelerators") ?? used;
  const [standard] = useState(() => new Set(chosen));
  for (const kind of chosen) standard.add(kind);
  const shown = known.filter(({ id }) => all || standard.has(id));
  const toggle = (id) => {
    const next = known.map((one) => one.id).filter((one) => (one === id) !== chosen.includes(one));
    changeSizing("accelerators", next);
  };
  const prices = new Map((sizes.answer.value?.rows ?? []).map((row) => [row.accelerator, row.price_usd_per_accelerator_hour]));
  const typed = sizing.value[PRICE] ?? {};
  const setPrice = (id, value) => changeSizing(PRICE, { ...typed, [id]: value });
  return html`
    <div class="kinds" role="group" aria-label="Kinds and their price in dollars per accelerator-hour">
      <p class="kinds-head"><span>Accelerator</span><span title="dollars per accelerator-hour; empty: the catalog's">$ per hour</span></p>
      ${shown.map(({ id, spec, price_usd_per_accelerator_hour: price }) => html`
        <div key=${id} class="kind">
          <label><input type="checkbox" checked=${chosen.includes(id)} onChange=${() => toggle(id)} /> ${spec.name}</label>
          <${NumberField} id=${`price-${id}`} label=${`Price of ${spec.name}`} value=${typed[id]} usual=${prices.get(id) ?? price ?? "none known"}
            onChange=${(value) => setPrice(id, value)} problems=${refusedAt(`/sizing/${PRICE}/${id}`)} />
        </div>`)}
      ${refusedAt("/sizing/accelerators").map(({ detail }) => html`<p class="problem" role="alert">${detail}</p>`)}
      <button type="button" class="link" aria-expanded=${String(all)} onClick=${() => setAll(!all)}>${all ? "Fewer kinds" : `All ${known.length} kinds`}</button>
    </div>`;
}

function Sizes({ used }) {
  const chosen = sizingField("sizes") ?? used;
  const [usual] = useState(() => new Set());
  for (const size of used) usual.add(size);
  for (const size of chosen) usual.add(size);
  const toggle = (size) => changeSizing("sizes", chosen.includes(size) ? chosen.filter((one) => one !== size) : [...chosen, size].sort((a, b) => a - b));
  const add = (event) => {
    event.preventDefault();
    const size = Number(event.target.value);
    if (Number.isInteger(size) && size > 0 && !chosen.includes(size)) toggle(size);
    event.target.value = "";
  };
  return html`
    <p class="kinds-head" aria-hidden="true">Cluster sizes</p>
    <div class="sizes" role="group" aria-label="Numbers of accelerators">
      ${[...usual].sort((a, b) => a - b).map((size) => html`
        <button key=${size} type="button" class="chip" aria-pressed=${String(chosen.includes(size))} onClick=${() => toggle(size)}>${count(size)}</button>`)}
      <input class="add-size" inputmode="numeric" aria-label="Add a number of accelerators" placeholder="+ number" onChange=${add} />
      ${refusedAt("/sizing/sizes").map(({ detail }) => html`<p class="problem" role="alert">${detail}</p>`)}
    </div>`;
}
