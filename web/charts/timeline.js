// The interactive pipeline timeline: zoom, pan, and pointing at single actions.

import { html } from "htm/preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { KINDS, lanesOf } from "./lanes.js";
import { unitOf } from "./timeline_draw.js";
import { timelineData, timelineHeights, TimelineView, zoomText } from "./timeline_view.js";

const BUTTONS = [
  ["-", "−", "Zoom out"],
  ["+", "+", "Zoom in"],
  ["0", "Fit", "Show the whole timeline"],
];

/** A TimelineAnswer as lanes of actions, each with its memory below.
 *
 * span_s, most: seconds and activations at full scale, for charts that share a scale; charts with
 * the same Set `together` also move and zoom together. */
export function Timeline({ answer, span_s = answer.makespan_s, most, together, label }) {
  const data = useMemo(() => timelineData(answer, span_s, most), [answer, span_s, most]);
  const canvas = useRef(null);
  const scroll = useRef(null);
  const chart = useRef(null);
  const [read, setRead] = useState({ text: "", at: null });
  const [{ zoom, dense }, setZoom] = useState({ zoom: 1, dense: false });
  useEffect(() => {
    const made = new TimelineView(canvas.current, scroll.current, data, together ?? new Set(), setRead, setZoom);
    chart.current = made;
    setRead({ text: "", at: null });
    return () => made.stop();
  }, [data]);
  const { all, visible } = timelineHeights(data);
  const name = label ?? `${answer.title}, ${answer.stages} stages, ${answer.micro_batches} micro-batches`;
  return html`<div class="timeline">
    <div class="canvas-tools">
      <${Legend} kinds=${data.kinds} chunks=${answer.chunks} most=${data.most} dense=${dense} />
      <span class="canvas-zoom">
        <output>${zoomText(zoom)}</output>
        ${BUTTONS.map(
          ([key, sign, title]) =>
            html`<button type="button" title=${title} aria-label=${title} onClick=${() => chart.current.press(key)}>
              ${sign}
            </button>`,
        )}
      </span>
    </div>
    <div class="canvas-scroll" ref=${scroll} style=${{ maxHeight: `${visible}px` }}>
      <div style=${{ height: `${all}px` }}>
        <canvas
          ref=${canvas}
          tabindex="0"
          role="application"
          aria-roledescription="timeline"
          aria-label=${`${name}. Arrow keys go from action to action and rank to rank; plus and minus zoom.`}
          style=${{ height: `${visible}px` }}
        ></canvas>
      </div>
      ${read.at && html`<div class="canvas-tip" aria-hidden="true" style=${tipPlace(read.at)}>${read.text}</div>`}
    </div>
    <p class="for-readers" role="status">${read.at ? "" : read.text}</p>
    <p class="canvas-hint">
      ${read.text && !read.at
        ? read.text
        : html`Drag to move, <kbd>Ctrl</kbd> + wheel or pinch to zoom. Keys: <kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd>
            <kbd>↓</kbd> action by action, <kbd>Shift</kbd> + <kbd>←</kbd> <kbd>→</kbd> move, <kbd>+</kbd>
            <kbd>−</kbd> <kbd>0</kbd> zoom.`}
    </p>
  </div>`;
}

/** The numbers of each rank for the chart's data table: { columns, rows }. */
export function timelineTable(answer) {
  const causes = Object.keys(answer.idle_s[0] ?? {});
  const time = (key, label) => ({ key, label, number: true, show: (value) => secondsText(value) });
  return {
    columns: [
      { key: "rank", label: "Rank", number: true },
      time("work_s", "Work"),
      time("idle_s", "Idle"),
      ...causes.map((cause) => time(`idle_${cause}_s`, `Idle: ${cause}`)),
      { key: "peak_in_flight", label: "Most in flight", number: true },
    ],
    rows: lanesOf(answer).map(({ rank, busy_s }) => ({
      rank,
      work_s: busy_s,
      idle_s: Math.max(0, answer.makespan_s - busy_s),
      ...Object.fromEntries(causes.map((cause) => [`idle_${cause}_s`, answer.idle_s[rank][cause]])),
      peak_in_flight: answer.peak_in_flight[rank],
    })),
  };
}

function Legend({ kinds, chunks, most, dense }) {
  return html`<ul class="legend">
    ${kinds.map((kind) => html`<li><i class=${`action action-${kind}`} aria-hidden="true"></i>${KINDS[kind]}</li>`)}
    <li><i class="action action-idle" aria-hidden="true"></i>idle</li>
    ${!dense && chunks > 1 && html`<li><i class="action action-F action-odd" aria-hidden="true"></i>fainter: odd chunks</li>`}
    ${dense && html`<li>height of a colour: its share of the time</li>`}
    <li><i class="action action-memory" aria-hidden="true"></i>activations held, full height ${Number(most.toPrecision(3))}</li>
  </ul>`;
}

const tipPlace = ({ x, y, flip }) => ({ left: `${x}px`, top: `${y}px`, transform: flip ? "translateX(-100%)" : "none" });

function secondsText(seconds) {
  const [unit, sign] = unitOf(seconds || 1);
  return `${Number((seconds / unit).toPrecision(4))} ${sign}`;
}
