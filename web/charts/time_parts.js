/* The parts of an iteration's time, in one bar. */

import { html } from "htm/preact";
import { percent, seconds } from "../format.js";
import { report } from "../state.js";
import { ChartFrame } from "./frame.js";
import { partsOf, timeParts } from "./palette.js";

/* The parts, with the communication that recompute repeats separate from recompute's kernels. */
function shown({ time_parts_s: parts, recompute_exchange_s: exchange }) {
  return { ...parts, recompute: parts.recompute - exchange, recompute_exchange: exchange };
}

export function TimeChart() {
  const { iteration_time_s: whole } = report.value;
  const parts = shown(report.value);
  const rows = partsOf(timeParts, parts)
    .map((part) => ({ ...part, time_s: parts[part.key], share: parts[part.key] / whole }));
  const columns = [
    { key: "label", label: "Part" },
    { key: "time_s", label: "Time", number: true, show: (v) => seconds(v) },
    { key: "share", label: "Share", number: true, show: (v) => percent(v) },
  ];
  const largest = rows.filter(({ key }) => key !== "forward" && key !== "backward")
    .reduce((a, b) => (b.time_s > (a?.time_s ?? 0) ? b : a), null);
  const caption = largest
    ? `${seconds(whole)} in all. Beyond forward and backward, most goes to ${largest.noun}: ${percent(largest.share)}.`
    : `${seconds(whole)} in all.`;
  return html`
    <${ChartFrame} title="Time of one iteration" name="time" columns=${columns} rows=${rows} caption=${caption}>
      <div class="time-bar" role="img" aria-label=${rows.map(({ label, time_s }) => `${label} ${seconds(time_s)}`).join(", ")}>
        ${rows.map(({ key, label, colour, share, time_s }) => html`
          <i key=${key} class=${`part part-${key}`} style=${{ width: `${share * 100}%`, background: colour }} title=${`${label}: ${seconds(time_s)}, ${percent(share)}`}></i>`)}
      </div>
      <ul class="legend with-values">
        ${rows.map(({ key, label, colour, time_s, share }) => html`
          <li key=${key}><i class=${`part-${key}`} style=${{ background: colour }}></i><span>${label}</span><b>${seconds(time_s)}</b><span class="muted">${percent(share, 2)}</span></li>`)}
      </ul>
    <//>`;
}
