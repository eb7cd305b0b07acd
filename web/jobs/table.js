/* The service's jobs as a table, newest first; each row opens its job. */

import { html } from "htm/preact";
import { signal } from "@preact/signals";
import { call } from "../api.js";
import { persist } from "../state.js";
import { DataTable } from "../ui/table.js";
import { KINDS, doing, isOver, lasted, took, when } from "./labels.js";

const MOST = 50;

export const jobs = signal(null);
export const current = persist("job", null); // {kind, id} of the displayed job

export async function loadJobs() {
  try {
    jobs.value = (await call(`/v1/jobs?limit=${MOST}`)).rows;
  } catch (error) {
    if (!error.problem) throw error;
    jobs.value = [];
  }
}

const COLUMNS = [
  { key: "kind", label: "Run", value: (job) => KINDS[job.kind].title },
  { key: "title", label: "Of" },
  { key: "state", label: "State", value: (job) => (isOver(job) ? job.state : doing(job)),
    show: (text, job) => html`<span class="state ${job.state}">${text}</span>` },
  { key: "created_at", label: "Asked", show: when },
  { key: "took_s", label: "Took", number: true, value: took, show: (_, job) => lasted(job) },
];

export const JobTable = ({ rows, onOpen }) => html`
  <${DataTable} caption="Runs" columns=${COLUMNS} rows=${rows} rowKey=${({ id }) => id} filter=${rows.length > 12}
    isCurrent=${({ id }) => id === current.value?.id}
    onRow=${({ kind, id }) => { current.value = { kind, id }; onOpen?.(); }} />`;
