/* Lint of a launch script: its problems, their cost, and what to change. */

import { html } from "htm/preact";
import { batch, effect, signal, useSignalEffect } from "@preact/signals";
import { useState } from "preact/hooks";
import { download, post } from "../api.js";
import { bytes, capitalized, chance, count, free, number, percent, planLine, seconds, shellWord, times, tokensPerSecond } from "../format.js";
import { Cluster } from "../form/cluster.js";
import { openRun } from "../open_run.js";
import { request, units } from "../state.js";
import { CopyButton } from "../ui/copy.js";
import { Icon } from "../ui/icon.js";
import { EXAMPLE } from "./lint_example.js";

const PAUSE_MS = 600;
const LARGEST = 1_000_000; // most characters of all files, the service's limit

const KEPT = "lint-files"; // key in sessionStorage: the script survives a reload and stays in the browser

function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    return null; // storage may be disabled
  }
}

const files = signal(kept() ?? [{ name: "launch.sh", text: EXAMPLE }]);
effect(() => {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(files.value));
  } catch {
    // the files then last as long as the page
  }
});
const answer = signal(null);
const judged = signal(null); // the files that `answer` belongs to, by name
const refusal = signal(null);
const busy = signal(false);

const VERDICTS = {
  refused: ["bad", "Will not run"],
  "does not fit": ["bad", "Runs out of memory"],
  "may run out": ["warn", "May run out of memory"],
  improvable: ["warn", "Runs, and a faster plan is known"],
  fine: ["good", "Runs, and no plan is known to be faster"],
};
const HEADS = { error: "Errors", warning: "Warnings", hint: "Hints" };

async function check(asked, aborted) {
  busy.value = true;
  try {
    const found = await post("/v1/lints", asked, { signal: aborted });
    batch(() => { answer.value = found; judged.value = asked.files; refusal.value = null; });
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!error.problem) throw error;
    refusal.value = error.problem;
  }
  busy.value = false;
}

export default function Lint() {
  useSignalEffect(() => {
    const asked = { files: Object.fromEntries(files.value.map(({ name, text }) => [name, text])), cluster: request.value.cluster };
    if (files.value.every(({ text }) => !text.trim())) return undefined;
    const aborter = new AbortController();
    const timer = setTimeout(() => check(asked, aborter.signal), answer.peek() ? PAUSE_MS : 0);
    return () => { clearTimeout(timer); aborter.abort(); };
  });
  const found = answer.value;
  return html`
    <div class="lint-view">
      <h1 class="for-readers">Lint</h1>
      <${Editor} />
      <div class="results" id="results" tabindex="-1">
        <section class="card" aria-label="What the flags say" aria-busy=${String(busy.value)}>
          ${found && !refusal.value && changedSince() && html`<p class="notice">These findings belong to the text before your last change.</p>`}
          <div role="status" aria-live="polite" class=${busy.value ? "waiting" : ""}>
            ${refusal.value ? html`<${Refusal} problem=${refusal.value} />`
              : found ? html`<${Verdict} found=${found} />`
              : html`<div class="skeleton" aria-hidden="true"><i></i><i></i><i></i></div>`}
          </div>
        </section>
        ${!refusal.value && found && html`
          <${Better} title=${mendedTitle(found.mended)} better=${found.mended} />
          ${!sameBetter(found.best, found.mended) && html`<${Better} title="A faster plan" better=${found.best} gain=${found.gain} />`}
          <${Findings} found=${found} />
          <${Rest} found=${found} />`}
      </div>
    </div>`;
}

/* Whether the files have changed since they were judged. */
const changedSince = () => files.value.some(({ name, text }) => judged.value?.[name] !== text);

const mendedTitle = (mended) => {
  const stays = mended?.stays.length ?? 0;
  return stays ? `Fewest changes to the plan; ${stays} error${stays > 1 ? "s stay" : " stays"}` : "Fewest changes that run";
};

const sameBetter = (a, b) => Boolean(a && b && JSON.stringify(a.report.plan) === JSON.stringify(b.report.plan));

