/* The displayed job, followed live; a broken connection resumes at the last event.

   job       the job document; null if no job is displayed
   lines     the log lines of its processes
   run       the kind of job to run next
   follow()  follows `current` until it is over or another job is displayed */

import { batch, signal } from "@preact/signals";
import { call, events, post } from "../api.js";
import { persist } from "../state.js";
import { current, loadJobs } from "./table.js";
import { isOver } from "./labels.js";

const AGAIN_MS = 1000; // pause before a broken connection is retried
const MOST_LINES = 2000;

export const run = persist("run", "validations");
export const job = signal(null);
export const lines = signal([]);
export const failure = signal(null);

export const pathOf = ({ kind, id }) => `/v1/${kind}/${id}`;
let following = null;

const pause = (aborted) => new Promise((resolve) => {
  const timer = setTimeout(resolve, AGAIN_MS);
  aborted.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

const take = {
  progress: ({ state, phase, ...progress }) => { job.value = { ...job.peek(), state, phase, progress }; },
  log: ({ text }) => { lines.value = [...lines.peek(), text].slice(-MOST_LINES); },
};

export async function follow() {
  following?.abort();
  const asked = current.peek();
  const mine = new AbortController();
  following = mine;
  if (!asked) return;
  if (job.peek()?.id !== asked.id) batch(() => { job.value = null; lines.value = []; failure.value = null; });
  let last;
  try {
    job.value = await call(pathOf(asked), { signal: mine.signal });
    lines.value = [];
    for (let over = false; !over && !mine.signal.aborted;) {
      try {
        for await (const { event, id, data } of events(`${pathOf(asked)}/events`, { signal: mine.signal, lastEventId: last })) {
          last = id ?? last;
          take[event]?.(data);
          over = event === "done";
          if (over) break;
        }
      } catch (error) {
        if (error.name === "AbortError") return;
        if (error.problem?.status >= 400 && error.problem.status < 500) throw error;
      }
      if (!over) await pause(mine.signal);
    }
    if (mine.signal.aborted) return;
    job.value = await call(pathOf(asked), { signal: mine.signal });
    loadJobs();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!error.problem) throw error;
    failure.value = error.problem;
  }
}

export const leave = () => following?.abort();

/* Start a job and display it. */
export async function start(kind, body) {
  const made = await post(`/v1/${kind}`, body);
  batch(() => { job.value = made; lines.value = []; failure.value = null; current.value = { kind, id: made.id }; });
  loadJobs();
}

export async function cancel() {
  if (job.peek() && !isOver(job.peek())) job.value = await post(`${pathOf(job.peek())}/cancel`, {});
}

export async function forget(one) {
  await call(pathOf(one), { method: "DELETE" });
  batch(() => { if (current.peek()?.id === one.id) { current.value = null; job.value = null; } });
  await loadJobs();
}
