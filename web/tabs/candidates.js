/* All evaluated plans in a table: sort, filter, download, pick and pin. */

import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { call, download } from "../api.js";
import { timeParts } from "../charts/palette.js";
import { bytes, chance, count, fieldLabel, seconds, tokensPerSecond, value } from "../format.js";
import { answer, isPinned, persist, pick, report, togglePin, units } from "../state.js";
import { canonical } from "../url.js";
import { Icon } from "../ui/icon.js";
import { DataTable } from "../ui/table.js";
import { toast } from "../ui/toast.js";
import { RefusalNotice } from "../ui/notices.js";

const PAGE = 200;
const DEGREES = ["tp", "pp", "dp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage", "recompute"];
const SETS = {
  degrees: { label: "Degrees", fields: DEGREES },
  memory: {
    label: "Memory",
    fields: ["tp", "pp", "dp", "zero_stage", "dp_shard", "reshard_after_forward", "recompute", "recompute_modules",
      "recompute_num_layers", "recompute_layers", "offload_optimizer", "offload_activations", "offload_num_layers"],
  },
  pipeline: {
    label: "Pipeline",
    fields: ["pp", "vpp", "schedule", "micro_batch_size", "first_stage_layers", "last_stage_layers", "stage_layers"],
  },
  overlap: {
    label: "Overlap",
    fields: ["tp", "sequence_parallel", "dp", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p", "overlap_ep", "cp_kind", "dynamic_cp", "rank_order"],
  },
  time: {
    label: "Time",
    fields: ["tp", "pp", "dp", "forward_s", "backward_s", "recompute_s", "tp_comm_s", "cp_comm_s", "ep_comm_s", "pp_comm_s", "dp_comm_s", "bubble_s"],
  },
  all: { label: "All fields", fields: null },
};
const ORDERS = { "-tokens_per_s": "fastest", peak_bytes: "least memory", bubble_s: "smallest bubble", tp_comm_s: "least TP communication" };
const set = persist("columns", "degrees");
const status = persist("candidates", "feasible");
const order = persist("order", "-tokens_per_s");

const TIMES = Object.fromEntries(timeParts.map(({ key, label }) => [`${key}_s`, label]));

const planOf = (row, fields) => Object.fromEntries(fields.filter((name) => name in row).map((name) => [name, row[name]]));

/* A full report as a row of candidates. */
function light({ plan, memory, tokens_per_s, iteration_time_s, time_parts_s }) {
  const parts = Object.fromEntries(Object.entries(time_parts_s).map(([part, s]) => [`${part}_s`, s]));
  return { ...plan, ...parts, tokens_per_s, iteration_time_s, peak_bytes: memory.peak_bytes };
}

/* The candidates of an answer, loaded in pages; without an id, only the plans in the answer. */
function useCandidates(found) {
  const [state, setState] = useState({ rows: [], next: null });
  const path = found?.id && `/v1/plans/${found.id}/candidates?status=${status.value}&sort=${order.value}&limit=${PAGE}`;
  const load = async (cursor, rows, leave) => {
    try {
      const page = await call(`${path}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`, { signal: leave?.signal });
      setState({ path, rows: [...rows, ...page.rows], next: page.next, total: page.total, listed: page.listed });
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!error.problem) throw error;
      setState({ path, rows, next: null, problem: error.problem });
    }
  };
  useEffect(() => {
    if (!path) return undefined;
    const leave = new AbortController();
    load(null, [], leave);
    return () => leave.abort();
  }, [path]);
  if (!path) return { rows: found?.plans.map(light) ?? [], next: null };
  const busy = state.path !== path;
  const known = busy && !state.rows.length ? found.plans.map(light) : state.rows;
  return { ...state, rows: known, busy, more: () => load(state.next, state.rows), path };
}

