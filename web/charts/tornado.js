/* <Tornado inputs=${InputSensitivity[]} measure="time per token" current="nodes" onSelect=${(name) => …} />
   The inputs that move the measure, most first: a row per input, with its lower value in one colour
   and its higher in another on an axis of ratios, and marks for the best plan at those values. */

import { html } from "htm/preact";
import { bytes, count, flops, number, percent, rate, seconds, unit } from "../format.js";
import { units } from "../state.js";

const VALUES = {
  "bytes/s": rate, "FLOP/s": flops, s: seconds, share: percent, count, ratio: number,
  bytes: (value) => bytes(value, units.value),
  "USD/h": (value) => `$${value.toFixed(2)}/h`,
  W: (value) => unit(number(value / 1000), "kW"),
};
export const inputValue = (value, name) => (VALUES[name] ?? number)(value);

export const signed = (change) => (Math.abs(change) < 0.0005 ? "0 %" : `${change > 0 ? "+" : "−"}${number(100 * Math.abs(change))} %`);

const TICKS = [-0.9, -0.75, -0.5, -0.33, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 9];
const QUIET = 0.001; // smaller changes count as none

/* The points of the lowest and the highest value. */
const ends = ({ points }) => [points.find(({ factor }) => factor < 1), points.findLast(({ factor }) => factor > 1)].filter(Boolean);
const runs = ({ fixed, fixed_change: change }) => fixed?.fits && change !== null;
const again = ({ replanned_change: change, fixed_change: held, fixed }) => change !== null && (!fixed?.fits || Math.abs(change - held) >= QUIET);
export const moves = (input) => input.points.some((point) => !runs(point) || Math.abs(point.fixed_change) >= QUIET || Math.abs(point.replanned_change) >= QUIET);

const times = (factor) => Number(factor.toPrecision(3));

/* The CSS position of a label beside a mark: away from the middle, but not over the edge. */
const beside = (at, side) => ((at > 50 && at < 65) || at < 35 || (at === 50 && side === "more") ? { left: `calc(${at}% + 0.6rem)` } : { right: `calc(${100 - at}% + 0.6rem)` });

const place = (change, most) => 50 + (50 * Math.log1p(change)) / most;

export function Tornado({ inputs, measure, current, onSelect }) {
  const changes = inputs.flatMap(ends).flatMap((point) => [runs(point) && point.fixed_change, again(point) && point.replanned_change]).filter((one) => typeof one === "number");
  const most = 1.06 * Math.max(0.02, ...changes.map((change) => Math.abs(Math.log1p(change))));
  const ticks = [];
  for (const change of TICKS) {
    const at = place(change, most);
    if (at > 2 && at < 98 && Math.abs(at - 50) > 13 && ticks.every((one) => Math.abs(one.at - at) > 11)) ticks.push({ at, change });
  }
  return html`
    <div class="tornado">
      <div class="tornado-axis" aria-hidden="true"><span></span><span class="tornado-scale">
        <b class="tick" style=${{ left: "50%" }}>${measure}</b>
        ${ticks.map(({ at, change }) => html`<span key=${change} class="tick" style=${{ left: `${at}%` }}>${signed(change)}</span>`)}
      </span><span title="change of the measure in percent per percent of the input">elasticity</span></div>
      <ul>
        ${inputs.map((input) => html`<${Row} key=${input.name} input=${input} most=${most} ticks=${ticks} measure=${measure}
          current=${input.name === current} onSelect=${() => onSelect(input.name)} />`)}
      </ul>
      <ul class="legend"><li><i class="less"></i>lower value</li><li><i class="more"></i>higher value</li><li><i class="again"></i>best plan for that value</li></ul>
    </div>`;
}

function told(input) {
  const parts = ends(input).map((point) => `times ${times(point.factor)}: ${runs(point) ? signed(point.fixed_change) : "the plan does not run"}${again(point) ? `, planned again ${signed(point.replanned_change)}` : ""}`);
  return `${input.title}, ${inputValue(input.value, input.unit)}. ${parts.join("; ")}`;
}

function Row({ input, most, ticks, current, onSelect }) {
  const bars = ends(input).map((point) => {
    const side = point.factor < 1 ? "less" : "more";
    const at = runs(point) ? place(point.fixed_change, most) : 50;
    return html`
      ${runs(point) && html`<i class="bar ${side}" style=${{ left: `${Math.min(at, 50)}%`, width: `${Math.abs(at - 50)}%` }}></i>`}
      ${again(point) && html`<i class="again ${side}" style=${{ left: `${place(point.replanned_change, most)}%` }}></i>`}
      ${!runs(point) && html`<em style=${beside(again(point) ? place(point.replanned_change, most) : at, side)}>×${times(point.factor)} ${point.fixed ? "does not fit" : "cannot run"}</em>`}`;
  });
  return html`
    <li><button type="button" class="tornado-row" aria-pressed=${String(current)} aria-label=${told(input)} onClick=${onSelect}>
      <span class="tornado-name">${input.title} <small>${inputValue(input.value, input.unit)}</small></span>
      <span class="tornado-scale">
        <i class="zero"></i>${ticks.map(({ at }) => html`<i class="grid" style=${{ left: `${at}%` }}></i>`)}${bars}
      </span>
      <span class="number">${input.elasticity === null ? "–" : input.elasticity.toFixed(2).replace(/^-(?=0\.00$)/, "").replace("-", "−")}</span>
    </button></li>`;
}
