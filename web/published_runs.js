/* The published runs, and statistics on the prediction errors of a selection.

   runs      signal of all rows of GET /v1/accuracy/runs; null until they are loaded
   firstSight  signal of what releases said before anyone could tune to the runs, by kind of model
   failure   a problem document, or null
   loadRuns  fetches them once
   nameOf    (key, value) => the display name
   FILTERS   [{key, label, title?}]: the fields that rows can be filtered by
   summary   (rows) => {runs, sources, median, most, bias, shares} */

import { signal } from "@preact/signals";
import { call, catalog } from "./api.js";

export const runs = signal(null);
export const firstSight = signal(null);
export const failure = signal(null);

export async function loadRuns() {
  if (runs.peek()) return;
  try {
    ({ rows: runs.value, first_sight: firstSight.value } = await call("/v1/accuracy/runs"));
    failure.value = null;
  } catch (error) {
    if (!error.problem) throw error;
    failure.value = error.problem;
  }
}

const titles = signal({});
catalog("accelerators").then((all) => { titles.value = Object.fromEntries(all.map(({ id, spec }) => [id, spec.name.replace(/ \(.*/, "")])); }, () => {});
export const nameOf = (key, value) => (key === "accelerator" ? titles.value[value] ?? value : value);

export const FILTERS = [
  { key: "source", label: "Source" },
  { key: "accelerator", label: "Accelerator" },
  { key: "stack", label: "Stack" },
  { key: "kind", label: "Model" },
];
const KINDS = { false: "dense", true: "mixture of experts" };
export const valueOf = (row, key) => (key === "kind" ? KINDS[row.experts] : row[key]);

export const chosen = (rows, filters, except) => rows.filter((row) =>
  FILTERS.every(({ key }) => key === except || !filters[key] || valueOf(row, key) === filters[key]));

const sorted = (values) => [...values].sort((a, b) => a - b);
function quantile(values, share) {
  const at = (values.length - 1) * share;
  const low = Math.floor(at);
  return values[low] + (at - low) * ((values[low + 1] ?? values[low]) - values[low]);
}

export const SHARES = ["50", "80", "95"];
export const ln = (row) => Math.log(row.predicted_s / row.measured_s);
const holds = (row, share) => row.intervals_s[share][0] <= row.measured_s && row.measured_s <= row.intervals_s[share][1];

export function summary(rows) {
  const sizes = sorted(rows.map((row) => Math.abs(ln(row))));
  const known = rows.filter((row) => row.intervals_s);
  const shares = SHARES.map((share) => {
    const held = known.filter((row) => holds(row, share)).length;
    const widths = sorted(known.map((row) => Math.log(row.intervals_s[share][1] / row.intervals_s[share][0])));
    return { share: Number(share) / 100, runs: known.length, held: held / known.length, width: Math.expm1(quantile(widths, 0.5) / 2) };
  });
  return {
    runs: rows.length,
    sources: new Set(rows.map(({ source }) => source)).size,
    median: Math.expm1(quantile(sizes, 0.5)),
    most: Math.expm1(quantile(sizes, 0.9)),
    bias: Math.expm1(rows.reduce((sum, row) => sum + ln(row), 0) / rows.length),
    shares: known.length ? shares : [],
  };
}

/* The summary for each value of a field, the one with most runs first. */
export function byValue(rows, key) {
  const groups = Map.groupBy(rows, (row) => valueOf(row, key));
  return [...groups].map(([name, own]) => ({ name, rows: own, ...summary(own) })).sort((a, b) => b.runs - a.runs);
}

/* The plan of a run in one line. */
export function runPlan(row) {
  const said = [`TP ${row.tp}`, `PP ${row.pp}`, `DP ${row.dp}`];
  for (const [key, name] of [["cp", "CP"], ["ep", "EP"], ["vpp", "VPP"]]) if (row[key] > 1) said.push(`${name} ${row[key]}`);
  said.push(`micro batch ${row.micro_batch_size}`);
  if (row.recompute !== "none") said.push(`${row.recompute} recompute`);
  said.push(`ZeRO-${row.zero_stage}`);
  return said.join(" · ");
}
