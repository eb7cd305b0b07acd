/* Validation on one node of the user's cluster: a script to run there, and a report of its results.

   <GetScript />   the button for the script, and the drop area for its results
   <OneNode />     the scaled-down training, and the verdict once the results are back */

import { html } from "htm/preact";
import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { download, post } from "../api.js";
import { count, planLine, seconds, words } from "../format.js";
import { planRequest } from "../state.js";
import { CopyButton } from "../ui/copy.js";
import { Icon } from "../ui/icon.js";
import { Result } from "./result.js";

const script = signal(null); // a OneNode document from the service
const asked = signal(null); // the request of the script
const report = signal(null);
const problems = signal([]);
const busy = signal(false);

async function told(work) {
  busy.value = true;
  try {
    await work();
    problems.value = [];
  } catch (error) {
    if (!error.problem) throw error;
    problems.value = error.problem.errors ?? [error.problem];
  }
  busy.value = false;
}

const write = () => told(async () => {
  const document = planRequest.peek();
  script.value = await post("/v1/one-node", document);
  asked.value = document;
  report.value = null;
  download(script.value.name, script.value.text, "text/x-shellscript");
});

const judge = (files) => told(async () => {
  const texts = await Promise.all([...files].filter(({ name }) => name.endsWith(".json")).map((file) => file.text()));
  const ranks = texts.map((text) => { try { return JSON.parse(text); } catch { return {}; } });
  report.value = await post("/v1/one-node/results", { request: asked.peek() ?? planRequest.peek(), ranks });
});

export const GetScript = () => html`
  <button type="button" class="primary" disabled=${!planRequest.value || busy.value} onClick=${write}><${Icon} name="download" /> Script for one node</button>
  ${problems.value.length > 0 && !script.value && html`<${Problems} />`}`;

const Problems = () => html`<div class="problem" role="alert">${problems.value.map(({ detail, title }) => html`<p>${detail ?? title}</p>`)}</div>`;

export function OneNode() {
  const [over, setOver] = useState(false);
  if (!script.value) return null;
  const { name, request, predicted_s: predicted, fits, changes, results } = script.value;
  const [group] = request.cluster.groups;
  const drop = (event) => { event.preventDefault(); setOver(false); judge(event.dataTransfer.files); };
  const line = `bash ${name}`;
  return html`
    <section class="card" aria-label="One node of your cluster">
      <h2>One node of your cluster</h2>
      <p>${request.model.name} with ${count(request.model.num_layers)} layers on ${count(group.accelerators_per_node)} × ${group.accelerator.name}: ${planLine(request.plan)}.
        ${" "}<b>${seconds(predicted)}</b> a step are predicted there${fits ? "" : "; it may run out of memory"}.</p>
      <ol class="steps">
        <li><code class="command">${line}</code> <${CopyButton} text=${line} /> on that node, with this package and torch installed.</li>
        <li>Its ranks leave <code>${results[0]}</code>${results.length > 1 ? html` to <code>${results.at(-1)}</code>` : ""}.</li>
        <li><div class="log-drop ${over ? "over" : ""}" onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
          <label class="button"><${Icon} name="upload" /> Results<input type="file" multiple accept=".json" class="for-readers" aria-label="Results of its ranks" onChange=${({ target }) => { judge(target.files); target.value = ""; }} /></label>
          <p>Drop these ${count(results.length)} files here: time and memory are then compared with the estimate.</p></div></li>
      </ol>
      ${problems.value.length > 0 && html`<${Problems} />`}
      <details><summary>What is smaller than in the plan</summary>
        <ul>${changes.map(({ field, was, now, hides }) => html`<li key=${field}>${words(field.replace("/", ", "))}: ${String(was)} → ${String(now)}${hides && html` <span class="muted">does not show ${hides}</span>`}</li>`)}</ul></details>
    </section>
    ${report.value && html`<${Result} one=${{ kind: "validations", result: { report: report.value, site: "" } }} />`}`;
}
