/* The Validate view: start a run of a plan on the service's machine, follow it, see its report. */

import { html } from "htm/preact";
import { signal, useSignalEffect } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { call } from "../api.js";
import { count, planLine, seconds } from "../format.js";
import { busy as searching, change, planRequest, report, request, resolved } from "../state.js";
import { CopyButton } from "../ui/copy.js";
import { CheckField, NumberField, TextField } from "../ui/field.js";
import { Icon } from "../ui/icon.js";
import { toast } from "../ui/toast.js";
import { cancel, failure, follow, forget, job, leave, lines, run as kind, start } from "../jobs/job.js";
import { JobTable, current, jobs, loadJobs } from "../jobs/table.js";
import { KINDS, doing, isOver, lasted } from "../jobs/labels.js";
import { Result } from "../jobs/result.js";
import { GetScript, OneNode } from "../jobs/one_node.js";

const INSTALL = "pip install torch==2.13.0";

const ASKS = {
  validations: {
    says: "Trains a few steps with this plan, scaled down to this machine. Checks gradients and memory, and the time once this machine is calibrated.",
    fields: [
      [NumberField, "steps", { label: "Timed steps", usual: 10 }],
      [NumberField, "warmup_steps", { label: "Warm-up steps", usual: 2 }],
      [CheckField, "check_numerics", { label: "Compare gradients with one process", usual: true }],
      [NumberField, "time_tolerance", { label: "Time tolerance", unit: "%", scale: 0.01, usual: "20, on GPUs 5", title: "share of the step time; else 20 % on CPUs, 5 % on GPUs" }],
      [NumberField, "memory_tolerance", { label: "Memory tolerance", unit: "%", scale: 0.01, usual: 0.03 }],
    ],
  },
  calibrations: {
    says: "Measures the kernels and links of this machine that the plan uses. Plans for this site then use them instead of the built-in numbers.",
    fields: [
      [TextField, "name", { label: "Site", usual: "local" }],
      [NumberField, "budget_s", { label: "At most", unit: "s", usual: 300 }],
    ],
  },
  dryruns: {
    says: "Traces ranks of the plan at full size without allocating memory, and compares every tensor and message with the estimate.",
    fields: [],
  },
};

/* Default options of the page, which check gradients too. */
const FIRST = { validations: { check_numerics: true } };
const options = signal({});
const problems = signal([]);
const refusal = signal(null);
const busy = signal(false);
const torch = signal(null); // whether this service has torch for runs; null: not known yet

async function look() {
  try {
    torch.value = Boolean((await call("/v1/info")).features.torch);
  } catch (error) {
    if (!error.problem) throw error;
  }
}

/* The site for this machine's speed, calibrated before the first timed run. */
const HERE = "this-machine";
const BUDGET_S = 60;
const calibrated = signal(null); // time of the calibration; undefined: none; null: not known yet
const wanted = signal(true); // whether to calibrate before a run
const waiting = signal(null); // {id, body}: the calibration in progress, and the run to start after it

async function lookForCalibration() {
  try {
    calibrated.value = (await call("/v1/sites")).rows.find(({ name }) => name === HERE)?.calibrated_at ?? undefined;
  } catch (error) {
    if (!error.problem) throw error;
  }
}

async function begin() {
  const { part } = KINDS[kind.value];
  busy.value = true;
  try {
    const body = { ...planRequest.value, [part]: { ...FIRST[kind.value], ...options.value[kind.value] } };
    const timed = kind.value === "validations" && wanted.value && !body.site;
    if (timed && !calibrated.value) {
      await start("calibrations", { ...planRequest.value, calibration: { name: HERE, budget_s: BUDGET_S } });
      waiting.value = { id: current.value.id, body };
    } else await start(kind.value, timed ? { ...body, site: HERE } : body);
    problems.value = [];
    refusal.value = null;
  } catch (error) {
    if (!error.problem) throw error;
    problems.value = error.problem.errors ?? [];
    refusal.value = error.problem;
  }
  busy.value = false;
}

/* Start the run that waited for a calibration. */
async function goOn({ state }, { body }) {
  waiting.value = null;
  await lookForCalibration();
  if (state === "succeeded") await start("validations", { ...body, site: HERE });
}

