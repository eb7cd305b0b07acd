// The interactive timeline, which the page wraps in a component and exported HTML files inline.

import { clamp, paint } from "./canvas.js";
import { KINDS, kindsIn, lanesOf, lengths, LETTERS } from "./lanes.js";
import { AXIS, drawTimeline, isDense, rowsOf, sides, unitOf } from "./timeline_draw.js";

const MOST_HIGH = 520; // px; a higher timeline scrolls
const MUSH = 6; // px; if actions would be narrower on average, only the first ones are shown at first

/** The data of a TimelineAnswer that a TimelineView draws.
 *
 * span_s, most: seconds and activations at full scale, for charts that share a scale. */
export function timelineData(answer, span_s = answer.makespan_s, most = Math.max(...answer.peak_in_flight)) {
  const lanes = lanesOf(answer);
  return { answer, lanes, kinds: kindsIn(lanes), ...lengths(lanes), span_s, most };
}

/** Heights in px of all lanes, and of the part that is visible without scrolling. */
export function timelineHeights({ lanes }) {
  const all = AXIS + 8 + rowsOf(lanes.length).pitch * lanes.length;
  return { all, visible: Math.min(all, MOST_HIGH) };
}

/** A zoom factor as text; empty if everything is visible. */
export const zoomText = (zoom) => (zoom > 1.01 ? `×${zoom < 10 ? zoom.toFixed(1) : Math.round(zoom)}` : "");

/** The state of a timeline (visible range, picked action), changed by gestures and keys.
 *
 * canvas: inside the scrolling element `scroll`; data: from timelineData; together: a Set of views
 * that move and zoom together; say({ text, at }): called with a text on the action pointed at or
 * picked, at: the tooltip's place, null for keys; zoomed({ zoom, dense }): called after each
 * change of the range. */
export class TimelineView {
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
    // A pointer that leaves does not clear an action that was picked with a key.
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

  /** Seconds to show at first: all, or only the first actions if they would be too narrow. */
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

  /** A pointer's position in the visible range of time, from 0 to 1. */
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

  /** Record the start of a drag or pinch with the pointers that are down. */
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
    // The time under the fingers stays under them.
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

  /** Pick an action and scroll it into view. */
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
