/* Formats numbers for readers.  Other code has bytes, seconds and shares; units are added here. */

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const SPACE = "\u202f"; // between a number and its unit: narrow no-break space
const NONE = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

/* A number with three significant digits and no exponent. */
export function number(value, digits = 3) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 10 ** (digits - 1) || Number.isInteger(value)) return GROUPED.format(Math.round(value));
  const places = digits - 1 - Math.floor(Math.log10(size));
  return value.toFixed(Math.min(places, 8));
}

export const unit = (text, name) => (text === NONE ? NONE : `${text}${SPACE}${name}`);
export const count = (value) => (known(value) ? GROUPED.format(value) : NONE);
export const percent = (share, digits = 3) =>
  unit(share > 0 && share < 0.001 ? "< 0.1" : number(share * 100, digits), "%");
/* A chance in whole percent, never 0 or 100 %, since it is estimated. */
export const chance = (value) =>
  unit(value > 0 && value < 0.01 ? "< 1" : value > 0.99 ? "> 99" : number(Math.round(value * 100), 3), "%");
/* How likely one plan is faster than another; SURE as in planner/evidence/uncertainty/error_band.py. */
const SURE = 0.95;
export const withChance = (value) =>
  `with a chance of ${chance(value)}${value < SURE ? ": they cannot be told apart, measure both" : ""}`;
/* Whether the allocator fills what there is with cache, which it returns before it fails. */
const TIGHT = 0.02; // of the memory
export function fullOfCache({ peak_bytes: peak, needed_bytes: needed, capacity_bytes: capacity }) {
  return peak > (1 - TIGHT) * capacity && peak <= capacity && peak - needed > TIGHT * capacity;
}

/* The share of the memory that is free, counted as in a plan that it stands beside. */
export function free(memory, beside = memory) {
  const cached = fullOfCache(memory) || fullOfCache(beside);
  const held = cached ? memory.needed_bytes : memory.peak_bytes;
  return `${percent(1 - held / memory.capacity_bytes)} free${cached ? " but for cache" : ""}`;
}

export const times = (ratio) => (known(ratio) ? `${ratio.toFixed(2)}×` : NONE);

export const BYTE_UNITS = { GiB: 2 ** 30, GB: 1e9 };
export function bytes(value, units = "GiB") {
  const amount = value / BYTE_UNITS[units];
  return unit(amount > 0 && amount < 0.01 ? "< 0.01" : number(amount, amount < 1 ? 2 : 3), units);
}

/* The largest unit that a value reaches; steps are [least value, size of the unit, name]. */
const step = (steps, value) => steps.find(([least]) => Math.abs(value) >= least) ?? steps.at(-1);
const scaled = (steps) => (value, digits = 3) => {
  if (!known(value)) return NONE;
  const [, size, name] = step(steps, value);
  return unit(number(value / size, digits), name);
};

const TIMES = [
  [172_800, 86_400, "days"], [7200, 3600, "h"], [300, 60, "min"], [1, 1, "s"],
  [1e-3, 1e-3, "ms"], [0, 1e-6, "µs"],
];
export const seconds = scaled(TIMES);

/* A range of times in the unit of the longer. */
export function secondsRange(low, high) {
  const [, size, name] = step(TIMES, high);
  return unit(`${number(low / size)}–${number(high / size)}`, name);
}
export const flops = scaled([
  [1e18, 1e18, "EFLOP/s"], [1e15, 1e15, "PFLOP/s"], [0, 1e12, "TFLOP/s"],
]);
/* The rate of one accelerator, always in TFLOP/s, so that numbers are easy to compare. */
export const teraflops = (value) => unit(number(value / 1e12), "TFLOP/s");
export const rate = scaled([
  [1e12, 1e12, "TB/s"], [1e9, 1e9, "GB/s"], [0, 1e6, "MB/s"],
]);
export const energy = scaled([[1e6, 1e6, "GWh"], [1e3, 1e3, "MWh"], [0, 1, "kWh"]]);
export const tokensPerSecond = scaled([
  [1e9, 1e9, "G tokens/s"], [1e6, 1e6, "M tokens/s"], [1e4, 1e3, "k tokens/s"], [0, 1, "tokens/s"],
]);

/* A count of parameters or tokens: 70.6 B, 1 T. */
export function big(value, digits = 3) {
  if (!known(value)) return NONE;
  const steps = [[1e12, 1e12, "T"], [1e9, 1e9, "B"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]];
  const [, size, name] = steps.find(([least]) => Math.abs(value) >= least) ?? [];
  return name ? unit(number(value / size, digits), name) : number(value, digits);
}

