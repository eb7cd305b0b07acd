// The placement of ranks: nodes as boxes, accelerators as cells, coloured by axis or group.

import { html } from "htm/preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { clamp, paint } from "./canvas.js";
import { drawRanks, HUES } from "./rank_map_draw.js";
import { layout, Ranks, rankWords } from "./ranks.js";

const MOST_HIGH = 480; // px; a higher map scrolls
const CELLS = [34, 26, 20, 14, 10, 8, 6]; // px
const PREFERRED = ["pp", "dp", "dp_shard", "dp_replicate", "cp", "tp"];

/** A RanksAnswer as a map. */
export function RankMap({ answer }) {
  const ranks = useMemo(() => new Ranks(answer), [answer]);
  const choices = ranks.colourings();
  const usual = PREFERRED.map((name) => `axis ${name}`).find((key) => choices.some(([known]) => known === key));
  const [wanted, setColouring] = useState(null);
  const colouring = choices.some(([key]) => key === wanted) ? wanted : (usual ?? null);
  const [rank, setRank] = useState(-1);
  const [kept, setKept] = useState(-1);
  const [cell, setCell] = useState(null);
  const values = useMemo(() => (colouring ? ranks.values(colouring) : new Uint8Array(answer.world_size)), [ranks, colouring]);
  const canvas = useRef(null);
  const scroll = useRef(null);
  const view = useRef(null);
  const [size, setSize] = useState({ width: 0, total: MOST_HIGH });
  useEffect(() => {
    view.current = new MapView(canvas.current, scroll.current, ranks, { setRank, setKept, setSize });
    setKept(-1);
    setRank(-1);
    return () => view.current.stop();
  }, [ranks]);
  const shown = rank >= 0 ? rank : kept;
  useEffect(() => view.current.show({ values, cell, rank: shown }), [ranks, values, cell, shown]);
  const now = cell ?? (size.width ? fitting(answer, size.width) : CELLS[0]);
  const other = (by) => CELLS[CELLS.indexOf(now) + by];
  const high = Math.min(size.total, MOST_HIGH);
  return html`<div class="rank-map">
    <div class="canvas-tools">
      <label class="inline">Colour by
        <select value=${colouring} onChange=${(event) => setColouring(event.target.value)} disabled=${!choices.length}>
          ${choices.map(([key, text]) => html`<option value=${key} selected=${key === colouring}>${text}</option>`)}
        </select>
      </label>
      <${Search} most=${answer.world_size - 1} find=${(found) => view.current.follow(found)} />
      <span class="canvas-zoom">
        <button type="button" aria-label="Smaller cells" title="Smaller cells" disabled=${!other(1)} onClick=${() => setCell(other(1))}>−</button>
        <button type="button" aria-label="Larger cells" title="Larger cells" disabled=${!other(-1)} onClick=${() => setCell(other(-1))}>+</button>
        <button type="button" onClick=${() => setCell(null)}>Fit</button>
      </span>
    </div>
    <${Legend} values=${values} />
    ${answer.warnings.map((warning) => html`<p class="rank-map-warning"><b aria-hidden="true">!</b> ${warning.text}</p>`)}
    <div class="rank-map-both">
      <div class="canvas-scroll" ref=${scroll} style=${{ maxHeight: `${high}px` }}>
        <div style=${{ height: `${size.total}px` }}>
          <canvas
            ref=${canvas}
            tabindex="0"
            role="application"
            aria-roledescription="rank map"
            aria-label=${`${answer.world_size} ranks on ${answer.nodes} nodes of ${answer.accelerators_per_node}. Arrow keys go from accelerator to accelerator.`}
            style=${{ height: `${high}px` }}
          ></canvas>
        </div>
      </div>
      <${Details} ranks=${ranks} rank=${shown} kept=${shown === kept} />
    </div>
    ${size.total > high && html`<p class="canvas-hint">Scroll the map for all ${answer.nodes.toLocaleString("en")} nodes.</p>`}
    <p class="for-readers" role="status">${rank < 0 && kept >= 0 ? spoken(ranks, kept) : ""}</p>
  </div>`;
}

/** The groups of an answer, for the table behind the map: { columns, rows }. */
export function ranksTable(answer) {
  return {
    columns: [
      { key: "name", label: "Groups" },
      { key: "size", label: "Ranks each", number: true },
      { key: "count", label: "Count", number: true },
      { key: "link", label: "Link" },
      { key: "ranks", label: "First groups" },
      { key: "carries", label: "Carries" },
    ],
    rows: answer.groups.map((kind) => ({
      name: kind.name,
      size: kind.size,
      count: kind.count,
      link: Object.entries(kind.links)
        .map(([name, count]) => (count === kind.count ? name : `${count} ${name}`))
        .join(", "),
      ranks: kind.ranks.slice(0, 2).map(rankWords).join("; ") + (kind.count > 2 ? "; …" : ""),
      carries: kind.carries,
    })),
  };
}

function Legend({ values }) {
  let most = 0;
  for (const value of values) most = Math.max(most, value);
  const shown = Math.min(most + 1, HUES);
  return html`<ul class="legend">
    ${Array.from({ length: shown }, (_, i) => html`<li><i class=${`action rank-${i}`} aria-hidden="true"></i>${i}</li>`)}
    ${most >= HUES && html`<li>… ${most}: colours repeat, with a bar at the foot</li>`}
    <li><i class="action tensor-frame" aria-hidden="true"></i>tensor-parallel group</li>
  </ul>`;
}

