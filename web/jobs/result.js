/* The result of a job: a validation report, a calibrated profile, or a dry run's traces. */

import { html } from "htm/preact";
import { batch } from "@preact/signals";
import { ChartFrame } from "../charts/frame.js";
import { bytes, capitalized, count, number, seconds, unit, value, words } from "../format.js";
import { change, open, units } from "../state.js";
import { run } from "./job.js";
import { Icon } from "../ui/icon.js";
import { DataTable } from "../ui/table.js";
import { toast } from "../ui/toast.js";

const VERDICTS = {
  within: ["good", "As predicted"],
  outside: ["bad", "Not as predicted"],
  "inside the noise": ["warn", "Too noisy to tell"],
};
/* Smaller units for the memory of small runs. */
const SMALL = { GiB: [[2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]], GB: [[1e6, "MB"], [1e3, "kB"], [1, "B"]] };
function size(value) {
  const steps = SMALL[units.value];
  if (Math.abs(value) >= 200 * steps[0][0]) return bytes(value, units.value);
  const [scale, name] = steps.find(([least]) => Math.abs(value) >= least) ?? steps.at(-1);
  return unit(number(value / scale), name);
}
const off = (predicted, measured) => {
  const share = measured / predicted - 1;
  return predicted > 0 ? `${share > 0 ? "+" : "−"}${number(100 * Math.abs(share), 2)} %` : "";
};

/* The component for the result of each kind of job. */
const COMPONENTS = {
  validations: ({ report, site }) => html`<${Validation} result=${report} site=${site} />`,
  calibrations: ({ calibration }) => html`<${Calibration} profile=${calibration} />`,
  dryruns: ({ report }) => html`<${DryRun} result=${report} />`,
  sweeps: ({ sweep }) => html`<section class="card" aria-label="Result"><pre class="log-lines" tabindex="0">${JSON.stringify(sweep, null, 1)}</pre></section>`,
};
export const Result = ({ one }) => COMPONENTS[one.kind](one.result);

/* Outcomes that do not depend on the machine come first. */
const ORDER = ["structure", "gradients", "memory", "time"];
const inOrder = (outcomes) => Object.entries(outcomes).sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b));
const WORST = ["outside", "inside the noise", "within"];

function Validation({ result, site }) {
  // Without a calibration this machine's speed is a guess, so the time says nothing about the plan.
  const timed = result.profile.kind === "calibrated";
  const judged = inOrder(result.outcomes).filter(([name]) => timed || name !== "time");
  const verdict = WORST.find((one) => judged.some(([, outcome]) => outcome.verdict === one)) ?? result.verdict;
  const [kind, right] = VERDICTS[verdict];
  const said = timed || verdict !== "within" ? right : `${capitalized(judged.map(([name]) => words(name)).join(" and "))} as predicted`;
  const measured = result.measured_iteration_time_s;
  return html`
    <section class="card verdict-card" aria-label="Verdict">
      <h2 class="verdict ${kind}"><${Icon} name=${kind === "good" ? "check" : "alert"} /> ${said}</h2>
      <dl class="figures">
        <div class="figure"><dt>Iteration, predicted</dt><dd><b>${seconds(result.predicted_iteration_time_s)}</b><span>${result.profile.kind === "calibrated" ? `calibrated: ${result.profile.name}` : "not calibrated"}</span></dd></div>
        <div class="figure"><dt>Iteration, measured</dt><dd><b>${seconds(measured.median)}</b><span>${seconds(measured.p10)} – ${seconds(measured.p90)}, ${measured.n} steps</span></dd></div>
        <div class="figure"><dt>Peak, predicted</dt><dd><b>${size(result.predicted_peak_bytes)}</b><span>of the fullest rank</span></dd></div>
        <div class="figure"><dt>Peak, measured</dt><dd><b>${size(result.measured_peak_bytes)}</b><span>${off(result.predicted_peak_bytes, result.measured_peak_bytes)}</span></dd></div>
      </dl>
      <ul class="outcomes">${judged.map(([name, { verdict: own, why }]) => html`
        <li key=${name} class=${VERDICTS[own][0]}><${Icon} name=${own === "within" ? "check" : "alert"} /><span><b>${words(name)}</b> ${own}: ${why}</span></li>`)}
        ${!timed && html`<li><${Icon} name="info" /><span><b>time</b> not judged: this machine's own speed is not measured yet.
          ${" "}<button type="button" class="link" onClick=${() => { run.value = "calibrations"; }}>Calibrate it first</button>, plan with that site, and validate again.</span></li>`}</ul>
      ${site && html`<p>${capitalized(site)}.</p>`}
    </section>
    <div class="pair">
      <${Terms} title="Time of the busiest rank" terms=${result.time_terms} show=${seconds} name="time-terms" />
      <${Terms} title="Memory of the fullest rank" terms=${result.memory_terms} show=${size} name="memory-terms" />
    </div>
    <section class="card notes" aria-label="What this shows">
      <div><h3>What this run cannot show</h3><ul>${result.caveats.map((text) => html`<li key=${text}>${text}</li>`)}</ul></div>
      <div><h3>Where it ran</h3><dl class="pairs">${Object.entries(result.environment).map(([name, item]) => html`<div key=${name}><dt>${words(name)}</dt><dd>${value(item)}</dd></div>`)}</dl></div>
    </section>`;
}

