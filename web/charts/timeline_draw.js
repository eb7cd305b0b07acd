// Draws a timeline on a canvas: only the visible part.

import { clamp, fills, ticks } from "./canvas.js";
import { after, LETTERS } from "./lanes.js";

export const AXIS = 28;
const APART = 3.5; // px: least width of an action with an outline
const LEAST = 4; // px: below this average width, columns are drawn instead of actions
const COLUMN = 2; // px: least width of a column
const ROWS = [
  [8, 26, 18, 14],
  [20, 18, 12, 9],
  [72, 12, 8, 5],
  [Infinity, 9, 5, 4],
];

/** Heights in px: a rank's bar, its memory area, and the pitch from one rank to the next. */
export function rowsOf(ranks) {
  const [, bar, memory, gap] = ROWS.find(([most]) => ranks <= most);
  return { bar, memory, pitch: bar + memory + gap };
}

/** The left edge and the width of lanes, between the names and the numbers. */
export function sides(width) {
  const left = width < 600 ? 34 : 52;
  const right = width < 600 ? 8 : 108;
  return { left, right, wide: Math.max(1, width - left - right) };
}

/** Whether actions are so narrow at this scale (px per second) that columns replace them. */
export const isDense = (data, scale) => data.mean_s * scale < LEAST;

/** Draw the visible part `view`, { from_s, width_s, top }, of a timeline that is span_s long.
 *
 * data: { answer, lanes, kinds, mean_s, most }; picked: { rank, index } of an action, whose
 * micro-batch is outlined on all ranks. */
export function drawTimeline(context, width, height, colour, data, view, picked) {
  const rows = rowsOf(data.lanes.length);
  const { left, wide } = sides(width);
  const scale = wide / view.width_s;
  const dense = isDense(data, scale);
  const styles = fills(context, colour);
  const frame = { ...view, span_s: data.span_s, scale, wide, dense, styles, colour, rows, data };
  const first = Math.max(0, Math.floor((view.top - rows.pitch) / rows.pitch));
  const chosen = data.lanes[picked.rank]?.batch[picked.index] ?? -1;
  grid(context, frame, left, height);
  context.save();
  context.beginPath();
  context.rect(0, AXIS, width, height - AXIS);
  context.clip();
  for (let rank = first; rank < data.lanes.length; rank++) {
    const y = AXIS + 4 + rank * rows.pitch - view.top;
    if (y > height) break;
    const lane = data.lanes[rank];
    label(context, frame, lane, y, left, width);
    context.save();
    context.beginPath();
    context.rect(left, y - 2, wide, rows.bar + rows.memory + 4);
    context.clip();
    context.translate(left, y);
    context.fillStyle = colour("tl-idle");
    context.fillRect(0, 0, wide, rows.bar);
    if (dense) columns(context, frame, lane);
    else actions(context, frame, lane);
    memory(context, frame, lane);
    outline(context, frame, lane, chosen, picked);
    context.restore();
  }
  context.restore();
}

const xOf = (frame, time) => (time - frame.from_s) * frame.scale;

function grid(context, frame, left, height) {
  const { colour, wide } = frame;
  const [unit, sign] = unitOf(frame.width_s);
  context.strokeStyle = colour("line");
  context.fillStyle = colour("muted");
  context.lineWidth = 1;
  context.textAlign = "center";
  context.textBaseline = "alphabetic";
  const marks = ticks(frame.from_s / unit, (frame.from_s + frame.width_s) / unit, Math.max(2, wide / 90));
  context.beginPath();
  marks.forEach((value, i) => {
    const x = Math.round(left + xOf(frame, value * unit)) + 0.5;
    context.moveTo(x, AXIS - 6);
    context.lineTo(x, height);
    context.fillText(i === 0 ? `${value} ${sign}` : value, x, AXIS - 9);
  });
  context.stroke();
  if (frame.width_s >= frame.span_s) return;
  // A bar at the top shows which part of the whole is visible.
  context.fillRect(left + (frame.from_s / frame.span_s) * wide, 2, Math.max(3, (frame.width_s / frame.span_s) * wide), 3);
  context.fillStyle = colour("line");
  context.globalCompositeOperation = "destination-over";
  context.fillRect(left, 2, wide, 3);
  context.globalCompositeOperation = "source-over";
}

/** The unit of an axis that spans this many seconds: its length in seconds and its symbol. */
export function unitOf(seconds) {
  const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  return units.find(([unit]) => seconds >= unit * (1 - 1e-6)) ?? units.at(-1); // with a margin for rounding
}

function label(context, frame, lane, y, left, width) {
  const { colour, data, rows } = frame;
  const { answer } = data;
  const oneLine = rows.memory < 11; // idle share and peak side by side
  const size = clamp(rows.pitch - 2, 8, oneLine ? 10 : 11);
  context.font = context.font.replace(/^[\d.]+px/, `${size}px`);
  context.fillStyle = colour("muted");
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillText(lane.rank, left - 8, y + rows.bar / 2);
  if (width < 600) return;
  const idle = `${Math.round(Math.max(0, 1 - lane.busy_s / answer.makespan_s) * 100)} % idle`;
  const peak = `peak ${Number(answer.peak_in_flight[lane.rank].toPrecision(3))}`;
  if (oneLine) {
    context.fillText(`${idle}, ${peak}`, width - 2, y + rows.bar / 2);
    return;
  }
  context.fillText(idle, width - 6, y + rows.bar / 2);
  context.fillText(peak, width - 6, y + rows.bar + rows.memory / 2 + 1);
}

