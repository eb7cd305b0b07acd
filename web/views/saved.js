/* Saved plans, and the jobs of this service. */

import { html } from "htm/preact";
import { batch, signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { call } from "../api.js";
import { clusterLine, planLine } from "../format.js";
import { answer, open, picked, planRequest, report, request, resolved } from "../state.js";
import { Dialog } from "../ui/dialog.js";
import { TextField } from "../ui/field.js";
import { toast } from "../ui/toast.js";
import { JobTable, jobs, loadJobs } from "../jobs/table.js";
import { when } from "../jobs/labels.js";

const saved = signal(null);
const failure = signal(null);
const path = (name) => `/v1/saved-plans/${encodeURIComponent(name)}`;

async function reload() {
  try {
    saved.value = (await call("/v1/saved-plans?limit=200")).rows;
    failure.value = null;
  } catch (error) {
    if (!error.problem) throw error;
    failure.value = error.problem;
  }
}

const put = (name, { note, request: document, answer_id }) =>
  call(path(name), { method: "PUT", body: { note, request: document, ...(answer_id && { answer_id }) } });

/* Run `work`; a refusal is shown in place, and typed text stays. */
async function tried(work) {
  try {
    await work();
    await reload();
    return [];
  } catch (error) {
    if (!error.problem) throw error;
    return error.problem.errors ?? [error.problem];
  }
}

export default function Saved() {
  useEffect(() => { reload(); loadJobs(); }, []);
  return html`
    <div class="narrow-view">
      <h1 class="for-readers">Saved</h1>
      <div id="results" tabindex="-1" class="stack">
        <${SaveNow} />
        <section class="card" aria-label="Saved plans">
          <h2>Saved plans</h2>
          ${failure.value && html`<p class="notice bad" role="alert">${failure.value.detail ?? failure.value.title}</p>`}
          ${saved.value?.length === 0 && html`<p class="muted">No plan is saved yet. Saved plans are stored by this service and visible to all its users; a link from Share works without being stored.</p>`}
          <ul class="saved-list">${(saved.value ?? []).map((one) => html`<${Entry} key=${one.name} one=${one} />`)}</ul>
        </section>
        <section class="card" aria-label="Runs"><h2>Runs</h2>
          ${jobs.value?.length === 0 ? html`<p class="muted">No run yet. <button type="button" class="link" onClick=${() => open("validate")}>Validate a plan</button> to compare it with a real run.</p>`
            : html`<${JobTable} rows=${jobs.value ?? []} onOpen=${() => open("validate")} />`}
        </section>
      </div>
    </div>`;
}

function SaveNow() {
  const [name, setName] = useState("");
  const [note, setNote] = useState("");
  const [problems, setProblems] = useState([]);
  const known = resolved.value;
  const taken = saved.value?.some((one) => one.name === name.trim());
  const submit = async (event) => {
    event.preventDefault();
    const document = picked.value ? planRequest.value : request.value;
    const found = await tried(() => put(name.trim(), { note, request: document, answer_id: answer.value?.id }));
    setProblems(found);
    if (!found.length) { setName(""); setNote(""); toast(`Saved as ${name.trim()}`); }
  };
  return html`
    <form class="card save-now" aria-label="Save the current plan" onSubmit=${submit}>
      <div><h2>Save the current plan</h2>
        <p class="muted">${known && `${known.model.name} on ${clusterLine(known.cluster)}`}${report.value && `: ${planLine(report.value.plan)}`}</p></div>
      <${TextField} id="save-name" label="Name" value=${name || undefined} onChange=${(value) => setName(value ?? "")} problems=${problems} />
      <${TextField} id="save-note" label="Note" value=${note || undefined} onChange=${(value) => setNote(value ?? "")} />
      <button class="primary" disabled=${!name.trim()}>${taken ? "Save over it" : "Save"}</button>
    </form>`;
}

/* Open a saved request in the Plan view, with its plan if it has one. */
function show({ request: { plan, ...document } }) {
  batch(() => {
    request.value = document;
    picked.value = plan ?? null;
    open("plan");
  });
}

const modelName = ({ model }) => (typeof model === "string" ? model : model?.name ?? "own model");
function clusterName({ cluster }) {
  if (typeof cluster === "string") return cluster;
  return `${cluster.nodes ?? 1} × ${cluster.accelerators_per_node ?? ""} ${cluster.accelerator?.name ?? cluster.accelerator ?? cluster.preset ?? cluster.name ?? ""}`;
}

function Entry({ one }) {
  const [editing, setEditing] = useState(false);
  const [leaving, setLeaving] = useState(false);
  const remove = async () => {
    setLeaving(false);
    const found = await tried(() => call(path(one.name), { method: "DELETE" }));
    if (found.length) return toast(found[0].detail, { kind: "bad" });
    return toast(`${one.name} deleted`, { action: "Undo", run: () => tried(() => put(one.name, one)) });
  };
  return html`
    <li>
      <div class="saved-what">
        <button type="button" class="link name" onClick=${() => show(one)}>${one.name}</button>
        <span class="muted">${modelName(one.request)} · ${clusterName(one.request)}${one.request.plan ? ` · ${planLine(one.request.plan)}` : ""}</span>
        ${one.note && html`<p>${one.note}</p>`}
      </div>
      <span class="muted">${when(one.saved_at)}</span>
      <span class="saved-tools">
        <button type="button" aria-label=${`Open ${one.name}`} onClick=${() => show(one)}>Open</button>
        <button type="button" class="quiet" aria-label=${`Rename ${one.name}`} onClick=${() => setEditing(true)}>Rename</button>
        <button type="button" class="quiet" aria-label=${`Delete ${one.name}`} onClick=${() => setLeaving(true)}>Delete</button>
      </span>
      <${Edit} one=${one} open=${editing} onClose=${() => setEditing(false)} />
      <${Dialog} title=${`Delete ${one.name}?`} open=${leaving} onClose=${() => setLeaving(false)}>
        <p>It is deleted for everyone who uses this service.</p>
        <div class="actions"><button type="button" onClick=${() => setLeaving(false)}>Keep it</button><button type="button" class="primary" onClick=${remove}>Delete</button></div>
      <//>
    </li>`;
}

function Edit({ one, open: isOpen, onClose }) {
  const [name, setName] = useState(one.name);
  const [note, setNote] = useState(one.note);
  const [problems, setProblems] = useState([]);
  const submit = async (event) => {
    event.preventDefault();
    const to = name.trim();
    if (to !== one.name && saved.value.some((other) => other.name === to)) return setProblems([{ detail: "Another plan has this name." }]);
    const found = await tried(async () => {
      await put(to, { ...one, note });
      if (to !== one.name) await call(path(one.name), { method: "DELETE" });
    });
    setProblems(found);
    if (!found.length) onClose();
    return undefined;
  };
  return html`
    <${Dialog} title="Name and note" open=${isOpen} onClose=${onClose}>
      <form class="stack" onSubmit=${submit}>
        <${TextField} id=${`rename-${one.name}`} label="Name" value=${name} onChange=${(value) => setName(value ?? "")} problems=${problems} />
        <${TextField} id=${`renote-${one.name}`} label="Note" value=${note} onChange=${(value) => setNote(value ?? "")} />
        <div class="actions"><button class="primary" disabled=${!name.trim()}>Save</button></div>
      </form>
    <//>`;
}