export function money(usd) {
  if (!known(usd)) return NONE;
  const steps = [[1e9, 1e9, "B"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]];
  const [, size, name] = steps.find(([least]) => usd >= least) ?? [0, 1, ""];
  return `$${number(usd / size)}${name && SPACE + name}`;
}

/* A tick format with as few digits as tell all ticks apart; without `ticks`, as on a logarithmic
   axis, only the tick itself counts. */
export const distinct = (show) => (tick, _, ticks = [tick]) => {
  let digits = 3;
  while (digits < 9 && new Set(ticks.map((one) => show(one, digits))).size < ticks.length) digits += 1;
  return show(tick, digits);
};

/* A field's name as words: `micro_batch_size` → "micro batch size", `lora_rank` → "LoRA rank". */
export const words = (name) => name.replaceAll("_", " ").replace(/^lora\b/, "LoRA");

/* Text with a capital first letter. */
export const capitalized = (text) => text[0].toUpperCase() + text.slice(1);

/* Any plain value of a document as short text. */
export function value(item) {
  if (item === true) return "yes";
  if (item === false) return "no";
  if (Array.isArray(item)) return item.length ? item.map(value).join(", ") : "none";
  if (typeof item === "number") return Number.isInteger(item) ? count(item) : number(item);
  return item === null || item === undefined ? NONE : String(item);
}

/* Short names of a plan's fields; fields not listed here are spelled out. */
export const PLAN_SHORT = {
  tp: "TP", pp: "PP", dp: "DP", cp: "CP", ep: "EP", etp: "ETP", vpp: "VPP",
  micro_batch_size: "micro batch", zero_stage: "ZeRO", recompute: "recompute", schedule: "schedule",
};
export const fieldName = (name) => PLAN_SHORT[name] ?? words(name);

export const fieldLabel = (name) => capitalized(fieldName(name));

/* The main fields of a plan in one line: "TP 4 · PP 4 · DP 8 …". */
export function planLine(plan) {
  const shown = [`TP ${plan.tp}`, `PP ${plan.pp}`, `DP ${plan.dp}`];
  if (plan.cp > 1) shown.push(`CP ${plan.cp}`);
  if (plan.ep > 1) shown.push(`EP ${plan.ep}`);
  if (plan.etp > 1) shown.push(`ETP ${plan.etp}`);
  if (plan.vpp > 1) shown.push(`VPP ${plan.vpp}`);
  shown.push(`micro batch ${plan.micro_batch_size}`);
  if (plan.recompute !== "none") shown.push(`${plan.recompute} recompute`);
  shown.push(`ZeRO-${plan.zero_stage}`);
  return shown.join(" · ");
}

/* The accelerators of a resolved cluster: "64 × H100 SXM5 80GB". */
export const clusterLine = ({ groups }) => groups
  .map((group) => `${count(group.nodes * group.accelerators_per_node)} × ${group.accelerator.name}`).join(" + ");

/* The layers of every stage in one line, with equal neighbours merged: "7 8×6 6". */
export function layersLine(layers) {
  const folded = [];
  for (const layer of layers) {
    if (folded.at(-1)?.[0] === layer) folded.at(-1)[1] += 1;
    else folded.push([layer, 1]);
  }
  return folded.map(([layer, times]) => (times > 1 ? `${layer}×${times}` : `${layer}`)).join(" ");
}

const MOST_KINDS = 6; // kinds named in one line

/* The layers of each kind in one line: "36 gated delta net + moe, 12 full attention + moe". */
export function kindsLine(kinds) {
  const said = Object.entries(kinds);
  const rest = said.slice(MOST_KINDS);
  const words = said.slice(0, MOST_KINDS).map(([kind, layers]) => `${layers} ${kind}`);
  if (rest.length) words.push(`${rest.reduce((sum, [, layers]) => sum + layers, 0)} of ${rest.length} more kinds`);
  return words.join(", ") || "no layers";
}

/* The stages, with equal neighbours merged: [{name: "Stages 1–2", kinds}, …]. */
export function foldedStages(stages) {
  const folded = [];
  stages.forEach((kinds, stage) => {
    const line = kindsLine(kinds);
    if (folded.at(-1)?.line === line) folded.at(-1).to = stage;
    else folded.push({ from: stage, to: stage, line });
  });
  return folded.map(({ from, to, line }) => ({ name: from === to ? `Stage ${from}` : `Stages ${from}–${to}`, line }));
}

/* A word quoted for a shell. */
export const shellWord = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