function Search({ most, find }) {
  const go = (event) => {
    const { value, validity } = event.target;
    if (value !== "" && validity.valid) find(Number(value));
  };
  return html`<label class="inline">Rank
    <input type="number" min="0" max=${most} placeholder="0" onInput=${go} />
  </label>`;
}

function Details({ ranks, rank, kept }) {
  if (rank < 0) {
    return html`<div class="rank-map-details">
      <p class="muted">
        Point at an accelerator, or use the arrow keys, to see its coordinates, its groups and their links.
        A click or <kbd>Enter</kbd> keeps it selected.
      </p>
      <dl>
        ${ranks.axes.map(({ name, size, stride }) => html`<dt>${name}</dt><dd>${size} ranks, stride ${stride}</dd>`)}
      </dl>
    </div>`;
  }
  const { node, slot, coordinates } = ranks.place(rank);
  return html`<div class="rank-map-details">
    <h4>Rank ${rank} <small>node ${node}, accelerator ${slot}${kept ? ", kept" : ""}</small></h4>
    <p class="rank-map-place">${coordinates.map(([name, value]) => html`<span>${name} <b>${value}</b></span>`)}</p>
    <table>
      <thead>
        <tr><th scope="col">group</th><th scope="col">ranks</th><th scope="col">link</th></tr>
      </thead>
      <tbody>
        ${ranks.answer.groups.map((kind, i) => {
          const members = ranks.members(kind, rank);
          return html`<tr title=${kind.carries}>
            <th scope="row"><i class="group-mark" style=${{ background: `var(--c${(i % 6) + 1})` }} aria-hidden="true"></i>${kind.name}</th>
            <td>${rankWords(members)} <small>(${members.length})</small></td>
            <td>${ranks.link(members)}</td>
          </tr>`;
        })}
      </tbody>
    </table>
  </div>`;
}

function spoken(ranks, rank) {
  const { node, slot, coordinates } = ranks.place(rank);
  const groups = ranks.answer.groups.map((kind) => {
    const members = ranks.members(kind, rank);
    return `${kind.name} over ${ranks.link(members)} with ${rankWords(members)}`;
  });
  const place = coordinates.map(([name, value]) => `${name} ${value}`).join(", ");
  return `rank ${rank}, node ${node}, accelerator ${slot}; ${place}; ${groups.join("; ")}`;
}

/** The largest cells with which all nodes are visible, or else the smallest that can be clicked. */
function fitting(answer, width) {
  const all = CELLS.find((cell) => {
    const made = layout(answer, width, cell);
    return made.total <= MOST_HIGH && made.box.width <= width;
  });
  return all ?? CELLS.at(-2);
}

class MapView {
  constructor(canvas, scroll, ranks, say) {
    Object.assign(this, { canvas, scroll, ranks, say });
    this.state = { values: [], cell: null, rank: -1 };
    this.layout = null;
    this.painter = paint(canvas, (context, width, height, colour) => {
      this.arrange(width);
      drawRanks(context, width, height, colour, ranks, this.layout, { ...this.state, top: scroll.scrollTop });
    });
    this.off = new AbortController();
    const listen = (target, name, act) => target.addEventListener(name, act, { signal: this.off.signal });
    listen(canvas, "pointermove", (event) => event.pointerType === "mouse" && say.setRank(this.under(event)));
    listen(canvas, "pointerleave", () => say.setRank(-1));
    listen(canvas, "click", (event) => this.keep(this.under(event)));
    listen(canvas, "keydown", (event) => this.key(event));
    listen(scroll, "scroll", () => this.painter.redraw());
  }

  stop() {
    this.off.abort();
    this.painter.stop();
  }

  show(state) {
    this.state = state;
    this.painter.redraw();
  }

  arrange(width) {
    const cell = this.state.cell ?? fitting(this.ranks.answer, width);
    if (this.layout?.size === cell && this.width === width) return;
    this.width = width;
    this.layout = layout(this.ranks.answer, width, cell);
    this.say.setSize({ width, total: this.layout.total });
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.layout.at(event.clientX - box.left, event.clientY - box.top + this.scroll.scrollTop);
  }

  keep(rank) {
    this.kept = rank;
    this.say.setKept(rank);
    this.say.setRank(-1);
  }

  key(event) {
    const per = this.ranks.answer.accelerators_per_node;
    const { columns, wide } = this.layout;
    const at = Math.max(this.kept ?? -1, 0);
    const slot = at % per;
    // Up and down move within the node while it has rows, then to the node above or below.
    const vertical = (by) => {
      const next = slot + by * wide;
      return next >= 0 && next < per ? at + by * wide : at - slot + by * columns * per + ((next % per) + per) % per;
    };
    const to = {
      ArrowLeft: () => at - 1,
      ArrowRight: () => ((this.kept ?? -1) < 0 ? 0 : at + 1),
      ArrowUp: () => vertical(-1),
      ArrowDown: () => vertical(1),
      PageUp: () => at - per * columns * 4,
      PageDown: () => at + per * columns * 4,
      Home: () => 0,
      End: () => this.ranks.answer.world_size - 1,
      Escape: () => -1,
      Enter: () => (this.state.rank >= 0 ? this.state.rank : at),
    }[event.key];
    if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.follow(to());
  }

  /** Select a rank and scroll it into view. */
  follow(rank) {
    if (rank >= this.ranks.answer.world_size || (rank < 0 && rank !== -1)) return;
    this.keep(rank);
    if (rank < 0) return;
    const { y } = this.layout.corner(rank);
    const room = this.canvas.clientHeight;
    this.scroll.scrollTop = clamp(this.scroll.scrollTop, y + this.layout.high + 8 - room, y - this.layout.head - 8);
  }
}
