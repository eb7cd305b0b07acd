/* Texts for jobs: kinds, states, times. */

import { seconds } from "../format.js";

export const KINDS = {
  validations: { title: "Validation", verb: "Validate", part: "validation" },
  calibrations: { title: "Calibration", verb: "Calibrate", part: "calibration" },
  dryruns: { title: "Dry run", verb: "Dry run", part: "dryrun" },
  sweeps: { title: "Sweep", verb: "Sweep" },
};

/* The current activity of a job, by phase. */
const PHASES = {
  waiting: "Waiting for its turn", prepare: "Preparing", reference: "Running one process to compare with",
  run: "Running", measure: "Measuring", trace: "Tracing", profile: "Writing the profile", report: "Writing the report", ask: "Asking",
};
export const doing = ({ state, phase }) => (state === "cancelling" ? "Stopping every process" : PHASES[phase] ?? phase);

export const OVER = ["succeeded", "failed", "cancelled"];
export const isOver = ({ state }) => OVER.includes(state);

const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const AGO = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const STEPS = [[60, 1, "second"], [3600, 60, "minute"], [86_400, 3600, "hour"], [604_800, 86_400, "day"]];

const at = (time) => Date.parse(time) / 1000;

/* A timestamp in words. */
export function when(time) {
  const ago = Date.now() / 1000 - at(time);
  if (ago < 10) return "just now";
  const [, size, name] = STEPS.find(([most]) => ago < most) ?? [];
  return size ? AGO.format(-Math.round(ago / size), name) : DATE.format(Date.parse(time));
}

/* Seconds that a job has run; null before it started. */
export const took = ({ started_at: from, finished_at: to }) => (from ? (to ? at(to) : Date.now() / 1000) - at(from) : null);
export const lasted = (job) => (took(job) === null ? "" : seconds(Math.max(1, took(job)), 2));
