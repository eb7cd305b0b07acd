/* The contents of a layer: its kernels, saved tensors, and exposed communication. */

import { html } from "htm/preact";
import { signal, useSignalEffect } from "@preact/signals";
import { post } from "../api.js";
import { timeParts } from "../charts/palette.js";
import { ChartFrame } from "../charts/frame.js";
import { bytes, count, flops, percent, rate, seconds, teraflops } from "../format.js";
import { planRequest, units } from "../state.js";
import { DataTable } from "../ui/table.js";

const PAUSE_MS = 300;
const found = signal(null);
const failure = signal(null);

async function look(asked, aborted) {
  try {
    found.value = await post("/v1/layers", asked, { signal: aborted });
    failure.value = null;
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!error.problem) throw error;
    failure.value = error.problem;
  }
}

export default function LayersTab() {
  useSignalEffect(() => {
    const asked = planRequest.value;
    if (!asked) return undefined;
    const aborter = new AbortController();
    const timer = setTimeout(() => look(asked, aborter.signal), found.peek() ? PAUSE_MS : 0);
    return () => { clearTimeout(timer); aborter.abort(); };
  });
  if (failure.value) return html`<p class="notice bad" role="alert">${failure.value.errors?.map(({ detail }) => detail).join("; ") ?? failure.value.detail}</p>`;
  if (!found.value) return html`<div class="loading" aria-busy="true"></div>`;
  const { layers, exchanges, num_micro_batches: many, profile } = found.value;
  return html`
    <div class="layers-tab stack">
      ${exchanges.length > 0 && html`<${Exchanges} rows=${exchanges} />`}
      ${layers.map((table) => html`<${Layer} key=${table.kind} table=${table} one=${layers.length === 1} many=${many} profile=${profile} />`)}
    </div>`;
}

const label = (part) => timeParts.find(({ key }) => key === part)?.label ?? part;
const EXCHANGES = [
  { key: "part", label: "Exchange", show: label },
  { key: "total_s", label: "In all", title: "one transfer after the other", number: true, show: (v) => seconds(v) },
  { key: "exposed_s", label: "Exposed", number: true, show: (v) => seconds(v) },
  { key: "recomputed_s", label: "Exposed in recompute", number: true, show: (v) => seconds(v) },
  { key: "hidden_s", label: "Hidden", title: "under kernels", number: true, show: (v) => seconds(v) },
];

/* Exposed and hidden communication as two parts of a bar. */
function Exchanges({ rows }) {
  const most = Math.max(...rows.map(({ total_s: total }) => total));
  return html`
    <${ChartFrame} title="Communication of one iteration, exposed and hidden" name="exchanges" columns=${EXCHANGES} rows=${rows}
      caption="The busiest rank. Solid: exposed, adds to the iteration time. Hatched: hidden, runs at the same time as kernels.">
      <ul class="exchanges">${rows.map(({ part, total_s: total, exposed_s: exposed, hidden_s: hidden, recomputed_s: again }) => html`
        <li key=${part}>
          <span>${label(part)}</span>
          <span class="exchange-bar" role="img" aria-label=${`${label(part)}: ${seconds(exposed)} exposed, ${seconds(hidden)} hidden`}>
            <i class="exposed" style=${{ width: `${(100 * exposed) / most}%`, background: `var(--part-${part.replace("_", "-")})` }}></i>
            <i class="hidden-part" style=${{ width: `${(100 * hidden) / most}%` }}></i></span>
          <span class="number">${seconds(exposed)} exposed${again > 0 ? `, ${seconds(again)} in recompute` : ""}</span>
          <span class="number muted">${hidden > 0 ? `${seconds(hidden)} hidden` : "none hidden"}</span>
        </li>`)}</ul>
    <//>`;
}

const RATE = (row) => (row.forward_bytes ? rate(row.rate) : teraflops(row.rate));
const KERNELS = [
  { key: "kernel", label: "Kernel", show: (name, row) => html`${name}${row.recomputed ? html` <span class="badge" title="run again before the backward pass">again</span>` : ""}` },
  { key: "shape", label: "Shape", wraps: true, show: (text) => html`<code>${text.replaceAll(" x ", " × ")}</code>` },
  { key: "formula", label: "Formula", wraps: true, show: (text) => html`<span class="muted">${text}</span>` },
  { key: "forward_s", label: "Forward", number: true, show: (v) => seconds(v) },
  { key: "backward_s", label: "Backward", number: true, show: (v) => seconds(v) },
  { key: "work", label: "Work", number: true, value: (row) => row.forward_flop || row.forward_bytes, show: (_, row) => (row.forward_bytes ? bytes(row.forward_bytes, units.value) : flops(row.forward_flop).replace("/s", "")) },
  { key: "rate", label: "Rate", number: true, show: (_, row) => RATE(row) },
  { key: "share", label: "Of peak", number: true, show: (v) => percent(v) },
  { key: "source", label: "Source", show: (text) => html`<span class="source" title=${text}>${text}</span>` },
];
const tensors = (units) => [
  { key: "tensor", label: "Saved tensor" },
  { key: "shape", label: "Elements", show: (text) => html`<code>${text.replaceAll(" x ", " × ")}</code>` },
  { key: "bytes", label: "Size", number: true, show: (v) => bytes(v, units) },
  { key: "kept_bytes", label: "Kept", title: "what recompute leaves", number: true, show: (v) => (v ? bytes(v, units) : "recomputed") },
  { key: "dropped_by", label: "Dropped by recompute of", value: (row) => row.dropped_by.join(", ") || "full only" },
];

function Layer({ table, one, many, profile }) {
  const sources = new Set(table.kernels.map(({ source }) => source));
  const columns = KERNELS.map((column) => ({ ...column, saved: column.key === "source" && sources.size === 1 }));
  const total = (key) => table.kernels.reduce((sum, row) => sum + row[key], 0);
  return html`
    <section aria-label=${`Layers of kind ${table.kind}`}>
      <h3>${one ? "One layer" : table.kind} <span class="muted">${count(table.layers)} in the model, ${count(many)} micro-batches per iteration</span></h3>
      <p class="muted">Kernels take ${seconds(total("forward_s"))} forward and ${seconds(total("backward_s"))} backward on one rank, at the rates of ${profile}. Each micro-batch keeps ${bytes(table.kept_bytes, units.value)} of activations.</p>
      ${sources.size === 1 && html`<p class="muted">Source of the rates: ${[...sources][0]}</p>`}
      <${DataTable} name="kernels" caption=${`Kernels of ${table.kind}`} columns=${columns} rows=${table.kernels} filter=${false} />
      <${DataTable} name="saved-tensors" caption=${`Tensors saved by ${table.kind}`} columns=${tensors(units.value)} rows=${table.tensors} filter=${false} />
    </section>`;
}
