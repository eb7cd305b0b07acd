// The ranks of a RanksAnswer: their places, their groups, and the links of each group.

/** The ranks of an answer: axes, groups, and where each rank sits. */
export class Ranks {
  constructor(answer) {
    this.answer = answer;
    this.axes = [...answer.axes, ...answer.expert_axes].filter(
      (axis, i, all) => axis.size > 1 && all.findIndex((other) => other.name === axis.name) === i,
    );
    this.tiers = answer.request.cluster.groups[0].network;
    const talks = this.kind("tp");
    // Ranks whose tensor-parallel group leaves the fastest links.
    this.bad = new Uint8Array(answer.world_size);
    if (talks && talks.count > (talks.links[this.tiers[0].name] ?? 0)) {
      for (let rank = 0; rank < answer.world_size; rank++) {
        this.bad[rank] = this.link(this.members(talks, rank)) !== this.tiers[0].name;
      }
    }
  }

  kind(name) {
    return this.answer.groups.find((kind) => kind.name === name);
  }

  /** The axes of the grid along which a kind of group lies. */
  grid(kind) {
    const { axes, expert_axes } = this.answer;
    const named = (list) => kind.axes.map((name) => list.find((axis) => axis.name === name));
    return named(axes).every(Boolean) ? named(axes) : named(expert_axes);
  }

  /** The first rank of a rank's group, which identifies the group. */
  first(kind, rank) {
    return this.grid(kind).reduce((at, { size, stride }) => at - (Math.floor(rank / stride) % size) * stride, rank);
  }

  /** The ranks of a rank's group, ascending. */
  members(kind, rank) {
    let found = [this.first(kind, rank)];
    for (const { size, stride } of this.grid(kind)) {
      found = found.flatMap((at) => Array.from({ length: size }, (_, i) => at + i * stride));
    }
    return found.sort((a, b) => a - b);
  }

  /** The innermost tier of the network whose domain holds all these ranks. */
  link(members) {
    const inside = ({ domain_accelerators: domain }) =>
      !domain || Math.floor(members[0] / domain) === Math.floor(members.at(-1) / domain);
    return (this.tiers.find(inside) ?? this.tiers.at(-1)).name;
  }

  /** A rank's node, its place in the node, and its coordinate on every axis. */
  place(rank) {
    const per = this.answer.accelerators_per_node;
    const { coordinates } = this.answer;
    return {
      node: Math.floor(rank / per),
      slot: rank % per,
      coordinates: this.axes.map(({ name }) => [name, coordinates[name][rank]]),
    };
  }

  /** The choices for colouring cells: by the coordinate on an axis, or by group. */
  colourings() {
    const axes = this.axes.map(({ name, size }) => [`axis ${name}`, `${name} coordinate, 0 to ${size - 1}`]);
    const kinds = this.answer.groups.map(({ name, count }) => [`group ${name}`, `${name} group, ${count.toLocaleString("en")}`]);
    return [...axes, ...kinds];
  }

  /** One number per rank for a colouring. */
  values(colouring) {
    const name = colouring.slice(colouring.indexOf(" ") + 1);
    if (colouring.startsWith("axis ")) return this.answer.coordinates[name];
    const kind = this.kind(name);
    const numbers = new Map();
    return Array.from({ length: this.answer.world_size }, (_, rank) => {
      const first = this.first(kind, rank);
      if (!numbers.has(first)) numbers.set(first, numbers.size);
      return numbers.get(first);
    });
  }
}

/** Ranks in words: as a range if they are evenly spaced. */
export function rankWords(members) {
  const step = members[1] - members[0];
  const even = members.every((rank, i) => rank === members[0] + i * step);
  if (members.length > 3 && even) return `${members[0]} … ${members.at(-1)}${step > 1 ? ` by ${step}` : ""}`;
  return members.slice(0, 8).join(", ") + (members.length > 8 ? " …" : "");
}

export const EDGE = 5; // px around the whole picture

/** The layout of ranks on a picture of this width: nodes in columns, accelerators in rows of eight.
 *
 * size: px of a cell; cells become wider until the columns fill the picture. */
export function layout(answer, width, size) {
  const wide = Math.min(answer.accelerators_per_node, 8);
  const lines = Math.ceil(answer.accelerators_per_node / wide);
  const pad = size >= 14 ? 4 : 2;
  const head = size >= 14 ? 16 : 0;
  const gap = size >= 14 ? 12 : 5;
  const high = Math.round(size * (size >= 22 ? 0.75 : 1));
  const room = width - 2 * EDGE + gap;
  const fitting = Math.max(1, Math.floor(room / (wide * size + 2 * pad + gap)));
  const columns = Math.min(fitting, answer.nodes);
  const cell = Math.max(size, Math.min(1.5 * size, Math.floor((room / columns - gap - 2 * pad) / wide)));
  const box = { width: wide * cell + 2 * pad, height: lines * high + 2 * pad + head };
  const rows = Math.ceil(answer.nodes / columns);
  const total = rows * (box.height + gap) - gap + 2 * EDGE;
  const corner = (rank) => {
    const node = Math.floor(rank / answer.accelerators_per_node);
    const slot = rank % answer.accelerators_per_node;
    return {
      x: EDGE + (node % columns) * (box.width + gap) + pad + (slot % wide) * cell,
      y: EDGE + Math.floor(node / columns) * (box.height + gap) + pad + head + Math.floor(slot / wide) * high,
    };
  };
  /** The rank at a position in px, or -1. */
  const at = (x, y) => {
    const column = Math.floor((x - EDGE) / (box.width + gap));
    const row = Math.floor((y - EDGE) / (box.height + gap));
    const across = Math.floor((x - EDGE - column * (box.width + gap) - pad) / cell);
    const down = Math.floor((y - EDGE - row * (box.height + gap) - pad - head) / high);
    const slot = down * wide + across;
    const node = row * columns + column;
    const inside = across >= 0 && across < wide && down >= 0 && down < lines && column < columns && row >= 0;
    if (!inside || node >= answer.nodes || slot >= answer.accelerators_per_node) return -1;
    const rank = node * answer.accelerators_per_node + slot;
    return rank < answer.world_size ? rank : -1;
  };
  return { size, cell, high, wide, lines, pad, head, gap, box, columns, rows, total, corner, at };
}
