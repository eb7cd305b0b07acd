/* The accuracy of predictions: published runs, the displayed plan, and the sites. */

import { html } from "htm/preact";
import { useEffect, useMemo } from "preact/hooks";
import { signal } from "@preact/signals";
import { MeasuredChart, signed } from "../charts/predicted_measured.js";
import { count, number, percent, seconds } from "../format.js";
import { persist } from "../state.js";
import { SelectField } from "../ui/field.js";
import { DataTable } from "../ui/table.js";
import { Evidence } from "../answer/evidence_details.js";
import { byValue, chosen, failure, FILTERS, firstSight, loadRuns, nameOf, runPlan, runs, summary } from "../published_runs.js";
import { Sites } from "./sites.js";

const filters = persist("accuracy", {});
const colour = signal("accelerator");
const picked = signal(null); // id of a run

export default function Accuracy() {
  useEffect(() => { loadRuns(); }, []);
  const all = runs.value;
  const rows = useMemo(() => (all ? chosen(all, filters.value) : []), [all, filters.value]);
  const open = (row) => { filters.value = {}; picked.value = row.id; document.getElementById("run")?.focus(); };
  return html`
    <div class="accuracy-view" id="results" tabindex="-1">
      <h1 class="for-readers">Accuracy</h1>
      <section class="card" aria-label="How far off">
        ${failure.value ? html`<p class="notice bad" role="alert">${failure.value.detail ?? failure.value.title}</p>`
          : !all ? html`<div class="skeleton" aria-hidden="true"><i></i><i></i><i></i></div>`
          : html`<${Filters} all=${all} /><${ErrorSummary} rows=${rows} all=${all} />`}
      </section>
      ${rows.length > 0 && html`
        <${MeasuredChart} rows=${rows} colour=${colour.value} picked=${picked.value} onPick=${(row) => { picked.value = row.id; }} />
        <${Run} row=${rows.find(({ id }) => id === picked.value)} />`}
      <div class="pair">
        <${Evidence} onRun=${open} />
        <${Sites} />
      </div>
      ${rows.length > 0 && html`<${Groups} rows=${rows} />`}
    </div>`;
}

function Filters({ all }) {
  const set = (key, value) => {
    const { [key]: _, ...others } = filters.value;
    filters.value = value ? { ...others, [key]: value } : others;
  };
  return html`
    <form class="filters" aria-label="Which runs" onSubmit=${(event) => event.preventDefault()}>
      ${FILTERS.map(({ key, label }) => {
        const open = byValue(chosen(all, filters.value, key), key);
        const options = open.map(({ name, runs: many }) => ({ value: name, label: `${nameOf(key, name)} (${many})` }));
        options.sort((a, b) => a.label.localeCompare(b.label, "en", { numeric: true }));
        return html`<${SelectField} key=${key} id=${`accuracy-${key}`} label=${label} value=${filters.value[key] ?? ""}
          options=${[{ value: "", label: "All" }, ...options]} onChange=${(value) => set(key, value)} />`;
      })}
      <${SelectField} id="accuracy-colour" label="Colour by" value=${colour.value} options=${FILTERS.map(({ key, label }) => ({ value: key, label }))}
        onChange=${(key) => { colour.value = key; }} />
      ${Object.keys(filters.value).length > 0 && html`<button type="button" class="quiet" onClick=${() => { filters.value = {}; }}>All runs</button>`}
    </form>`;
}

/* "At first sight, before anyone could tune to them, 666 runs of 39 sources were off by 15 % (dense), ..." */
function atFirstSight({ runs: many, sources, by_kind: kinds }) {
  const told = Object.entries(kinds).filter(([, { median_abs_ln: off }]) => off !== null)
    .map(([kind, { median_abs_ln: off }]) => `${percent(off, 2)} (${kind})`);
  return `At first sight, before anyone could tune to them, ${count(many)} runs of ${count(sources)} sources were off by ${told.join(", ")}: expect that of a stack or an accelerator without runs here.`;
}