export default function Validate() {
  useEffect(() => { look(); lookForCalibration(); loadJobs(); return leave; }, []);
  useSignalEffect(() => {
    const [one, next] = [job.value, waiting.value];
    if (next && one?.id === next.id && isOver(one)) goOn(one, next);
  });
  useSignalEffect(() => { if (current.value) follow(); });
  return html`
    <div class="plan-view validate-view ${job.value ? "with-job" : ""}">
      <h1 class="for-readers">Validate</h1>
      <${Ask} />
      <div class="results" id="results" tabindex="-1">
        ${failure.value && html`<p class="notice bad" role="alert">${failure.value.detail ?? failure.value.title}</p>`}
        <${OneNode} />
        ${job.value ? html`<${OnShow} one=${job.value} />` : html`<${Empty} />`}
        <section class="card" aria-label="Runs"><h2>Runs</h2>
          ${jobs.value?.length ? html`<${JobTable} rows=${jobs.value.map(live)} />` : html`<p class="muted">No run yet.</p>`}
        </section>
      </div>
    </div>`;
}

/* A row of the list, updated live if its run is displayed. */
const live = (row) => (row.id === job.value?.id ? { ...row, ...job.value } : row);

function Ask() {
  const { says, fields } = ASKS[kind.value];
  const { part, verb } = KINDS[kind.value];
  const own = options.value[kind.value] ?? {};
  const set = (name, value) => {
    const { [name]: _, ...others } = own;
    options.value = { ...options.value, [kind.value]: value === undefined ? others : { ...others, [name]: value } };
  };
  const rest = problems.value.filter(({ pointer }) => !fields.some(([, name]) => pointer === `/${part}/${name}`));
  const known = resolved.value;
  const submit = (event) => { event.preventDefault(); begin(); };
  return html`
    <form class="form ask" aria-label="What to run" onSubmit=${submit}>
      <fieldset class="section"><legend>Run</legend>
        <div class="segments wide" role="group" aria-label="What to run">
          ${Object.keys(ASKS).map((id) => html`<button key=${id} type="button" aria-pressed=${String(kind.value === id)}
            onClick=${() => { kind.value = id; problems.value = []; refusal.value = null; }}>${KINDS[id].verb}</button>`)}
        </div>
        <p class="note">${says}</p>
      </fieldset>
      <fieldset class="section"><legend>Plan</legend>
        ${known && report.value
          ? html`<p>${known.model.name} on ${count(known.cluster.groups[0].nodes * known.cluster.groups[0].accelerators_per_node)} × ${known.cluster.groups[0].accelerator.name}</p>
            <p class="muted">${planLine(report.value.plan)}</p>`
          : html`<p class="muted">${searching.value ? "Searching for the plan …" : "No plan fits; see the Plan view."}</p>`}
        ${request.value.profile && html`<p>Priced with the profile <b>${request.value.profile}</b>.
          ${" "}<button type="button" class="link" onClick=${() => change("/profile", undefined)}>Use the built-in one</button></p>`}
        ${request.value.site && html`<p>For site <b>${request.value.site}</b>, which learns from a validation on its accelerators.</p>`}
      </fieldset>
      ${fields.length > 0 && html`<fieldset class="section"><legend>Settings</legend>
        ${fields.map(([Of, name, { usual, ...more }]) => html`<${Of} key=${name} id=${`run-${name}`} value=${own[name]} usual=${usual}
          onChange=${(value) => set(name, value)} problems=${problems.value.filter(({ pointer }) => pointer === `/${part}/${name}`)} ...${more} />`)}
        ${kind.value === "validations" && !request.value.site && (calibrated.value
          ? html`<p class="note">Timed against this machine's calibration.</p>`
          : html`<${CheckField} id="run-calibrate" label="Calibrate this machine first" title="Takes about a minute. Without it the speed of this machine is unknown, and the measured time is not judged."
              value=${wanted.value} onChange=${(on) => { wanted.value = on; }} />`)}
      </fieldset>`}
      <div class="section">
        ${kind.value === "validations" && html`<${GetScript} />`}
        ${torch.value === false ? html`<${Install} />` : html`
          <button class=${kind.value === "validations" ? "" : "primary"} disabled=${!planRequest.value || busy.value}>${verb}${kind.value === "calibrations" ? "" : " this plan"}</button>`}
        ${refusal.value && rest.length === 0 && problems.value.length === 0 && html`<p class="problem" role="alert">${refusal.value.detail ?? refusal.value.title}</p>`}
        ${rest.length > 0 && html`<div class="problem" role="alert">${rest.map(({ pointer, detail }) => html`<p>${pointer && html`<code>${pointer}</code> `}${detail}</p>`)}</div>`}
      </div>
    </form>`;
}

