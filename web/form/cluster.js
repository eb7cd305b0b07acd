/* The cluster: a preset, a cloud instance, or an accelerator with its node; links, memory, price. */

import { html } from "htm/preact";
import { bytes, BYTE_UNITS, rate } from "../format.js";
import { change, problemsAt, request, resolved, unfolded, units } from "../state.js";
import { Bound, Field, NumberField, SelectField } from "../ui/field.js";
import { Icon } from "../ui/icon.js";
import { SchemaFields } from "./schema.js";
import { More, sameSpec, Section } from "./section.js";
import { Site } from "./site.js";
import { useCatalog } from "../use_query.js";

/* A cluster of equal nodes, from any of its forms, as an object with editable fields. */
function expanded(cluster, accelerators) {
  if (cluster.groups?.length !== 1) return unfolded(cluster);
  const { groups: [{ accelerator, ...node }], ...site } = cluster;
  const known = accelerators.find(({ spec }) => sameSpec(spec, accelerator));
  return { ...site, ...node, accelerator: known?.id ?? accelerator };
}

export function Cluster() {
  const accelerators = useCatalog("accelerators");
  const presets = useCatalog("clusters");
  const cluster = expanded(request.value.cluster, accelerators);
  const group = resolved.value?.cluster.groups[0];
  const set = (name, value) => {
    const { [name]: _, ...others } = typeof cluster === "string" ? {} : cluster;
    change("/cluster", value === undefined ? others : { ...others, [name]: value });
  };
  const choose = (id) => {
    const entry = accelerators.find((one) => one.id === id);
    const nodes = cluster.nodes ?? group?.nodes ?? 1;
    change("/cluster", entry
      ? { accelerator: id, nodes, accelerators_per_node: entry.accelerators_per_node }
      : { preset: id, nodes });
  };
  /* Editing a field of the accelerator makes it and its node custom. */
  const edit = (name, value) => change("/cluster", { ...group, ...cluster, preset: undefined, accelerator: { ...group.accelerator, ...cluster?.accelerator?.id && cluster.accelerator, [name]: value, confidence: "user" } });
  const chosen = cluster?.accelerator?.id ?? cluster?.accelerator ?? cluster?.preset ?? (typeof cluster === "string" ? cluster : group?.accelerator.id);
  const listed = presets.filter(({ id, provider }) => !provider || id === chosen);
  const options = [
    ...listed.map(({ id, name, provider }) => ({ value: id, label: name, group: provider || "Clusters" })),
    ...accelerators.map(({ id, spec }) => ({ value: id, label: spec.name, group: spec.vendor || "Accelerators" })),
  ];
  const own = (name, of, props) => html`<${of} id=${`f-cluster-${name}`} value=${cluster?.[name]} usual=${group?.[name]}
    onChange=${(value) => set(name, value)} problems=${problemsAt(`/cluster/${name}`)} ...${props} />`;
  const size = BYTE_UNITS[units.value];
  if (cluster?.groups?.length > 1) return html`<${MixedCluster} cluster=${cluster} accelerators=${accelerators} />`;
  const mix = () => {
    const { accelerator, nodes, accelerators_per_node: each } = { ...group, ...cluster };
    const first = { accelerator: accelerator.id ?? accelerator, nodes, accelerators_per_node: each };
    const other = accelerators.find(({ id }) => id !== first.accelerator && id.startsWith("a100")) ?? accelerators[0];
    change("/cluster", { groups: [first, { accelerator: other.id, nodes }] });
  };
  return html`
    <${Section} title="Cluster" problems=${problemsAt("/cluster")} onFix=${(name) => change("/cluster", name)}>
      <${SelectField} id="f-cluster-kind" label="Accelerator" value=${chosen}
        options=${options} onChange=${choose} problems=${[...problemsAt("/cluster/accelerator"), ...problemsAt("/cluster/preset")]} />
      <${Instances} presets=${presets} onChoose=${choose} />
      <div class="two">
        ${own("nodes", NumberField, { label: "Nodes" })}
        ${own("accelerators_per_node", NumberField, { label: "Per node" })}
      </div>
      ${group && html`<p class="hint">${bytes(group.accelerator.memory_bytes, units.value)} each · ${group.network.map((tier) => `${tier.name} ${rate(tier.bandwidth_bytes_per_s)}`).join(" · ")}</p>`}
      <${Site} />
      <${More} label="Links, memory, price">
        <div class="dense">
          ${(group?.network ?? []).map((tier, i) => html`<${Tier} key=${i} tier=${tier} i=${i} network=${group.network} onChange=${(value) => set("network", value)} />`)}
          ${own("reserved_bytes_per_accelerator", NumberField, { label: "Memory reserved", unit: units.value, scale: size, usual: undefined, title: "Instead of the computed fragmentation, CUDA context and NCCL buffers; empty: computed" })}
          ${own("price_usd_per_accelerator_hour", NumberField, { label: "Price per hour", unit: "$ each" })}
          ${own("node_power_watts", NumberField, { label: "Power of a node", unit: "kW", scale: 1000 })}
          <${Bound} pointer="/cluster/pue" of=${NumberField} label="PUE of the site" />
        </div>
      <//>
      ${group && html`<${More} label="The accelerator itself">
        <div class="dense"><${SchemaFields} type="AcceleratorSpec" pointer="/cluster/accelerator" skip=${["id", "vendor", "efficiency_profile", "confidence"]}
          value=${cluster?.accelerator?.id ? cluster.accelerator : undefined} usual=${group.accelerator} onChange=${edit} /></div>
      <//>`}
      ${group && accelerators.length > 0 && html`<button type="button" class="link" onClick=${mix}>Add another kind of node</button>`}
    <//>`;
}