/* The errors of the selected runs in a sentence, and the coverage of their intervals. */
function ErrorSummary({ rows, all }) {
  if (!rows.length) return html`<p role="status">No run matches all of these filters.</p>`;
  const found = summary(rows);
  return html`
    <div role="status">
      <h2>Half of ${rows.length === all.length ? "all " : ""}${count(found.runs)} runs are predicted within ${percent(found.median, 2)}, nine in ten within ${percent(found.most, 2)}</h2>
      <p class="lead">${count(found.sources)} source${found.sources > 1 ? "s" : ""}; on average predictions are ${percent(Math.abs(found.bias), 2)} too ${found.bias > 0 ? "slow" : "fast"}.
        Not scored: runs whose source leaves out an input that changes the time by more than 5${"\u202f"}%, or whose numbers are doubtful.</p>
      <p class="lead">These runs were in sight while the physics was chosen. ${atFirstSight(firstSight.value)}</p>
    </div>
    ${found.shares.length > 0 && html`
      <table class="coverage"><caption>How often the measured time lies in the predicted interval, which is as wide as errors at first sight</caption>
        <thead><tr><th scope="col">Interval</th><th scope="col">Runs inside</th><th scope="col"><span class="for-readers">Share</span></th><th scope="col">Typical width</th></tr></thead>
        <tbody>${found.shares.map(({ share, held, width, runs: many }) => html`
          <tr key=${share}><th scope="row">${percent(share)}</th>
            <td>${percent(held)} <span class="muted">of ${count(many)}</span></td>
            <td class="held"><${Held} share=${share} held=${held} /></td>
            <td>± ${percent(width, 2)}</td></tr>`)}</tbody>
      </table>`}`;
}

/* A bar with the coverage of an interval, and a tick at its nominal value. */
export const Held = ({ share, held }) => html`
  <i class="held-bar" role="img" aria-label=${`${percent(held)} hold, ${percent(share)} should`}>
    <i class=${held < share - 0.1 ? "short" : ""} style=${{ width: `${100 * held}%` }}></i><b style=${{ left: `${100 * share}%` }}></b></i>`;

/* The details of the picked run. */
function Run({ row }) {
  if (!row) return null;
  const edge = (share) => (row.intervals_s ? `${seconds(row.intervals_s[share][0])} to ${seconds(row.intervals_s[share][1])}` : null);
  return html`
    <section class="card" aria-label="The run picked" aria-live="polite" id="run" tabindex="-1">
      <h2>${row.model} on ${count(row.accelerators)} × ${nameOf("accelerator", row.accelerator)}</h2>
      <p class="plan-line">${runPlan(row)}</p>
      <p>${count(row.global_batch_size)} × ${count(row.seq_length)} tokens · ${row.precision} · ${row.stack} · ${row.year}</p>
      <p><b>Predicted ${seconds(row.predicted_s)}, measured ${seconds(row.measured_s)}: ${signed(row.predicted_s / row.measured_s - 1)}.</b>
        ${row.intervals_s && ` Its interval of 80\u202f% is ${edge("80")}, of 95\u202f% ${edge("95")}.`}</p>
      <p class="muted">${row.title} · row ${row.id}</p>
    </section>`;
}

const GROUP_COLUMNS = (key) => [
  { key: "name", label: FILTERS.find((one) => one.key === key).label, show: (name) => nameOf(key, name) },
  { key: "runs", label: "Runs", number: true },
  { key: "median", label: "Median error", number: true, show: (v) => percent(v, 2) },
  { key: "most", label: "90th percentile", number: true, show: (v) => percent(v, 2) },
  { key: "bias", label: "Bias", title: "above zero: predicted slower than measured", number: true, show: (v) => signed(v) },
  ...["50", "80", "95"].map((share, i) => ({ key: `held${share}`, label: `In ${share} % interval`, number: true,
    value: ({ shares }) => shares[i]?.held, show: (v) => (v === undefined ? "–" : `${number(100 * v, 3)}\u202f%`) })),
];

function Groups({ rows }) {
  const key = colour.value === "source" || filters.value[colour.value] ? "source" : colour.value;
  const groups = byValue(rows, key);
  return html`
    <section class="card" aria-label="By group">
      <h2>By ${FILTERS.find((one) => one.key === key).label.toLowerCase()}</h2>
      <${DataTable} name=${`accuracy-by-${key}`} caption="Errors and intervals by group" columns=${GROUP_COLUMNS(key)} rows=${groups} rowKey=${({ name }) => name}
        onRow=${({ name }) => { filters.value = { ...filters.value, [key]: name }; }} />
    </section>`;
}
