/* <MeasuredChart rows=${[…]} colour="accelerator" picked=${id} onPick=${(row) => …} />
   Predicted against measured time of published runs, or their ratio: one point per run. */

import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { count, number, percent, seconds } from "../format.js";
import { byValue, ln, nameOf, runPlan, valueOf } from "../published_runs.js";
import { ChartFrame } from "./frame.js";
import { SERIES } from "./palette.js";
import { PlotFigure } from "./plot.js";

const NEAR = 0.1; // relative width of the band around the diagonal
const SIDES = { time: "Times", ratio: "Ratio" };
const COLUMNS = [
  { key: "source", label: "Source" },
  { key: "model", label: "Model" },
  { key: "accelerators", label: "Number", number: true },
  { key: "accelerator", label: "Accelerator" },
  { key: "stack", label: "Stack" },
  { key: "plan", label: "Plan", value: runPlan },
  { key: "predicted_s", label: "Predicted", number: true, show: (v) => seconds(v) },
  { key: "measured_s", label: "Measured", number: true, show: (v) => seconds(v) },
  { key: "off", label: "Off by", number: true, value: (row) => row.predicted_s / row.measured_s - 1, show: (v) => signed(v) },
];

export const signed = (share) => `${share > 0 ? "+" : "−"}${percent(Math.abs(share), 2)}`;
export const saidOf = (row) => `${row.model} on ${count(row.accelerators)} × ${nameOf("accelerator", row.accelerator)}: predicted ${seconds(row.predicted_s)}, measured ${seconds(row.measured_s)} (${signed(row.predicted_s / row.measured_s - 1)})`;

export function MeasuredChart({ rows, colour, picked, onPick }) {
  const [side, setSide] = useState("time");
  const groups = byValue(rows, colour).map(({ name }) => name);
  const named = groups.slice(0, groups.length > SERIES.length ? SERIES.length - 1 : SERIES.length);
  const domain = named.length < groups.length ? [...named, "others"] : named;
  const group = (row) => (named.includes(valueOf(row, colour)) ? valueOf(row, colour) : "others");
  const y = side === "time" ? "predicted_s" : (row) => Math.exp(ln(row));
  const ends = [Math.min, Math.max].map((of) => of(...rows.flatMap((row) => [row.predicted_s, row.measured_s])));
  const middle = (value) => (side === "time" ? value : 1);
  const draw = (Plot, width) => {
    const shown = picked && rows.filter((row) => row.id === picked);
    const figure = Plot.plot({
      className: "plot", width, height: Math.min(480, Math.max(300, width * 0.5)), marginLeft: 60, marginBottom: 40, marginTop: 24, marginRight: 20,
      x: { type: "log", label: "Measured →", tickFormat: (value) => seconds(value, 2), ticks: width < 500 ? 3 : 6, grid: true },
      y: side === "time"
        ? { type: "log", label: "↑ Predicted", tickFormat: (value) => seconds(value, 2), ticks: 5, grid: true }
        : { type: "log", label: "↑ Predicted / measured", tickFormat: (value) => number(value, 2), ticks: 6, grid: true },
      color: { type: "ordinal", domain, range: SERIES },
      marks: [
        Plot.areaY(ends, { x: (value) => value, y1: (value) => middle(value) / (1 + NEAR), y2: (value) => middle(value) * (1 + NEAR), fill: "var(--line)", fillOpacity: 0.7 }),
        Plot.line(ends, { x: (value) => value, y: middle, stroke: "var(--line-strong)" }),
        side === "time" && shown && Plot.ruleX(shown.filter((row) => row.intervals_s), { x: "measured_s", y1: (row) => row.intervals_s["80"][0], y2: (row) => row.intervals_s["80"][1], stroke: "var(--ink)", strokeWidth: 1.5 }),
        Plot.dot(rows, { className: "points", x: "measured_s", y, fill: group, r: 3.2, fillOpacity: 0.75, ariaLabel: saidOf }),
        shown && Plot.dot(shown, { x: "measured_s", y, r: 7, stroke: "var(--ink)", strokeWidth: 1.5 }),
        Plot.tip(rows, Plot.pointer({ x: "measured_s", y, title: saidOf, maxRadius: 20 })),
      ].filter(Boolean),
    });
    makeKeyed(figure, rows, picked, onPick);
    return figure;
  };
  const tools = html`<div class="segments" role="group" aria-label="What is drawn">
    ${Object.entries(SIDES).map(([id, label]) => html`<button key=${id} type="button" aria-pressed=${String(side === id)} onClick=${() => setSide(id)}>${label}</button>`)}</div>`;
  return html`
    <${ChartFrame} title="Predicted against measured" name="accuracy" columns=${COLUMNS} rows=${rows} tools=${tools}
      caption="Each point is a published run, predicted from what its source states; the band is 10 % to either side. Click one, or move with the arrow keys, to read it.">
      <${PlotFigure} draw=${draw} deps=${[rows, colour, picked, side]} label="Predicted against measured time of published runs" height=${300} />
      <ul class="legend">${domain.map((name, i) => html`<li key=${name}><i class="round" style=${{ background: SERIES[i] }}></i>${nameOf(colour, name)}</li>`)}</ul>
    <//>`;
}

/* A single tab stop; arrow keys move from run to run in order of measured time. */
function makeKeyed(figure, rows, picked, onPick) {
  const dots = [...figure.querySelectorAll(".points > *")];
  const order = rows.map((_, i) => i).sort((a, b) => rows[a].measured_s - rows[b].measured_s);
  const first = Math.max(0, rows.findIndex(({ id }) => id === picked));
  dots.forEach((dot, i) => {
    dot.setAttribute("role", "button");
    dot.setAttribute("tabindex", i === first ? "0" : "-1");
    dot.addEventListener("click", () => onPick(rows[i]));
    dot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (event.key === "Enter" || event.key === " ") onPick(rows[i]);
      else if (step) onPick(rows[order[(order.indexOf(i) + step + order.length) % order.length]]);
      else return;
      event.preventDefault();
    });
  });
}