function actions(context, frame, lane) {
  const { styles, rows, wide } = frame;
  const paths = new Map();
  const numbers = [];
  const size = Math.min(11, rows.bar * 0.62);
  const digit = size * 0.6;
  const apart = frame.data.mean_s * frame.scale >= APART ? 1 : 0;
  for (let i = lane.at(frame.from_s); i < lane.size; i++) {
    const x = xOf(frame, lane.start[i]);
    if (x > wide) break;
    const right = xOf(frame, lane.end[i]);
    if (right === x) continue;
    const key = lane.kind[i] * 2 + (lane.chunk[i] > 0 ? lane.chunk[i] % 2 : 0);
    if (!paths.has(key)) paths.set(key, new Path2D());
    const [low, high] = [Math.max(x, -2), Math.min(right, wide + 2)];
    paths.get(key).rect(low, 0, Math.max(high - low - apart, 0.5), rows.bar);
    const room = right - x - 2.5;
    if (lane.batch[i] >= 0 && size >= 7 && room >= digit) {
      const words = String(lane.batch[i]);
      // The number is centred on the visible part of the action.
      if (room >= words.length * digit) numbers.push([words, (Math.max(x, 0) + Math.min(right, wide)) / 2]);
    }
  }
  for (const [key, path] of paths) {
    context.globalAlpha = key % 2 ? 0.55 : 1;
    context.fillStyle = styles[LETTERS[key >> 1]];
    context.fill(path);
  }
  context.globalAlpha = 1;
  context.fillStyle = frame.colour("ink");
  context.font = context.font.replace(/^[\d.]+px/, `${size}px`);
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const [words, x] of numbers) context.fillText(words, x, rows.bar / 2 + 0.5);
}

/** Columns in which the height of each kind is its share of the time.
 *
 * A column spans whole cycles, a cycle being the time of one micro-batch in one chunk, so that the
 * columns of a steady state look alike instead of showing an aliasing pattern. */
function columns(context, frame, lane) {
  const { styles, rows, data } = frame;
  const { answer } = data;
  const cycle_s = answer.ideal_s / (answer.micro_batches * answer.chunks);
  const step_s = cycle_s * Math.ceil(COLUMN / frame.scale / cycle_s);
  const firstColumn = Math.floor(frame.from_s / step_s);
  const last_s = Math.min(frame.from_s + frame.width_s, answer.makespan_s);
  const kinds = [...lane.spent.keys()].sort();
  const paths = new Map(kinds.map((kind) => [kind, new Path2D()]));
  let edge = firstColumn * step_s;
  let before = sums(lane, kinds, edge, lane.at(edge));
  for (let column = firstColumn + 1; edge < last_s; column++) {
    const next = Math.min(column * step_s, answer.makespan_s);
    const now = sums(lane, kinds, next, lane.at(next));
    const x = xOf(frame, edge);
    const wide = xOf(frame, next) - x;
    let foot = rows.bar;
    kinds.forEach((kind, k) => {
      const high = ((now[k] - before[k]) / (next - edge)) * rows.bar;
      foot -= high;
      if (high > 0.05) paths.get(kind).rect(x, foot, wide + 0.3, high);
    });
    before = now;
    edge = next;
  }
  for (const [kind, path] of paths) {
    context.fillStyle = styles[LETTERS[kind]];
    context.fill(path);
  }
}

const sums = (lane, kinds, time, i) => kinds.map((kind) => lane.spentBy(kind, time, i));

/** The activations that the rank holds over time, as an area scaled to the fullest rank. */
function memory(context, frame, lane) {
  const { rows, wide, colour, data } = frame;
  const foot = rows.bar + rows.memory;
  const level = (held) => foot - (Math.max(0, held) / data.most) * (rows.memory - 2);
  const start = after(lane.heldAt, frame.from_s);
  let y = level(start ? lane.held[start - 1] : 0);
  const area = new Path2D();
  area.moveTo(-2, foot + 2);
  area.lineTo(-2, y);
  let column = -1;
  for (let i = start; i < lane.heldAt.length; i++) {
    const x = xOf(frame, lane.heldAt[i]);
    if (x > wide) break;
    // Within one pixel column only the maximum is drawn.
    const held = Math.min(level(lane.held[i]), Math.floor(x) === column ? y : Infinity);
    column = Math.floor(x);
    if (held === y) continue;
    area.lineTo(x, y);
    y = held;
    area.lineTo(x, y);
  }
  area.lineTo(wide + 2, y);
  area.lineTo(wide + 2, foot + 2);
  context.save();
  context.beginPath();
  context.rect(0, rows.bar, wide, rows.memory);
  context.clip();
  context.fillStyle = context.strokeStyle = colour("tl-memory");
  context.globalAlpha = 0.35;
  context.fill(area);
  context.globalAlpha = 1;
  context.lineWidth = 1;
  context.stroke(area);
  context.restore();
}

function outline(context, frame, lane, chosen, picked) {
  const alone = lane.rank === picked.rank ? picked.index : -1;
  if (chosen < 0 && alone < 0) return;
  const { rows, wide } = frame;
  const path = new Path2D();
  const box = (i) => {
    const x = xOf(frame, lane.start[i]);
    const high = rows.bar - 1.6;
    path.rect(x + 0.3, 0.8, Math.max(xOf(frame, lane.end[i]) - x - 1.2, 1), high);
  };
  for (let i = lane.at(frame.from_s); chosen >= 0 && i < lane.size; i++) {
    if (xOf(frame, lane.start[i]) > wide) break;
    if (lane.batch[i] === chosen) box(i);
  }
  context.strokeStyle = frame.colour("ink");
  context.lineWidth = 1.6;
  context.stroke(path);
  if (alone < 0) return;
  const x = xOf(frame, lane.start[alone]);
  context.lineWidth = 3;
  context.strokeRect(x, 0.5, Math.max(xOf(frame, lane.end[alone]) - x - 0.5, 2), rows.bar - 1);
}
