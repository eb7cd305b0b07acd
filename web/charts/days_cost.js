/* <DaysCostChart found=${SizingAnswer} nameOf=${(kind) => name} onOpen=${(row) => …} />
   Days against cost, or against the number of accelerators: a line per kind over its sizes. */

import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { big, count, distinct, money, number } from "../format.js";
import { ChartFrame } from "./frame.js";
import { SERIES } from "./palette.js";
import { PlotFigure } from "./plot.js";

const AXES = {
  cost_usd: { label: "Cost", show: distinct((usd, digits) => `$${big(usd, digits)}`) },
  accelerators: { label: "Accelerators", show: count },
};

const COLUMNS = [
  { key: "accelerator", label: "Kind" },
  { key: "accelerators", label: "Number", number: true },
  { key: "days", label: "Days", number: true, show: (value) => number(value) },
  { key: "cost_usd", label: "Cost", number: true, show: money },
  { key: "on_front", label: "On the front" },
];

const said = (nameOf) => (row) => `${count(row.accelerators)} × ${nameOf(row.accelerator)}: ${number(row.days)} days${row.cost_usd === null ? "" : `, ${money(row.cost_usd)}`}${row.exceeds.length ? "; beyond a limit" : ""}`;

const WIDE = 10; // ratio of the ends below which a logarithmic axis has too few round ticks
const scaleOf = (values) => (Math.max(...values) / Math.min(...values) > WIDE ? "log" : "linear");

export function DaysCostChart({ found, nameOf, onOpen }) {
  const runs = found.rows.filter((row) => row.plan);
  const priced = runs.some((row) => row.cost_usd !== null);
  const [chosen, setAxis] = useState("cost_usd");
  const axis = priced ? chosen : "accelerators";
  const rows = runs.filter((row) => row[axis] !== null);
  const kinds = [...new Set(rows.map((row) => row.accelerator))];
  const left = [...new Set(found.rows.map((row) => row.accelerator))].filter((kind) => !kinds.includes(kind));
  const { deadline_days, budget_usd } = found.request.sizing;
  // A limit far outside the data would squeeze the points together.
  const inside = (limit, key) => limit && rows.some((row) => row[key] <= limit) && rows.some((row) => row[key] >= limit) && limit;
  const deadline = inside(deadline_days, "days");
  const budget = axis === "cost_usd" && inside(budget_usd, "cost_usd");
  const tools = priced && html`<div class="segments" role="group" aria-label="Across">
    ${Object.entries(AXES).map(([id, { label }]) => html`<button key=${id} type="button" aria-pressed=${String(axis === id)} onClick=${() => setAxis(id)}>${label}</button>`)}
  </div>`;
  const draw = (Plot, width) => {
    const figure = Plot.plot({
      className: "plot", width, height: Math.min(420, Math.max(280, width * 0.42)), marginLeft: 56, marginBottom: 40, marginTop: 24, marginRight: 24,
      x: { type: scaleOf(rows.map((row) => row[axis])), nice: true, label: `${AXES[axis].label} →`, tickFormat: AXES[axis].show, ticks: width < 500 ? 3 : 7, grid: true },
      y: { type: scaleOf(rows.map((row) => row.days)), nice: true, label: "↑ Days", tickFormat: distinct((days, digits) => number(days, days < 1 ? digits - 1 : digits)), ticks: 5, grid: true },
      color: { domain: kinds, range: kinds.map((_, i) => SERIES[i % SERIES.length]) },
      symbol: { domain: kinds },
      marks: [
        deadline && Plot.ruleY([deadline], { stroke: "currentColor", strokeDasharray: "4 4", strokeOpacity: 0.6 }),
        deadline && Plot.text([deadline], { y: (d) => d, text: () => "deadline", frameAnchor: "right", textAnchor: "end", dy: -7, fill: "currentColor" }),
        budget && Plot.ruleX([budget], { stroke: "currentColor", strokeDasharray: "4 4", strokeOpacity: 0.6 }),
        budget && Plot.text([budget], { x: (d) => d, text: () => "budget", frameAnchor: "top", textAnchor: "start", dx: 5, fill: "currentColor" }),
        Plot.line(rows, { x: axis, y: "days", stroke: "accelerator", z: "accelerator", strokeWidth: 1.5, strokeOpacity: 0.55 }),
        Plot.dot(rows.filter((row) => row.on_front), { x: axis, y: "days", r: 8, stroke: "currentColor", strokeWidth: 1.25 }),
        Plot.dot(rows, {
          className: "points", x: axis, y: "days", fill: "accelerator", symbol: "accelerator", r: 4.5,
          fillOpacity: (row) => (row.exceeds.length ? 0.3 : 1), ariaLabel: said(nameOf),
        }),
        Plot.tip(rows, Plot.pointer({ x: axis, y: "days", title: said(nameOf) })),
      ].filter(Boolean),
    });
    const points = figure.querySelectorAll(".points > *");
    points.forEach((point, i) => {
      point.setAttribute("tabindex", i ? "-1" : "0");
      point.setAttribute("role", "button");
      point.addEventListener("click", () => onOpen(rows[i]));
      point.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (event.key === "Enter" || event.key === " ") onOpen(rows[i]);
        else if (step) points[(i + step + points.length) % points.length].focus();
        else return;
        event.preventDefault();
      });
    });
    return figure;
  };
  const legend = html`<ul class="legend">${kinds.map((kind, i) => html`<li key=${kind}><i style=${{ background: SERIES[i % SERIES.length] }}></i>${nameOf(kind)}</li>`)}
    <li><i class="ring"></i>nothing else is both faster and cheaper</li></ul>`;
  return html`
    <${ChartFrame} title=${axis === "cost_usd" ? "Days against cost" : "Days by number of accelerators"} name="days-cost" columns=${COLUMNS} rows=${runs} tools=${tools}
      caption=${`One line per kind, a point per number of accelerators; faint points miss a limit. Click one to open it in Plan.${left.length ? ` Not drawn, no price or nothing fits: ${left.map(nameOf).join(", ")}.` : ""}`}>
      <${PlotFigure} draw=${draw} deps=${[found, axis]} label="Days against cost, by kind" height=${280} />
      ${legend}
    <//>`;
}