/* Predicted and measured bars for each term, on one scale. */
function Terms({ title, terms, show, name }) {
  const most = Math.max(...terms.flatMap(({ predicted, measured }) => [predicted, measured]), 1e-12);
  const columns = [
    { key: "name", label: "Part" },
    { key: "predicted", label: "Predicted", number: true, show: (one) => show(one) },
    { key: "measured", label: "Measured", number: true, show: (one) => show(one) },
  ];
  return html`
    <${ChartFrame} title=${title} name=${name} columns=${columns} rows=${terms} caption="Predicted above, measured below, for each part.">
      <ul class="terms">${terms.map((term) => html`
        <li key=${term.name} aria-label=${`${term.name}: predicted ${show(term.predicted)}, measured ${show(term.measured)}`}>
          <span class="term-name">${words(term.name)}</span>
          <span class="term-bars"><i class="predicted" style=${{ width: `${(100 * term.predicted) / most}%` }}></i><i class="measured" style=${{ width: `${(100 * term.measured) / most}%` }}></i></span>
          <span class="number">${show(term.predicted)}<br />${show(term.measured)}</span>
        </li>`)}</ul>
      <ul class="legend"><li><i class="predicted"></i>predicted</li><li><i class="measured"></i>measured</li></ul>
    <//>`;
}

function Calibration({ profile }) {
  const use = () => batch(() => { change("/site", profile.id); open("plan"); toast(`Planning for site ${profile.id}`); });
  return html`
    <section class="card" aria-label="Site">
      <h2 class="verdict good"><${Icon} name="check" /> Site ${profile.id} is calibrated</h2>
      <p class="lead">Plans made with it use this machine's numbers instead of the built-in ones.</p>
      <div class="actions"><button type="button" class="primary" onClick=${use}>Plan for this site</button>
        <button type="button" onClick=${() => change("/site", undefined)}>Back to the built-in numbers</button></div>
    </section>`;
}

const RANKS = [
  { key: "rank", label: "Rank", number: true },
  { key: "stage", label: "Stage", number: true },
  { key: "traced", label: "Peak, traced", number: true, value: (row) => row.traced.peak_bytes, show: (item) => size(item) },
  { key: "estimated", label: "Peak, estimated", number: true, value: (row) => row.estimated.peak_bytes, show: (item) => size(item) },
  { key: "off", label: "Off by", number: true, value: (row) => row.traced.peak_bytes / row.estimated.peak_bytes - 1, show: (_, row) => off(row.estimated.peak_bytes, row.traced.peak_bytes) },
  { key: "collectives", label: "Messages", number: true, value: (row) => row.collectives.length },
  { key: "seconds", label: "Took", number: true, show: (item) => seconds(item) },
];
const DIFFERENCES = [
  { key: "rank", label: "Rank", number: true },
  { key: "term", label: "Part", value: (row) => words(row.term) },
  { key: "bytes", label: "Traced − estimated", number: true, show: (item) => size(item) },
  { key: "reason", label: "Why", show: (text) => html`<span class="long">${text}</span>` },
];

function DryRun({ result }) {
  const rows = result.ranks.flatMap(({ rank, differences }) => differences.map((one) => ({ rank, ...one })));
  return html`
    <section class="card" aria-label="Ranks traced">
      <h2>Traced at full size</h2>
      <p class="lead">${count(result.ranks.length)} ranks, ${count(result.traced_micro_batches)} of ${count(result.micro_batches)} micro-batches.</p>
      <${DataTable} name="dry-run" caption="Ranks traced" columns=${RANKS} rows=${result.ranks} rowKey=${({ rank }) => rank} />
    </section>
    ${rows.length > 0 && html`<section class="card" aria-label="Differences"><h2>Where they differ, and why</h2>
      <${DataTable} name="dry-run-differences" caption="Differences" columns=${DIFFERENCES} rows=${rows} /></section>`}
    ${result.caveats.length > 0 && html`<section class="card notes" aria-label="Caveats"><div><h3>What the dry run does not show</h3><ul>${result.caveats.map((text) => html`<li key=${text}>${text}</li>`)}</ul></div></section>`}`;
}
