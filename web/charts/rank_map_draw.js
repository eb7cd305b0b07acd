// Draws a rank map on a canvas: only the visible nodes.

import { EDGE } from "./ranks.js";

export const HUES = 8;

/** Draw the part of the map below `top`: { values, rank, top }. */
export function drawRanks(context, width, height, colour, ranks, layout, { values, rank, top }) {
  const { answer } = ranks;
  const { box, gap, columns, head } = layout;
  const first = Math.max(0, Math.floor(top / (box.height + gap))) * columns;
  const last = Math.min(answer.nodes, Math.ceil((top + height) / (box.height + gap)) * columns);
  const marked = rank >= 0 ? answer.groups.map((kind) => new Set(ranks.members(kind, rank))) : [];
  const related = new Set(marked.flatMap((members) => [...members]));
  const fills = Array.from({ length: HUES }, (_, i) => colour(`rank-${i}`));
  const per = answer.accelerators_per_node;
  const digits = String(answer.world_size - 1).length;
  context.save();
  context.translate(0, -top);
  context.textBaseline = "middle";
  const font = (size) => (context.font = context.font.replace(/^[\d.]+px/, `${size}px`));
  for (let node = first; node < last; node++) {
    const x = EDGE + (node % columns) * (box.width + gap);
    const y = EDGE + Math.floor(node / columns) * (box.height + gap);
    context.fillStyle = colour("tl-idle");
    context.strokeStyle = colour("line");
    context.beginPath();
    context.roundRect(x + 0.5, y + 0.5, box.width - 1, box.height - 1, 4);
    context.fill();
    context.stroke();
    if (head) {
      font(10);
      context.fillStyle = colour("muted");
      context.textAlign = "left";
      context.fillText(`node ${node}`, x + 5, y + head / 2 + 2);
    }
    for (let at = node * per; at < Math.min((node + 1) * per, answer.world_size); at++) {
      cell(at);
    }
    tensorGroups(context, colour, ranks, layout, node);
  }
  marks();
  context.restore();

  function cell(at) {
    const { x, y } = layout.corner(at);
    const inset = layout.cell >= 14 ? 1 : 0.5;
    const value = values[at];
    context.globalAlpha = rank >= 0 && !related.has(at) ? 0.25 : 1;
    context.fillStyle = fills[value % HUES];
    context.fillRect(x + inset, y + inset, layout.cell - 2 * inset, layout.high - 2 * inset);
    // Beyond eight values colours repeat; later rounds get a bar, so that 9 differs from 1.
    if (value >= HUES) {
      context.fillStyle = colour("ink");
      context.globalAlpha *= 0.5;
      const round = Math.min(Math.floor(value / HUES), 3);
      context.fillRect(x + inset, y + layout.high - inset - 2, ((layout.cell - 2 * inset) * round) / 3, 2);
      context.globalAlpha *= 2;
    }
    const size = Math.min(11, (layout.cell - 4) / (digits * 0.6));
    if (size >= 8) {
      font(size);
      context.textAlign = "center";
      context.fillStyle = colour("ink");
      context.fillText(at, x + layout.cell / 2, y + layout.high / 2 + 0.5);
    }
    context.globalAlpha = 1;
  }

  /** Mark the groups of the chosen rank: a coloured edge for each, side by side in the cell. */
  function marks() {
    if (rank < 0) return;
    const from = first * per;
    const until = last * per;
    for (const at of related) {
      if (at < from || at >= until) continue;
      const { x, y } = layout.corner(at);
      const mine = marked.map((members, i) => [members, i]).filter(([members]) => members.has(at));
      const thick = layout.cell >= 14 ? 3 : 2;
      mine.forEach(([, i], k) => {
        context.fillStyle = colour(`c${(i % 6) + 1}`);
        const part = (layout.cell - 2) / mine.length;
        context.fillRect(x + 1 + k * part, y + 1, part, thick);
      });
    }
    const { x, y } = layout.corner(rank);
    context.strokeStyle = colour("ink");
    context.lineWidth = 2.5;
    context.strokeRect(x, y, layout.cell, layout.high);
  }
}

/** Draw a frame around each tensor-parallel group of a node, red if it leaves the fastest links. */
function tensorGroups(context, colour, ranks, layout, node) {
  const kind = ranks.kind("tp");
  if (!kind) return;
  const per = ranks.answer.accelerators_per_node;
  const frames = { fine: new Path2D(), bad: new Path2D() };
  const [first, end] = [node * per, Math.min((node + 1) * per, ranks.answer.world_size)];
  const side = (path, x, y, to_x, to_y) => {
    path.moveTo(x, y);
    path.lineTo(to_x, to_y);
  };
  const group = (at) => (at < first || at >= end ? -1 : ranks.first(kind, at));
  for (let at = first; at < end; at++) {
    const { x, y } = layout.corner(at);
    const [right, foot] = [x + layout.cell, y + layout.high];
    const path = ranks.bad[at] ? frames.bad : frames.fine;
    const mine = group(at);
    const slot = at - first;
    if (slot % layout.wide === 0 || group(at - 1) !== mine) side(path, x, y, x, foot);
    if (slot % layout.wide === layout.wide - 1 || group(at + 1) !== mine) side(path, right, y, right, foot);
    if (group(at - layout.wide) !== mine) side(path, x, y, right, y);
    if (group(at + layout.wide) !== mine) side(path, x, foot, right, foot);
  }
  context.lineWidth = layout.cell >= 14 ? 1.2 : 0.7;
  context.strokeStyle = colour("muted");
  context.stroke(frames.fine);
  context.lineWidth = 2;
  context.strokeStyle = colour("bad");
  context.setLineDash([4, 2]);
  context.stroke(frames.bad);
  context.setLineDash([]);
}
