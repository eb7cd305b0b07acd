/* The Pareto front of speed against memory; each plan is a point that can be shown or pinned. */

import { html } from "htm/preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { call } from "../api.js";
import { big, bytes, BYTE_UNITS, number, planLine, seconds, tokensPerSecond } from "../format.js";
import { answer, isPinned, pick, pins, report, togglePin, units } from "../state.js";
import { canonical } from "../url.js";
import { toast } from "../ui/toast.js";
import { ChartFrame } from "./frame.js";
import { SERIES } from "./palette.js";
import { PlotFigure } from "./plot.js";

const MOST_REJECTED = 400; // rejected plans shown, the nearest misses first
const MOST_OVER = 2; // times the capacity; plans beyond it would squeeze the other points together
const SHAPES = { none: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", selective: "M0-4.6 4.6 3.4H-4.6z", full: "M-3.6-3.6h7.2v7.2h-7.2z" };
const SYMBOLS = { none: "circle", selective: "triangle", full: "square" };

function pointsOf(found) {
  const seen = new Map();
  const add = (one, kind) => one && seen.set(canonical(one.plan), { report: one, kind });
  found.pareto.forEach((one) => add(one, "front"));
  add(found.baseline?.report, "hand-made plan");
  add(found.recipe?.plan, "published recipe");
  add(found.best, "best");
  return [...seen.values()].map(({ report: one, kind }) => ({
    plan: one.plan, report: one, kind, peak_bytes: one.memory.peak_bytes, tokens_per_s: one.tokens_per_s,
    pp: one.plan.pp, recompute: one.plan.recompute,
  })).sort((a, b) => a.peak_bytes - b.peak_bytes);
}

export function ParetoChart() {
  const found = answer.value;
  const points = useMemo(() => (found?.best ? pointsOf(found) : []), [found]);
  const [rejected, setRejected] = useState(null); // plans that need more memory than there is
  useEffect(() => setRejected(null), [found]);
  const toggle = async () => {
    if (rejected !== null) return setRejected(null);
    const path = `/v1/plans/${found.id}/candidates?status=memory&sort=peak_bytes&limit=${MOST_REJECTED}`;
    return call(path).then(({ rows }) => setRejected(rows), (error) => toast(error.message, { kind: "bad" }));
  };
  const size = BYTE_UNITS[units.value];
  const current = canonical(report.value.plan);
  const columns = [
    { key: "plan", label: "Plan", value: ({ plan }) => planLine(plan) },
    { key: "tokens_per_s", label: "Tokens/s", number: true },
    { key: "iteration_time_s", label: "Iteration", number: true, value: (row) => row.report.iteration_time_s, show: (v) => seconds(v) },
    { key: "peak_bytes", label: `Peak (${units.value})`, number: true, show: (v) => number(v / size) },
  ];
  const draw = (Plot, width) => {
    const stages = [...new Set(points.map(({ pp }) => pp))].sort((a, b) => a - b);
    const capacity = report.value.memory.capacity_bytes / size;
    const misses = (rejected ?? []).filter(({ peak_bytes }) => peak_bytes / size < MOST_OVER * capacity);
    const x = (point) => point.peak_bytes / size;
    const y = (point) => point.tokens_per_s;
    const now = points.find(({ plan }) => canonical(plan) === current)
      ?? { ...report.value, peak_bytes: report.value.memory.peak_bytes, pp: report.value.plan.pp, recompute: report.value.plan.recompute };
    const chart = Plot.plot({
      className: "plot", width, height: 264, marginLeft: 52, marginBottom: 38, marginTop: 18, marginRight: 18,
      x: { label: `Fullest stage, ${units.value}`, labelAnchor: "right", labelArrow: "none", nice: true, ticks: 6 },
      y: { label: "Tokens/s", labelArrow: "none", grid: true, nice: true, tickFormat: (value) => big(value), ticks: 5 },
      color: { type: "ordinal", domain: stages, range: SERIES, label: "Stages" },
      symbol: { domain: Object.keys(SYMBOLS), range: Object.values(SYMBOLS) },
      marks: [
        Plot.ruleX([capacity], { stroke: "var(--bad)", strokeDasharray: "3 3", strokeOpacity: 0.8 }),
        Plot.line(points.filter(({ kind }) => kind !== "hand-made plan"), { x, y, stroke: "var(--line-strong)", strokeWidth: 1, curve: "step-before" }),
        Plot.dot(misses, { x, y, symbol: "times", className: "misses", stroke: "var(--c8)", strokeOpacity: 0.6, r: 3, title: (row) => `${planLine(row)}: needs ${bytes(row.peak_bytes, units.peek())}` }),
        Plot.dot(points, { x, y, fill: "pp", symbol: "recompute", r: 4.5, stroke: "var(--surface)", strokeWidth: 1, className: "points" }),
        Plot.dot([now], { x, y, r: 9, stroke: "var(--ink)", strokeWidth: 1.5, fill: "none" }),
        Plot.dot(points.filter(({ plan }) => isPinned(plan)), { x, y, r: 12, stroke: "var(--accent)", strokeWidth: 1.5, strokeDasharray: "2 2" }),
        Plot.text(points.filter(({ kind }) => kind === "hand-made plan"), { x, y, text: () => "hand-made plan", dy: 14, fill: "var(--muted)", fontSize: 11 }),
      ],
    });
    makeKeyed(chart, points);
    return chart;
  };
  const tools = found?.id && html`<button type="button" class="quiet" aria-pressed=${String(rejected !== null)} title="Show plans that need more memory than is available" onClick=${toggle}>Rejected</button>`;
  return html`
    <${ChartFrame} title="Speed against memory" name="pareto" columns=${columns} rows=${points} tools=${tools}
      caption="Each point is the fastest plan for its memory; the dashed line is the accelerator's memory. Click a point or use the arrow keys to show its plan; p pins it.">
      <${PlotFigure} draw=${draw} deps=${[points, current, units.value, pins.value, rejected]} label="Plans, tokens per second against memory of the fullest stage" height=${264} />
      <${Key} points=${points} />
    <//>`;
}

/* The legend: colour stands for the number of pipeline stages, shape for recompute. */
function Key({ points }) {
  const stages = [...new Set(points.map(({ pp }) => pp))].sort((a, b) => a - b);
  const kinds = Object.keys(SYMBOLS).filter((kind) => points.some(({ recompute }) => recompute === kind));
  return html`<ul class="legend">
    ${stages.map((pp, i) => html`<li key=${pp}><i class="round" style=${{ background: SERIES[i % SERIES.length] }}></i>PP ${pp}</li>`)}
    ${kinds.map((kind) => html`<li key=${kind}><svg viewBox="-6 -6 12 12" aria-hidden="true"><path d=${SHAPES[kind]} /></svg>${kind === "none" ? "no recompute" : kind}</li>`)}
  </ul>`;
}

/* A single tab stop; arrow keys move from point to point, and the displayed plan follows. */
function makeKeyed(chart, points) {
  const dots = [...chart.querySelectorAll(".points > *")];
  const at = Math.max(0, points.findIndex(({ plan }) => canonical(plan) === canonical(report.peek().plan)));
  dots.forEach((dot, i) => {
    const { plan, peak_bytes, tokens_per_s, kind } = points[i];
    const label = `${planLine(plan)}: ${tokensPerSecond(tokens_per_s)}, ${bytes(peak_bytes, units.peek())}${kind === "front" ? "" : ` (${kind})`}`;
    dot.setAttribute("role", "button");
    dot.setAttribute("aria-label", label);
    dot.setAttribute("tabindex", i === at ? "0" : "-1");
    dot.append(Object.assign(document.createElementNS("http://www.w3.org/2000/svg", "title"), { textContent: label }));
    dot.addEventListener("click", () => pick(plan));
    dot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      // The displayed plan: until the chart is drawn again, the previous point has the focus.
      if (event.key === "p") togglePin(report.peek().plan);
      else if (event.key === "Enter" || event.key === " ") pick(plan);
      else if (step) {
        pick(points[Math.min(points.length - 1, Math.max(0, i + step))].plan);
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
  });
}
