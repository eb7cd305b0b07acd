// A TimelineAnswer as flat arrays, which are quick to search, sum and draw.

export const KINDS = {
  F: "forward",
  B: "backward",
  I: "input gradient",
  W: "weight gradient",
  C: "waits for a message",
};
export const LETTERS = Object.keys(KINDS);
export const WAIT = LETTERS.indexOf("C");

/** The lanes of a TimelineAnswer, one per rank. */
export const lanesOf = (answer) => answer.actions.map((_, rank) => new Lane(answer, rank));

/** The kinds that occur, in the order that columns stack them. */
export function kindsIn(lanes) {
  const found = new Set(lanes.flatMap((lane) => [...new Set(lane.kind)]));
  return LETTERS.filter((_, kind) => found.has(kind));
}

/** Seconds of the average and of the shortest action. */
export function lengths(lanes) {
  let [sum, count, least] = [0, 0, Infinity];
  for (const lane of lanes) {
    for (let i = 0; i < lane.size; i++) {
      const length = lane.end[i] - lane.start[i];
      if (lane.kind[i] === WAIT || length === 0) continue;
      sum += length;
      count += 1;
      least = Math.min(least, length);
    }
  }
  return { mean_s: sum / count, least_s: least };
}

/** One rank: its actions and waits in order of time, and the activations that it holds.
 *
 * kind: index into LETTERS; batch, chunk: -1 for a wait; spent: seconds before each action, per
 * kind. */
class Lane {
  constructor(answer, rank) {
    const actions = answer.actions[rank];
    const rows = [...actions, ...answer.waits[rank]].sort((a, b) => a.start_s - b.start_s);
    this.rank = rank;
    this.size = rows.length;
    this.kind = Int8Array.from(rows, (row) => (row.kind ? LETTERS.indexOf(row.kind) : WAIT));
    this.batch = Int32Array.from(rows, (row) => row.micro_batch ?? -1);
    this.chunk = Int16Array.from(rows, (row) => row.chunk ?? -1);
    this.start = Float64Array.from(rows, (row) => row.start_s);
    this.end = Float64Array.from(rows, (row) => row.end_s);
    // A forward pass allocates its activation when it starts; a backward frees its own at its end.
    this.heldAt = Float64Array.from(actions, (row) => (row.kind === "F" ? row.start_s : row.end_s));
    this.held = Float64Array.from(answer.in_flight[rank]);
    this.spent = new Map();
    for (const kind of new Set(this.kind)) {
      const spent = new Float64Array(this.size + 1);
      for (let i = 0; i < this.size; i++) {
        spent[i + 1] = spent[i] + (this.kind[i] === kind ? this.end[i] - this.start[i] : 0);
      }
      this.spent.set(kind, spent);
    }
  }

  get busy_s() {
    return [...this.spent].reduce((sum, [kind, spent]) => sum + (kind === WAIT ? 0 : spent[this.size]), 0);
  }

  /** The first action that ends after this time. */
  at(time) {
    return after(this.end, time);
  }

  /** Seconds that a kind has taken up to a time; i: the first action that ends after it. */
  spentBy(kind, time, i) {
    const inside = this.kind[i] === kind && this.start[i] < time ? time - this.start[i] : 0;
    return this.spent.get(kind)[i] + inside;
  }
}

/** The index of the first value above a bound. */
export function after(values, bound) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > bound) high = middle;
    else low = middle + 1;
  }
  return low;
}
