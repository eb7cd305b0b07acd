/* <Sites />: corrections learned from measured runs of the user's clusters; logs can be dropped. */

import { html } from "htm/preact";
import { batch, signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { call, post } from "../api.js";
import { signed } from "../charts/predicted_measured.js";
import { count, percent, planLine, seconds } from "../format.js";
import { openRun } from "../open_run.js";
import { change, request, resolved } from "../state.js";
import { TextField } from "../ui/field.js";
import { Icon } from "../ui/icon.js";
import { toast } from "../ui/toast.js";

const LARGEST = 20_000_000; // most characters of a log that are sent
const SITE = "my-cluster"; // default name of a site

const rows = signal(null);
const shown = signal(null); // a SiteAnswer
const drop = signal(null); // {name, text}: the log that is being read
const lesson = signal(null);
const trouble = signal([]);
const busy = signal(false);

const path = (name) => `/v1/sites/${encodeURIComponent(name)}`;

async function told(work) {
  busy.value = true;
  try {
    await work();
    trouble.value = [];
  } catch (error) {
    if (!error.problem) throw error;
    trouble.value = error.problem.errors ?? [error.problem];
  }
  busy.value = false;
}

const load = () => told(async () => {
  rows.value = (await call("/v1/sites")).rows;
  const names = rows.value.filter((row) => !row.problem).map((row) => row.name);
  const wanted = [shown.peek()?.name, request.peek().site, names[0]].find((name) => names.includes(name));
  shown.value = wanted ? await call(path(wanted)) : null;
});

const show = (name) => told(async () => { shown.value = await call(path(name)); });

export function Sites() {
  useEffect(() => { load(); }, []);
  const list = rows.value;
  return html`
    <section class="card sites" aria-label="Sites" aria-busy=${String(busy.value)}>
      <h2>Your own runs</h2>
      <p class="muted">A site holds measured runs of one cluster. Estimates for that site are corrected by them.</p>
      <${Learn} />
      ${trouble.value.length > 0 && html`<div class="problem" role="alert">${trouble.value.map(({ pointer, detail, title }) => html`<p>${pointer && html`<code>${pointer}</code> `}${detail ?? title}</p>`)}</div>`}
      ${lesson.value && html`<${Lesson} of=${lesson.value} />`}
      ${list?.length === 0 && !lesson.value && html`<p class="muted">There is no site yet.</p>`}
      ${list?.length > 0 && html`<div class="chips" role="group" aria-label="Which site">${list.map((row) => html`
        <button key=${row.name} type="button" class="chip" aria-pressed=${String(shown.value?.name === row.name)} title=${row.problem} disabled=${Boolean(row.problem)}
          onClick=${() => show(row.name)}>${row.name} <span>${row.problem ? "damaged" : `${count(row.runs)} run${row.runs === 1 ? "" : "s"}`}</span></button>`)}</div>`}
      ${shown.value && html`<${Site} of=${shown.value} />`}
    </section>`;
}

/* The form for a log: the file, its site and its cluster. */
function Learn() {
  const [over, setOver] = useState(false);
  const [site, setSite] = useState(undefined);
  const name = site ?? request.value.site ?? SITE;
  const read = async (files) => {
    const [file] = files;
    if (!file) return;
    const text = await file.text();
    if (text.length > LARGEST) { trouble.value = [{ detail: "This log is too long to send; planner learn reads it from the disk." }]; return; }
    drop.value = { name: file.name, text };
    await send(name, false);
  };
  const onDrop = (event) => { event.preventDefault(); setOver(false); read(event.dataTransfer.files); };
  const group = resolved.value?.cluster.groups[0];
  return html`
    <div class="log-drop ${over ? "over" : ""}" onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${onDrop}>
      <label class="button"><${Icon} name="upload" /> Log<input type="file" class="for-readers" aria-label="Training log" onChange=${({ target }) => { read(target.files); target.value = ""; }} /></label>
      <p>Drop a training log here, or a table of runs: Megatron-LM, DeepSpeed, NeMo, torchtitan, nanotron, MaxText, Trainer, MLPerf, CSV.
        ${group && html` <span class="muted">It is read as a run on ${count(group.nodes * group.accelerators_per_node)} × ${group.accelerator.name}, the cluster of the Plan view.</span>`}</p>
      <${TextField} id="site-name" label="Site" value=${site} usual=${name} onChange=${setSite} />
    </div>`;
}

const send = (name, keep) => told(async () => {
  const found = await post(`${path(name)}/runs`, { log: drop.peek().text, name: drop.peek().name, cluster: request.peek().cluster, keep });
  if (!keep) { lesson.value = found; return; }
  batch(() => { lesson.value = null; drop.value = null; shown.value = { name }; });
  toast(`${name} has ${count(found.site_runs)} run${found.site_runs === 1 ? "" : "s"} now`);
  await load();
});

/* Keep the log's runs, and open the last one in the Plan view with the site and its plan pinned. */
async function keepAndPlan({ site, runs }) {
  const { run } = runs.at(-1);
  await send(site, true);
  if (!trouble.peek().length) openRun(run.request, { own: run.request.plan, site, said: `Planning ${run.request.model.name} with ${site}` });
}

/* The runs read from a log, before they are kept. */
function Lesson({ of }) {
  const fresh = of.runs.filter(({ known }) => !known).length;
  const leave = () => { lesson.value = null; drop.value = null; };
  return html`
    <div class="lesson" role="status">
      <h3>${drop.value?.name}: ${count(of.runs.length)} run${of.runs.length === 1 ? "" : "s"} read</h3>
      <ul>${of.runs.slice(0, 5).map(({ run, known, doubts, low_s: low, high_s: high }) => html`
        <li key=${run.id}>
          <p><b>${planLine(run.request.plan)}</b></p>
          <p>measured ${seconds(run.step_s)} over ${count(run.steps)} steps${low ? ` (${seconds(low)} to ${seconds(high)})` : ""}, predicted ${seconds(run.estimated_s)}: ${signed(run.estimated_s / run.step_s - 1)}${known ? "; the site has it already" : ""}</p>
          ${run.left_open.length > 0 && html`<p class="muted">Not in the log: ${run.left_open.join(", ")}</p>`}
          ${doubts.map((doubt) => html`<p class="doubt"><${Icon} name="alert" /> This run ${doubt}.</p>`)}
        </li>`)}</ul>
      ${of.runs.length > 5 && html`<p class="muted">and ${count(of.runs.length - 5)} more</p>`}
      ${of.refused.map(({ name, why }) => html`<p class="muted" key=${name}>Not learned: ${why}</p>`)}
      <div class="actions">
        <button type="button" class="primary" disabled=${busy.value || fresh === 0} onClick=${() => keepAndPlan(of)}>Keep it and find a better plan</button>
        <button type="button" disabled=${busy.value || fresh === 0} onClick=${() => send(of.site, true)}>Keep with ${of.site}</button>
        <button type="button" onClick=${leave}>Discard</button>
      </div>
    </div>`;
}

const taught = ({ learned_at, taught_by }) => `${learned_at.slice(0, 10)}${taught_by ? ` ${taught_by}` : ""}`;

/* Forget one run; there is no way back. */
async function forget(name, { id, file }) {
  if (!window.confirm(`Forget the run of ${file}? Answers for ${name} will no longer know it.`)) return;
  await told(() => call(`${path(name)}/runs/${id}`, { method: "DELETE" }));
  if (!trouble.peek().length) await load();
}

const SHARES = ["50", "80", "95"];

/* The corrections that a site has learned, and its remaining errors. */
function Site({ of }) {
  if (!of.kinds) return null;
  const used = request.value.site === of.name;
  return html`
    <div class="site-answer">
      <div class="card-head"><h3>${of.name}</h3><span class="spring"></span>
        <button type="button" aria-pressed=${String(used)} onClick=${() => change("/site", used ? undefined : of.name)}>${used ? "Plans use it" : "Plan with it"}</button></div>
      ${of.median_error_without !== null && html`<p>Half of its ${count(of.runs.length)} run${of.runs.length === 1 ? " is" : "s are"} off by
        ${" "}<b>${percent(of.median_error_without, 2)}</b> or less without it${of.median_error_left_out === null ? "; two runs show what it is worth"
          : html`, by <b>${percent(of.median_error_left_out, 2)}</b> with the others learned`}.</p>`}
      ${of.held_without && html`<table class="coverage"><caption>How often intervals hold its runs</caption>
        <thead><tr><th scope="col">Interval</th>${SHARES.map((share) => html`<th key=${share} scope="col">${share}${"\u202f"}%</th>`)}</tr></thead>
        <tbody>
          ${[["without the site", of.held_without], ["with its other runs", of.held_left_out]].map(([said, held]) => held && html`
            <tr key=${said}><th scope="row">${said}</th>${SHARES.map((share) => html`<td key=${share}>${percent(held.shares[share], 3)}</td>`)}</tr>`)}
        </tbody></table>`}
      ${of.kinds.map((kind) => html`<${Learned} key=${kind.accelerator + kind.runtime} kind=${kind} />`)}
      ${of.errors.length > 0 && html`<details><summary>Its runs</summary>
        <div class="table-scroll" tabindex="0" role="region" aria-label=${`Runs of ${of.name}`}><table class="coverage"><thead><tr><th scope="col">Log</th><th scope="col">Taught</th><th scope="col">Measured</th><th scope="col">Without</th><th scope="col">With the others</th><th scope="col"><span class="for-readers">Forget</span></th></tr></thead>
          <tbody>${of.errors.map((one, i) => html`<tr key=${one.id}><th scope="row">${one.file}</th><td>${taught(of.runs[i])}</td><td>${seconds(one.measured_s)}</td>
            <td>${signed(one.error_without)}</td><td>${of.errors.length > 1 ? signed(one.error_left_out) : "–"}</td>
            <td><button type="button" aria-label=${`Forget the run of ${one.file}`} onClick=${() => forget(of.name, one)}>Forget</button></td></tr>`)}</tbody></table></div>
      </details>`}
    </div>`;
}

/* The kinds of work that are slower or faster at this site than by default. */
function Learned({ kind }) {
  const learned = kind.factors.filter(({ verdict }) => verdict === "learned");
  const open = kind.factors.filter(({ verdict }) => verdict === "cannot tell yet");
  return html`
    <p class="muted">${kind.accelerator} with ${kind.runtime}, ${count(kind.runs)} run${kind.runs === 1 ? "" : "s"}:</p>
    <ul class="learned">
      ${learned.map(({ factor, title, longer, deviation }) => html`<li key=${factor}><b>${signed(longer)}</b> ${title} <span class="muted">± ${percent(deviation, 2)}</span></li>`)}
      ${learned.length === 0 && html`<li>Nothing differs by more than it is uncertain.</li>`}
    </ul>
    ${open.length > 0 && html`<p class="muted">Cannot tell yet: ${open.map(({ title }) => title).join(", ")}.</p>`}`;
}