const Install = () => html`
  <div class="stack">
    <p><b>Runs need torch, which is not installed here.</b> Add it to the service's environment, then start the service again:</p>
    <pre class="command"><code>${INSTALL}</code></pre>
    <${CopyButton} text=${INSTALL} label="Copy the command" />
    <p class="muted">Planning needs no torch.</p>
  </div>`;

const Empty = () => html`
  <section class="card empty" aria-label="How it works">
    <h2>Is the estimate right? Run it.</h2>
    <ol>
      <li><b>Scaled down.</b> The plan keeps its structure: every degree above 1 stays above 1, on as many processes as this machine can run.</li>
      <li><b>Trained for a few steps.</b> The ranks are started, warmed up and timed; their memory is counted tensor by tensor.</li>
      <li><b>Compared with the estimate</b> of that small run, term by term, with a list of what it cannot show.</li>
    </ol>
    <p class="muted">On a few cores this takes minutes. The run shows the time left; you can leave this page and come back to it.</p>
  </section>`;

function OnShow({ one }) {
  const over = isOver(one);
  const stop = () => cancel().catch((error) => toast(error.message, { kind: "bad" }));
  const then = waiting.value?.id === one.id;
  return html`
    <section class="card job" aria-label=${`${KINDS[one.kind].title} of ${one.title}`} aria-busy=${String(!over)}>
      <div class="job-head">
        <div><p class="request-summary">${KINDS[one.kind].title} · ${one.title}${then ? "; the run follows" : ""}</p></div>
        <span class="spring"></span>
        ${!over && html`<button type="button" onClick=${stop} disabled=${one.state === "cancelling"}><${Icon} name="stop" />${one.state === "cancelling" ? "Stopping" : "Cancel"}</button>`}
        ${over && html`<button type="button" class="quiet" onClick=${() => forget(one)}>Delete</button>`}
      </div>
      ${over ? html`<${Ended} one=${one} />` : html`<${Live} one=${one} />`}
      ${lines.value.length > 0 && html`<details class="log" open=${one.state === "failed"}><summary>Log, ${count(lines.value.length)} lines</summary><${Log} /></details>`}
    </section>
    ${one.result && html`<${Result} one=${one} />`}`;
}

const ENOUGH = 2; // completed items before the remaining time is estimated

/* The estimated remaining time of the phase, from its pace so far. */
const began = { phase: "", done: 0, at: 0 };
function left({ id, phase, progress: { done, total } }) {
  const now = Date.now() / 1000;
  if (began.phase !== `${id} ${phase}`) Object.assign(began, { phase: `${id} ${phase}`, done, at: now });
  const more = done - began.done;
  return more >= ENOUGH && done < total ? `, about ${seconds(((now - began.at) / more) * (total - done), 2)} left of this part` : "";
}

/* The progress of a running job. */
function Live({ one }) {
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick((n) => n + 1), 1000); return () => clearInterval(timer); }, []);
  const { done, total, text } = one.progress;
  const share = total ? done / total : null;
  const said = doing(one);
  return html`
    <div role="status" aria-live="polite"><h2 class="verdict">${said}</h2></div>
    <div class="bar-line ${share === null ? "unknown" : ""}" role="progressbar" aria-label=${said} aria-valuenow=${share === null ? undefined : Math.round(share * 100)}>
      <i style=${{ transform: `scaleX(${share ?? 1})` }}></i></div>
    <p class="muted job-text"><span>${text}</span><span>${total ? `${count(done)} of ${count(total)}${left(one)}` : ""}</span><span class="spring"></span><span>${lasted(one)}</span></p>`;
}

function Ended({ one }) {
  if (one.state === "succeeded") return html`<p class="muted">Done in ${lasted(one)}.</p>`;
  if (one.state === "cancelled") return html`<h2 class="verdict">Cancelled</h2><p class="muted">All its processes have ended.</p>`;
  return html`<h2 class="verdict bad"><${Icon} name="alert" /> ${one.error?.title ?? "It failed"}</h2><p>${one.error?.detail}</p>`;
}

function Log() {
  return html`<pre class="log-lines" tabindex="0" aria-label="Log">${lines.value.join("\n")}</pre>`;
}
