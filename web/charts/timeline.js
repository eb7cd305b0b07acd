// When each rank of a pipeline does what: zoom, pan, and point at single actions.

import { html } from "htm/preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { clamp, paint } from "./canvas.js";
import { kindsIn, KINDS, lanesOf, lengths, LETTERS } from "./lanes.js";
import { AXIS, drawTimeline, isDense, rowsOf, sides, unitOf } from "./timeline_draw.js";

const MOST_HIGH = 520; // px; more lanes scroll
const MUSH = 6; // px; where all actions would be narrower on average, only the first ones show
const BUTTONS = [
  ["-", "−", "Zoom out"],
  ["+", "+", "Zoom in"],
  ["0", "Fit", "Show the whole timeline"],
];

/** A TimelineAnswer as lanes of actions, each with its memory under it.
 *
 * span_s, most: seconds and activations that fill the picture, where several share a scale; those
 * with the same Set `together` also move and zoom as one. */
export function Timeline({ answer, span_s = answer.makespan_s, most, together, label }) {
  const data = useMemo(() => {
    const lanes = lanesOf(answer);
    const peak = most ?? Math.max(...answer.peak_in_flight);
    return { answer, lanes, kinds: kindsIn(lanes), ...lengths(lanes), span_s, most: peak };
  }, [answer, span_s, most]);
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
  const rows = rowsOf(data.lanes.length);
  const high = AXIS + 8 + rows.pitch * data.lanes.length;
  const shown = Math.min(high, MOST_HIGH);
  const name = label ?? `${answer.title}, ${answer.stages} stages, ${answer.micro_batches} micro-batches`;
  return html`<div class="timeline">
    <div class="canvas-tools">
      <${Legend} kinds=${data.kinds} chunks=${answer.chunks} most=${data.most} dense=${dense} />
      <span class="canvas-zoom">
        <output>${zoom > 1.01 ? `×${zoom < 10 ? zoom.toFixed(1) : Math.round(zoom)}` : ""}</output>
        ${BUTTONS.map(
          ([key, sign, title]) =>
            html`<button type="button" title=${title} aria-label=${title} onClick=${() => chart.current.press(key)}>
              ${sign}
            </button>`,
        )}
      </span>
    </div>
    <div class="canvas-scroll" ref=${scroll} style=${{ maxHeight: `${shown}px` }}>
      <div style=${{ height: `${high}px` }}>
        <canvas
          ref=${canvas}
          tabindex="0"
          role="application"
          aria-roledescription="timeline"
          aria-label=${`${name}. Arrow keys go from action to action and rank to rank; plus and minus zoom.`}
          style=${{ height: `${shown}px` }}
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

/** The numbers of each rank, for the table behind the chart: { columns, rows }. */
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

/** The moving part: what shows, what is picked, and what gestures and keys do to them. */
class TimelineView {
  constructor(canvas, scroll, data, together, say, zoomed) {
    const { span_s } = data;
    Object.assign(this, { canvas, scroll, data, span_s, together, say, zoomed });
    this.least_s = Math.max(span_s * 1e-6, Math.min(span_s, 2 * data.least_s));
    this.view = { from_s: 0, width_s: span_s, top: scroll.scrollTop };
    this.picked = { rank: 0, index: -1 };
    this.pointers = new Map();
    this.painter = paint(canvas, (context, width, height, colour) =>
      drawTimeline(context, width, height, colour, data, this.view, this.picked),
    );
    this.off = new AbortController();
    const listen = (target, name, act) =>
      target.addEventListener(name, act, { signal: this.off.signal, passive: false });
    listen(canvas, "wheel", (event) => this.wheel(event));
    listen(canvas, "pointerdown", (event) => this.down(event));
    listen(canvas, "pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) listen(canvas, name, (event) => this.up(event));
    // What a key picked stays when a pointer passes by.
    listen(canvas, "pointerleave", (event) => event.pointerType === "mouse" && this.pointed && this.pick(0, -1));
    listen(canvas, "dblclick", (event) => this.zoom(2, this.share(event)));
    listen(canvas, "keydown", (event) => this.key(event));
    listen(scroll, "scroll", () => {
      this.view.top = scroll.scrollTop;
      this.painter.redraw();
    });
    const others = [...together].map((other) => other.view.width_s);
    together.add(this);
    this.look(0, Math.max(this.opening(), ...others));
  }

  stop() {
    this.together.delete(this);
    this.off.abort();
    this.painter.stop();
  }

  /** Seconds to show at first: all, or where that would be mush, the first actions. */
  opening() {
    const { wide } = sides(this.canvas.clientWidth);
    const digits = String(this.data.answer.micro_batches - 1).length;
    const telling_s = (this.data.mean_s * wide) / (10 + 8 * digits);
    return this.data.mean_s * wide < this.span_s * MUSH ? Math.max(telling_s, this.least_s) : this.span_s;
  }

  look(from_s, width_s) {
    const wide = clamp(width_s, this.least_s, this.span_s);
    for (const one of this.together) {
      one.view.width_s = wide;
      one.view.from_s = clamp(from_s, 0, this.span_s - wide);
      const scale = sides(one.canvas.clientWidth).wide / wide;
      one.zoomed({ zoom: this.span_s / wide, dense: isDense(one.data, scale) });
      one.painter.redraw();
    }
  }

  zoom(factor, at = 0.5) {
    const { from_s, width_s } = this.view;
    const width = clamp(width_s / factor, this.least_s, this.span_s);
    this.look(from_s + (width_s - width) * at, width);
  }

  /** Where a pointer is along the visible time, 0 to 1. */
  share(event) {
    const { left, wide } = sides(this.canvas.clientWidth);
    return (event.clientX - this.canvas.getBoundingClientRect().left - left) / wide;
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(-clamp(event.deltaY, -60, 60) / 120), clamp(this.share(event), 0, 1));
      return;
    }
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (Math.abs(event.deltaX) <= Math.abs(event.deltaY) && !event.shiftKey) return;
    event.preventDefault();
    this.look(this.view.from_s + (sideways / this.canvas.clientWidth) * this.view.width_s, this.view.width_s);
  }

  down(event) {
    this.pointers.set(event.pointerId, event);
    this.canvas.setPointerCapture(event.pointerId);
    this.hold();
    if (event.pointerType === "touch") this.point(event);
  }

  up(event) {
    this.pointers.delete(event.pointerId);
    this.hold();
  }

  /** From where the pointers that are down now drag or pinch. */
  hold() {
    const shares = [...this.pointers.values()].map((pointer) => this.share(pointer));
    this.grip = { ...this.view, low: Math.min(...shares), high: Math.max(...shares) };
  }

  move(event) {
    if (!this.pointers.has(event.pointerId)) {
      this.point(event);
      return;
    }
    this.pointers.set(event.pointerId, event);
    const shares = [...this.pointers.values()].map((pointer) => this.share(pointer));
    const { grip } = this;
    const [low, high] = [Math.min(...shares), Math.max(...shares)];
    const pinch = shares.length > 1 ? Math.max(high - low, 0.02) / Math.max(grip.high - grip.low, 0.02) : 1;
    const width = clamp(grip.width_s / pinch, this.least_s, this.span_s);
    // What was under the fingers stays under them.
    this.look(grip.from_s + ((grip.low + grip.high) / 2) * grip.width_s - ((low + high) / 2) * width, width);
  }

  point(event) {
    const rows = rowsOf(this.data.lanes.length);
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const rank = Math.floor((y - AXIS + this.view.top) / rows.pitch);
    const share = this.share(event);
    const lane = this.data.lanes[rank];
    if (!lane || y < AXIS || share < 0 || share > 1) {
      this.pick(0, -1);
      return;
    }
    const time = this.view.from_s + share * this.view.width_s;
    const index = lane.at(time);
    const x = event.clientX - box.left;
    const flip = x > this.canvas.clientWidth / 2;
    const at = { x: flip ? x - 12 : x + 12, y: y + this.scroll.scrollTop + 18, flip };
    this.pick(rank, lane.start[index] <= time ? index : -1, at);
  }

  pick(rank, index, at = null) {
    this.picked = { rank, index };
    this.pointed = at !== null;
    this.say({ text: at || index >= 0 ? this.words() : "", at });
    this.painter.redraw();
  }

  words() {
    const { rank, index } = this.picked;
    const lane = this.data.lanes[rank];
    if (index < 0) return `rank ${rank}: idle`;
    const [unit, sign] = unitOf(this.data.mean_s);
    const number = (seconds) => Number((seconds / unit).toPrecision(5));
    const [start, end] = [lane.start[index], lane.end[index]];
    const batch = lane.batch[index] >= 0 ? `, micro-batch ${lane.batch[index]}` : "";
    const chunk = batch && this.data.answer.chunks > 1 ? `, chunk ${lane.chunk[index]}` : "";
    const what = KINDS[LETTERS[lane.kind[index]]];
    return `rank ${rank}: ${what}${batch}${chunk}, ${number(start)} to ${number(end)} ${sign} (${number(end - start)} ${sign})`;
  }

  press(key) {
    const acts = {
      "+": () => this.zoom(1.5),
      "=": () => this.zoom(1.5),
      "-": () => this.zoom(1 / 1.5),
      0: () => this.look(0, this.span_s),
      ArrowLeft: () => this.step(-1),
      ArrowRight: () => this.step(1),
      ArrowUp: () => this.rise(-1),
      ArrowDown: () => this.rise(1),
      Home: () => this.follow(this.picked.rank, 0),
      End: () => this.follow(this.picked.rank, Infinity),
      Escape: () => this.pick(0, -1),
    };
    acts[key]?.();
    return key in acts;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowLeft: -0.2, ArrowRight: 0.2 }[event.key];
    const moved = event.shiftKey && by;
    if (moved) this.look(this.view.from_s + by * this.view.width_s, this.view.width_s);
    if (moved || this.press(event.key)) event.preventDefault();
  }

  step(by) {
    this.follow(this.picked.rank, this.picked.index + by);
  }

  rise(by) {
    const { rank, index } = this.picked;
    const other = clamp(rank + by, 0, this.data.lanes.length - 1);
    const start = this.data.lanes[rank].start[index] ?? this.view.from_s;
    this.follow(other, this.data.lanes[other].at(start));
  }

  /** Pick an action and bring it into sight. */
  follow(rank, index) {
    const lane = this.data.lanes[rank];
    const within = clamp(index, 0, lane.size - 1);
    const [start, end] = [lane.start[within], lane.end[within]];
    const { from_s, width_s } = this.view;
    if (start < from_s || end > from_s + width_s) this.look((start + end - width_s) / 2, width_s);
    const { pitch } = rowsOf(this.data.lanes.length);
    const visible = this.canvas.clientHeight - AXIS - pitch;
    this.scroll.scrollTop = clamp(this.scroll.scrollTop, rank * pitch - visible, rank * pitch);
    this.pick(rank, within);
  }
}