/* Nodes of cloud providers: the browser lists those whose name or parts have the typed text. */
function Instances({ presets, onChoose }) {
  const instances = presets.filter(({ provider }) => provider).map(({ id, name, provider }) => ({ id, provider, name, spelled: name.split(":")[0] }));
  const typed = ({ target }) => {
    const found = instances.find(({ id }) => id === target.value.trim().toLowerCase());
    if (found) onChoose(found.id);
  };
  return html`
    <${Field} id="f-cluster-instance" label="Cloud instance" title="A provider's name for a node; type a part of it, or of its accelerator">
      <input id="f-cluster-instance" list="cloud-instances" type="text" autocomplete="off" spellcheck=${false} placeholder="p5.48xlarge" onInput=${typed} />
      <datalist id="cloud-instances">${instances.map(({ id, spelled, provider, name }) => html`<option key=${id} value=${spelled} label=${`${provider} ${name}`} />`)}</datalist>
    <//>`;
}

/* A cluster with several kinds of nodes: the accelerator and number of each kind. */
function MixedCluster({ cluster, accelerators }) {
  const { groups, ...site } = cluster;
  const options = accelerators.map(({ id, spec }) => ({ value: id, label: spec.name, group: spec.vendor }));
  const put = (list) => change("/cluster", list.length > 1 ? { ...site, groups: list } : { ...site, ...list[0] });
  const edit = (i, fields) => put(groups.map((group, at) => (at === i ? { ...group, ...fields } : group)));
  const at = (i, name) => ({ id: `f-group-${i}-${name}`, problems: problemsAt(`/cluster/groups/${i}/${name}`) });
  return html`
    <${Section} title="Cluster" problems=${[...problemsAt("/cluster"), ...problemsAt("/cluster/groups")]}>
      ${groups.map(({ accelerator, nodes }, i) => html`
        <div key=${i} class="node-kind">
          <${SelectField} ...${at(i, "accelerator")} label=${`Kind ${i + 1}`} value=${accelerator?.id ?? accelerator} options=${options}
            onChange=${(id) => put(groups.map((group, k) => (k === i ? { accelerator: id, nodes } : group)))} />
          <${NumberField} ...${at(i, "nodes")} label="Nodes" value=${nodes} onChange=${(value) => edit(i, { nodes: value })} />
          <button type="button" class="quiet square" aria-label=${`Remove kind ${i + 1}`} onClick=${() => put(groups.filter((_, k) => k !== i))}><${Icon} name="close" /></button>
        </div>`)}
      <button type="button" class="link" onClick=${() => put([...groups, { accelerator: accelerators[0].id, nodes: 1 }])}>Add another kind of node</button>
      ${request.value.site && html`<${Site} />`}
    <//>`;
}

function Tier({ tier, i, network, onChange }) {
  const edit = (name) => (value) => onChange(network.map((one, at) => (at === i ? { ...one, [name]: value } : one)));
  const pointer = `/cluster/network/${i}`;
  const box = (name, label, unit, scale) => html`<${NumberField} id=${`f-tier-${i}-${name}`} label=${label} unit=${unit} scale=${scale}
    value=${tier[name]} onChange=${edit(name)} problems=${problemsAt(`${pointer}/${name}`)} />`;
  return html`
    <fieldset class="inner"><legend>${tier.name}${tier.domain_accelerators ? `, ${tier.domain_accelerators} accelerators` : ""}</legend>
      ${box("bandwidth_bytes_per_s", "Bandwidth", "GB/s", 1e9)}
      ${box("latency_s", "Latency", "µs", 1e-6)}
      ${tier.domain_accelerators !== 1 && box("collective_wait_s", "Wait of a collective's step", "µs", 1e-6)}
      ${tier.domain_accelerators !== 1 && box("oversubscription", "Oversubscription", ": 1")}
    </fieldset>`;
}