export default function CandidatesTab() {
  const found = answer.value;
  const { rows, next, problem, busy, more, path, total, listed } = useCandidates(found);
  if (!found) return html`<div class="loading" aria-busy="true"></div>`;
  const fields = Object.keys(report.value?.plan ?? found.nearest?.[0]?.plan ?? {});
  const shown = (SETS[set.value] ?? SETS.degrees).fields ?? fields;
  const plan = (row) => planOf(row, fields);
  const rivals = rivalsOf(found);
  const table = rows.map((row, i) => ({ ...row, place: i + 1, ...rivals.get(canonical(plan(row))) }));
  const current = canonical(report.value?.plan ?? {});
  const csv = async () => {
    try {
      const text = await call(path.replace(/limit=\d+/, "limit=10000"), { accept: "text/csv" });
      download(`candidates-${status.value}.csv`, text, "text/csv");
    } catch (error) {
      toast(error.message, { kind: "bad" });
    }
  };
  const actions = html`
    <label class="inline">Columns
      <select value=${set.value} onChange=${({ target }) => { set.value = target.value; }}>
        ${Object.entries(SETS).map(([key, { label }]) => html`<option key=${key} value=${key} selected=${key === set.value}>${label}</option>`)}
      </select>
    </label>
    ${path && html`<label class="inline">Sort by
      <select value=${order.value} onChange=${({ target }) => { order.value = target.value; }}>
        ${Object.entries(ORDERS).map(([key, label]) => html`<option key=${key} value=${key} selected=${key === order.value}>${label}</option>`)}
      </select>
    </label>
    <button type="button" onClick=${csv}><${Icon} name="download" /> All as CSV</button>`}`;
  return html`<div class="candidates-tab" aria-busy=${String(Boolean(busy))}>
    <div class="table-tools">
      <p class="muted">
        ${count(found.counts.enumerated)} combinations, ${count(found.counts.dominated)} of them dominated by another plan;
        ${" "}${count(found.counts.costed)} evaluated, ${count(found.counts.feasible)} fit.
      </p>
      <span class="spring"></span>
      ${busy && html`<span role="status">Searching …</span>`}
      ${path && html`<fieldset class="radios"><legend class="for-readers">Which candidates</legend>
        ${[["feasible", "Fit"], ["memory", "Out of memory, or likely to be"]].map(([key, label]) => html`
          <label key=${key}><input type="radio" name="candidates" value=${key} checked=${status.value === key}
            onChange=${() => { status.value = key; }} /> ${label}</label>`)}
      </fieldset>`}
    </div>
    <${RefusalNotice} problem=${problem} />
    <${DataTable} name=${path ? undefined : "candidates"} caption="Candidates" rows=${table} columns=${columns(shown, plan, report.value?.plan)}
      rowKey=${(row) => row.place} actions=${actions} filter limit=${PAGE}
      onRow=${(row) => pick(plan(row))} isCurrent=${(row) => canonical(plan(row)) === current} />
    ${next && html`<p class="table-tools">
      <button type="button" disabled=${busy} onClick=${more}><${Icon} name="plus" /> Load ${PAGE} more</button>
      <span class="muted">${count(rows.length)} of ${count(total)}${listed < total ? `; the first ${count(listed)} can be listed` : ""}</span>
    </p>`}
  </div>`;
}

/* By plan: its chance to be the fastest contender, and whether it is tied with the best. */
function rivalsOf({ contenders = [], best_expected: expected, measure_next: telling }) {
  return new Map(contenders.map(({ id, plan, chance_best, tie }) => [canonical(plan), { chance_best, tie, is_expected: id === expected, tells: id === telling?.id && 1 - telling.left }]));
}

const same = (a, b) => canonical(a ?? null) === canonical(b ?? null);

/* The columns; values that differ from the displayed plan are highlighted. */
function columns(fields, plan, current) {
  const numeric = new Set(["tp", "pp", "dp", "cp", "ep", "etp", "vpp", "micro_batch_size", "zero_stage", "dp_shard", "recompute_num_layers"]);
  return [
    { key: "place", label: "#", number: true },
    { key: "pin", label: "Pin", value: (row) => isPinned(plan(row)), show: (_, row) => html`<${Pin} plan=${plan(row)} />` },
    { key: "tokens_per_s", label: "Tokens/s", number: true, show: (item) => tokensPerSecond(item) },
    { key: "iteration_time_s", label: "Step", number: true, show: (item) => seconds(item) },
    { key: "peak_bytes", label: "Worst stage", number: true, show: (item) => bytes(item, units.value) },
    { key: "chance_best", label: "Best?", title: "The chance that it is the fastest of the first plans", number: true,
      show: (item, row) => (item === undefined ? "–" : html`${chance(item)}${row.tie && html` <span class="muted" title="statistically tied with the best">tie</span>`}${row.is_expected && html` <span class="muted" title="the best plan when the uncertainty is counted">best expected</span>`}${row.tells && html` <span class="muted" title=${`the plan to measure first: its run takes away ${chance(row.tells)} of the doubt in all of them`}>measure first</span>`}`) },
    ...fields.map((name) => (TIMES[name]
      ? { key: name, label: TIMES[name], number: true, show: (item) => (item ? seconds(item) : "–") }
      : { key: name, label: fieldLabel(name), title: name, number: numeric.has(name),
        show: (item) => (current && !same(item, current[name]) ? html`<b class="differs">${value(item)}</b>` : value(item)) })),
  ];
}

function Pin({ plan }) {
  const pinned = isPinned(plan);
  const toggle = (event) => {
    event.stopPropagation();
    togglePin(plan);
  };
  return html`<button type="button" class="quiet square" aria-pressed=${String(pinned)}
    aria-label=${pinned ? "Unpin" : "Pin to compare"} title=${pinned ? "Unpin" : "Pin to compare"} onClick=${toggle}><${Icon} name="pin" /></button>`;
}