function Editor() {
  const [at, setAt] = useState(0);
  const [over, setOver] = useState(false);
  const [trouble, setTrouble] = useState("");
  const list = files.value;
  const now = Math.min(at, list.length - 1);
  const edit = (change) => { files.value = list.map((one, i) => (i === now ? { ...one, ...change } : one)); };
  const add = async (chosen) => {
    const read = await Promise.all([...chosen].map(async (file) => ({ name: file.name, text: await file.text() })));
    const kept = list[0].text === EXAMPLE ? [] : list.filter((one) => !read.some(({ name }) => name === one.name));
    const next = [...kept, ...read];
    if (next.reduce((sum, { text }) => sum + text.length, 0) > LARGEST) return setTrouble("These files are too long together.");
    setTrouble("");
    files.value = next;
    setAt(kept.length);
    return undefined;
  };
  const drop = (event) => { event.preventDefault(); setOver(false); add(event.dataTransfer.files); };
  const remove = () => { files.value = list.length > 1 ? list.filter((_, i) => i !== now) : [{ name: "launch.sh", text: "" }]; setAt(0); };
  return html`
    <section class="card lint-editor ${over ? "over" : ""}" aria-label="Files of the launch"
      onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
      <header>
        <h2>Check my flags</h2>
        <span class="spring"></span>
        <label class="button"><${Icon} name="upload" /> Files<input type="file" multiple class="for-readers" onChange=${({ target }) => { add(target.files); target.value = ""; }} /></label>
        <button type="button" class="quiet" onClick=${remove}>${list.length > 1 ? "Remove" : "Clear"}</button>
      </header>
      <p class="muted">Paste or drop a launch script of any supported framework, with the files it names. Nothing is executed.</p>
      <div class="file-names">
        ${list.map((one, i) => (i === now
          ? html`<input key=${i} value=${one.name} aria-label="Name of this file" spellcheck=${false} onChange=${({ target }) => target.value.trim() && edit({ name: target.value.trim() })} />`
          : html`<button key=${i} type="button" class="chip" onClick=${() => setAt(i)}>${one.name}</button>`))}
        <button type="button" class="quiet square" aria-label="Add a file" title="Add a file" onClick=${() => { files.value = [...list, { name: `file-${list.length + 1}.yaml`, text: "" }]; setAt(list.length); }}><${Icon} name="plus" /></button>
      </div>
      <textarea aria-label="Text of the file" spellcheck=${false} autocomplete="off" rows="24" value=${list[now].text}
        onFocus=${({ target }) => list[now].text === EXAMPLE && target.select()}
        onInput=${({ target }) => edit({ text: target.value })}></textarea>
      ${list[now].text === EXAMPLE && html`<p class="muted">An example: paste your own over it.</p>`}
      ${trouble && html`<p class="problem" role="alert">${trouble}</p>`}
      <${Cluster} />
    </section>`;
}

const Refusal = ({ problem }) => html`
  <h2 class="verdict none"><${Icon} name="alert" /> This cannot be read</h2>
  <ul class="refusals">${(problem.errors ?? [problem]).map(({ pointer, detail }) => html`<li key=${pointer + detail}>${pointer && html`<code>${pointer.replace("/files/", "")}</code> `}${detail}</li>`)}</ul>`;

function Verdict({ found }) {
  const [kind, verdict] = VERDICTS[found.verdict];
  const said = found.verdict === "improvable" && found.best === null ? "Runs, and one change makes it faster"
    : found.verdict === "fine" && !found.searched ? "Runs, and no change that was tried makes it faster; not all plans were"
    : verdict;
  const { cluster, training, model } = found.request;
  const [group] = cluster.groups;
  const counts = Object.entries(HEADS).map(([severity, head]) => [found.findings.filter((one) => one.severity === severity).length, head.toLowerCase()]).filter(([n]) => n);
  return html`
    <p class="request-summary">${found.framework} · ${count(model.num_layers)} layers of ${count(model.hidden_size)} · ${count(group.nodes * group.accelerators_per_node)} × ${group.accelerator.name} · ${count(training.global_batch_size)} × ${count(training.seq_length)} tokens · ${training.precision}</p>
    <h2 class="verdict ${kind}"><${Icon} name=${kind === "good" ? "check" : "alert"} /> ${said}</h2>
    ${counts.length > 0 && html`<p class="lead">${counts.map(([n, head]) => `${n} ${n === 1 ? head.slice(0, -1) : head}`).join(", ")}</p>`}
    ${found.estimate && html`<${Report} title="Your script" report=${found.estimate} />`}
    <p><button type="button" onClick=${() => openPlan(found, found.request.plan)}>Open this plan</button></p>`;
}

/* Open the script's request in the Plan view. */
function openPlan({ request: asked }, plan, batchSize = null) {
  const training = batchSize === null ? asked.training : { ...asked.training, global_batch_size: batchSize };
  openRun({ ...asked, training }, { plan, said: "Read from the launch" });
}

function Report({ title, report }) {
  const { memory } = report;
  const over = memory.peak_bytes > memory.capacity_bytes;
  return html`
    <div class="lint-report">
      ${title && html`<h3>${title}</h3>`}
      <p class="plan-line">${planLine(report.plan)}</p>
      <p>${seconds(report.iteration_time_s)} per iteration (${number(report.error_band.low_s)} – ${seconds(report.error_band.high_s)}) · ${tokensPerSecond(report.tokens_per_s)} · MFU ${percent(report.mfu)} ·
        ${" "}<span class=${over ? "bad" : ""}>${bytes(memory.peak_bytes, units.value)} of ${bytes(memory.capacity_bytes, units.value)}${memory.stages.length > 1 ? ` on stage ${memory.worst_stage}` : ""}${over ? "" : `, ${free(memory)}`}, ${chance(memory.chance_of_running_out)} risk of running out</span></p>
    </div>`;
}

const flag = ({ option, after }) => (after ? `${option} ${shellWord(after)}` : option);

function Better({ title, better, gain }) {
  if (!better) return null;
  const sign = ({ before, after }) => (after === null ? ["−", "gone", "remove"] : before === null ? ["+", "new", "add"] : ["~", "other", "change"]);
  const flags = better.changes.filter(({ after }) => after !== null).map(flag).join(" \\\n");
  return html`
    <section class="card" aria-label=${title}>
      <header class="card-head"><h2>${title}</h2><span class="spring"></span>
        ${flags && html`<${CopyButton} text=${flags} label="Copy these flags" />`}
        <button type="button" onClick=${() => openPlan(answer.value, better.report.plan, better.global_batch_size)}>Open this plan</button></header>
      <${Mended} better=${better} />
      ${gain && html`<p class="lead"><b>${times(gain.speedup)} as fast</b>. Between ${times(gain.low)} and ${times(gain.high)} at 80 %, ${chance(gain.chance)} likely to be faster${gain.inside_error ? ": measure both." : "."}</p>`}
      ${better.caution && html`<p class="muted">${capitalized(better.caution)}.</p>`}
      <${Report} report=${better.report} />
      <table class="flag-changes"><caption class="for-readers">${title}: options to change</caption>
        <tbody>${better.changes.map((change) => {
          const [mark, kind, verb] = sign(change);
          return html`<tr key=${change.option} class=${kind}>
            <td><span aria-label=${verb}>${mark}</span></td>
            <th scope="row"><code>${change.misspelled && html`<s>${change.misspelled}</s> `}${change.option}</code></th>
            <td><code>${change.before && change.after ? html`<s>${change.before}</s> ${change.after}` : change.after ?? change.before}</code></td>
            <td class="muted">${change.why}${change.line ? html` <span class="place">${change.file}:${change.line}</span>` : ""}</td></tr>`;
        })}</tbody>
      </table>
    </section>`;
}

/* The files with the changes applied: copy, download, or continue with them here. */
function Mended({ better: { files: changed, by_hand: left } }) {
  const names = Object.keys(changed);
  const use = () => { files.value = files.peek().map((one) => ({ ...one, text: changed[one.name] ?? one.text })); };
  return html`
    ${names.length > 0 && html`<div class="actions">
      ${names.map((name) => html`<${CopyButton} key=${name} kind="primary" text=${changed[name]} label=${`Copy the corrected ${name}`} />
        <button type="button" onClick=${() => download(name, changed[name], "text/plain")}><${Icon} name="download" /> Save ${name}</button>`)}
      <button type="button" onClick=${use} disabled=${changedSince()}>Check the corrected script</button>
    </div>`}
    ${left.length > 0 && html`<p class="muted">To change by hand: ${left.map((one, i) => html`${i > 0 && ", "}<code>${flag(one)}</code>`)}</p>`}`;
}

function Findings({ found }) {
  if (!found.findings.length) return null;
  const text = (name, line) => judged.value?.[name]?.split("\n")[line - 1]?.replace(/\\$/, "").trim();
  return html`
    <section class="card findings" aria-label="Findings">
      ${Object.entries(HEADS).map(([severity, head]) => {
        const own = found.findings.filter((one) => one.severity === severity);
        return own.length > 0 && html`
          <h2 key=${severity}>${head} <span class="badge">${own.length}</span></h2>
          <ul>${own.map((one) => html`<li class=${`is-${severity}`}>
            <p><b>${one.text}</b></p>
            <p class="muted">${one.line ? html`<span class="place">${one.file}:${one.line}</span> <code>${text(one.file, one.line) ?? one.option}</code>` : one.option && html`<code>${one.option}</code>`}
              ${one.gain ? ` · ${percent(one.gain)} of the iteration` : ""}</p></li>`)}</ul>`;
      })}
    </section>`;
}

function Rest({ found }) {
  const unread = [...new Set(found.unread.map(({ name }) => name))];
  if (!found.assumed.length && !unread.length) return null;
  return html`
    <details class="card rests-on"><summary>Settings that the files do not state</summary>
      ${found.assumed.length > 0 && html`<ul>${found.assumed.map((one) => html`<li key=${one}>${one}</li>`)}</ul>`}
      ${unread.length > 0 && html`<p class="muted">Not part of a plan: ${unread.join(", ")}</p>`}
    </details>`;
}
