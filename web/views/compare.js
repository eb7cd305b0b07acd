/* Two plans side by side: their differences, charts on shared axes, and which is faster. */

import { html } from "htm/preact";
import { useMemo } from "preact/hooks";
import { ChartFrame } from "../charts/frame.js";
import { memoryParts, movedTime, partsOf, timeParts } from "../charts/palette.js";
import { Timeline, timelineTable } from "../charts/timeline.js";
import { bytes, capitalized, energy, fieldLabel, money, number, percent, planLine, seconds, SPACE, teraflops, times, tokensPerSecond, unit, value, withChance, words } from "../format.js";
import { answer, open, persist, pins, request, togglePin, units } from "../state.js";
import { RefusalNotice } from "../ui/notices.js";
import { useQuery } from "../use_query.js";
import { Icon } from "../ui/icon.js";

const sides = persist("compare", { a: null, b: null }); // keys of choices; null: the default
const onlyDifferent = persist("only_different", true);

/* All plans that can be compared: pins first, then the plans of the answer. */
function choices() {
  const found = answer.value;
  const pinned = pins.value.map((pin, i) => ({ key: `pin-${i}`, label: `Pin ${i + 1}: ${planLine(pin.plan)}`, document: { ...pin.request, plan: pin.plan } }));
  const of = (key, label, one) => one && { key, label: `${label}: ${planLine(one.plan)}`, document: { ...request.value, plan: one.plan } };
  return [
    ...pinned,
    of("best", "Fastest", found?.best),
    of("baseline", "Hand-made plan", found?.baseline?.report),
    of("recipe", "Published recipe", found?.recipe?.plan),
    ...(found?.plans ?? []).slice(1).map((one, i) => of(`next-${i}`, `Number ${i + 2}`, one)),
  ].filter(Boolean);
}

export default function Compare() {
  const all = choices();
  const known = (key) => all.find((one) => one.key === key);
  const a = known(sides.value.a) ?? known("pin-0") ?? known("baseline") ?? all[0];
  const b = known(sides.value.b) ?? [known("pin-1"), known("best"), ...all].find((one) => one && one.key !== a?.key);
  const { answer: found, problem, busy } = useQuery("/v1/comparisons", a && b ? { a: a.document, b: b.document } : null);
  if (!a || !b) {
    return html`<div class="compare-view"><h1>Compare</h1>
      <p class="notice">There are no two plans to compare yet. Pin two of them with <${Icon} name="pin" /> in the Plan view.
        ${" "}<button type="button" class="link" onClick=${() => open("plan")}>To the plan</button></p></div>`;
  }
  return html`<div class="compare-view" aria-busy=${String(busy)}>
    <h1>Compare</h1>
    <div class="compare-sides">
      <${Side} name="a" label="A" choice=${a} other=${b} all=${all} />
      <${Side} name="b" label="B" choice=${b} other=${a} all=${all} />
    </div>
    ${pins.value.length < 2 && html`<p class="muted">Plans that you pin with <${Icon} name="pin" /> can be compared here.</p>`}
    <${RefusalNotice} problem=${problem} />
    ${found && !problem && html`
      <${Headline} found=${found} />
      <div class="pair">
        <${Stacked} title="Memory of the fullest stage" parts=${memoryParts} found=${found} show=${(item) => bytes(item, units.value)}
          of=${(report) => report.memory.stages[report.memory.worst_stage].parts} bound=${(report) => report.memory.capacity_bytes} name="compare-memory" />
        <${Stacked} title="Time of one iteration" parts=${timeParts} found=${found} show=${(item) => seconds(item)}
          of=${(report) => report.time_parts_s} name="compare-time" />
      </div>
      <${Rows} rows=${found.rows} />
      <${Timelines} a=${a} b=${b} />`}
  </div>`;
}

function Side({ name, label, choice, other, all }) {
  const set = (key) => { sides.value = { ...sides.value, [name]: key }; };
  const pinned = choice.key.startsWith("pin-");
  return html`<div class="card compare-side">
    <label for=${`compare-${name}`}><b>${label}</b></label>
    <select id=${`compare-${name}`} value=${choice.key} onChange=${({ target }) => set(target.value)}>
      ${all.map(({ key, label: text }) => html`<option key=${key} value=${key} selected=${key === choice.key} disabled=${key === other.key}>${text}</option>`)}
    </select>
    ${pinned && html`<button type="button" class="quiet square" title="Unpin" aria-label=${`Unpin ${label}`} onClick=${() => togglePin(choice.document.plan)}><${Icon} name="close" /></button>`}
  </div>`;
}

function Headline({ found }) {
  const [first, second] = [found.a.estimate, found.b.estimate];
  const sure = found.chance_b_faster ?? null;
  const ratio = second.tokens_per_s / first.tokens_per_s;
  const [winner, by] = ratio >= 1 ? ["B", ratio] : ["A", 1 / ratio];
  const gap = second.memory.peak_bytes - first.memory.peak_bytes;
  const fuller = gap === 0 ? "Both need the same memory" : `${gap > 0 ? "B" : "A"} needs ${bytes(Math.abs(gap), units.value)} more on its fullest stage`;
  return html`<p class="compare-headline">
    <b>${by - 1 < 0.0005 ? "Both are as fast" : `${winner} is ${by < 1.05 ? `${percent(by - 1, 2)} faster` : `${times(by)} as fast`}`}</b>
    <span>${tokensPerSecond(first.tokens_per_s)} → ${tokensPerSecond(second.tokens_per_s)}</span>
    ${found.speedup_b && by - 1 >= 0.0005 && html`<span>${faster(found.speedup_b, winner === "B")} (80${SPACE}% interval)</span>`}
    ${sure !== null && html`<span>${sure < 0.5 ? "A" : "B"} is faster ${withChance(Math.max(sure, 1 - sure))}</span>`}
    <span>${fuller}</span>
  </p>
  <p class="compare-why">${why(first, second)}</p>`;
}

/* The interval of the winner's speed-up in words: "1 % slower to 4 % faster". */
function faster([low, high], ofB) {
  const [least, most] = ofB ? [low, high] : [1 / high, 1 / low];
  if (least >= 1) return `${percent(least - 1, 2)} to ${percent(most - 1, 2)} faster`;
  return `${percent(1 / least - 1, 2)} slower to ${percent(most - 1, 2)} faster`;
}

const WORTH = 0.05; // share of all differences above which a part is mentioned

/* The parts of the time that B saves and costs compared with A, in words. */
function why(a, b) {
  const saved = timeParts.map(({ key }) => [key, (a.time_parts_s[key] ?? 0) - (b.time_parts_s[key] ?? 0)]);
  const total = saved.reduce((sum, [, by]) => sum + Math.abs(by), 0);
  const phrases = movedTime(Object.fromEntries(saved.filter(([, by]) => Math.abs(by) > WORTH * total)));
  return phrases.length ? `B ${phrases.join(", and ")}, in each iteration.` : "Both spend the same time on every part.";
}

/* Stacked bars of both plans on one scale. */
function Stacked({ title, parts, found, of, bound, show, name }) {
  const reports = [["A", found.a.estimate], ["B", found.b.estimate]];
  const total = (report) => Object.values(of(report)).reduce((sum, value) => sum + value, 0);
  const bounds = bound ? reports.map(([, report]) => bound(report)) : [0];
  const scale = Math.max(...reports.map(([, report]) => total(report)), ...bounds);
  const largest = {};
  for (const [, report] of reports) {
    for (const [key, value] of Object.entries(of(report))) largest[key] = Math.max(largest[key] ?? 0, value);
  }
  const used = partsOf(parts, largest).filter(({ key }) => largest[key] > scale * 1e-4);
  const rows = used.map(({ key, label }) => ({ part: label, a: of(reports[0][1])[key] ?? 0, b: of(reports[1][1])[key] ?? 0 }));
  const columns = [
    { key: "part", label: "Part" },
    { key: "a", label: "A", number: true, show },
    { key: "b", label: "B", number: true, show },
    { key: "difference", label: "B − A", number: true, value: (row) => row.b - row.a, show: (item) => signed(item, show) },
  ];
  return html`<${ChartFrame} title=${title} name=${name} columns=${columns} rows=${rows}
    caption=${`Both bars on one scale, up to ${show(scale)}${bound ? "; the line is the accelerator's memory" : ""}.`}>
    <div class="stacked">
      ${reports.map(([label, report]) => html`<div class="stacked-row" key=${label}>
        <b>${label}</b>
        <div class="stacked-bar" role="img" aria-label=${`${label}: ${show(total(report))}`}>
          ${used.map(({ key, label: part, colour }) => of(report)[key] > 0 && html`<i key=${key} class=${`part-${key}`} title=${`${part}: ${show(of(report)[key])}`}
            style=${{ width: `${(of(report)[key] / scale) * 100}%`, background: colour }}></i>`)}
          ${bound && html`<u style=${{ left: `${(bound(report) / scale) * 100}%` }}></u>`}
        </div>
        <span class="number">${show(total(report))}</span>
      </div>`)}
      <ul class="legend">${used.map(({ key, label, colour }) => html`<li key=${key}><i style=${{ background: colour }} aria-hidden="true"></i>${label}</li>`)}</ul>
    </div>
  <//>`;
}

const PARTS = {
  result: "Result", plan: "Plan", model: "Model", cluster: "Cluster", training: "Training", profile: "Profile",
  time_parts_s: "Time of one iteration", memory: "Memory", memory_parts_bytes: "Memory of the fullest stage",
};
const LABELS = {
  ...Object.fromEntries([...timeParts, ...memoryParts].map(({ key, label }) => [key, label])),
  iteration_time_s: "Per iteration",
  tokens_per_s: "Throughput",
  tokens_per_s_per_accelerator: "Throughput per accelerator",
  model_flop_per_s_per_accelerator: "Model FLOP/s per accelerator",
  mfu: "MFU",
  mfu_causal: "MFU, causal attention",
  hfu: "HFU",
  num_micro_batches: "Micro-batches",
  fits: "Fits",
  days: "Days",
  cost_usd: "Cost",
  energy_kwh: "Energy",
  worst_stage: "Fullest stage",
  chance_of_running_out: "Risk of running out of memory",
};
const SHARES = new Set(["mfu", "mfu_causal", "hfu", "chance_of_running_out"]);

/* The format for a value, by its name, whose last word is the unit. */
function shown(part, name) {
  if (part === "time_parts_s" || name.endsWith("_time_s")) return (item) => seconds(item);
  if (part === "memory_parts_bytes" || name.endsWith("_bytes")) return (item) => bytes(item, units.value);
  if (name.endsWith("tokens_per_s") || name.startsWith("tokens_per_s")) return (item) => tokensPerSecond(item);
  if (name.startsWith("model_flop_per_s")) return (item) => teraflops(item);
  if (name.endsWith("_usd")) return (item) => money(item);
  if (name.endsWith("_kwh")) return (item) => energy(item);
  if (SHARES.has(name)) return (item) => percent(item);
  return value;
}

/* A difference of two shares, in percentage points. */
const points = (item) => unit(number(item * 100, 2), "points");

const signed = (item, show) => (item === 0 ? "0" : `${item > 0 ? "+" : "−"}${show(Math.abs(item))}`);

function Rows({ rows }) {
  const kept = onlyDifferent.value ? rows.filter(({ equal }) => !equal) : rows;
  const groups = Object.keys(PARTS).filter((part) => kept.some((row) => row.part === part));
  return html`<section class="card">
    <div class="table-tools">
      <h3>Side by side</h3>
      <span class="spring"></span>
      <label class="inline"><input type="checkbox" checked=${onlyDifferent.value} onChange=${({ target }) => { onlyDifferent.value = target.checked; }} /> Differences only</label>
    </div>
    <div class="table-scroll" tabindex="0" role="region" aria-label="Side by side">
      <table class="compare-table plain-table">
        <caption class="for-readers">Values of both plans; the difference is B less A</caption>
        <thead><tr><th scope="col">Value</th><th scope="col" class="number">A</th><th scope="col" class="number">B</th><th scope="col" class="number">Δ</th><th scope="col" class="number">B / A</th></tr></thead>
        ${groups.map((part) => html`<tbody key=${part}>
          <tr class="group"><th scope="rowgroup" colspan="5">${PARTS[part]}</th></tr>
          ${kept.filter((row) => row.part === part).map((row) => html`<${Row} key=${row.name} row=${row} />`)}
        </tbody>`)}
      </table>
    </div>
    ${kept.length === 0 && html`<p class="muted">The two plans do not differ.</p>`}
  </section>`;
}

function Row({ row }) {
  const show = shown(row.part, row.name);
  const name = LABELS[row.name] ?? (row.part === "plan" ? fieldLabel(row.name) : capitalized(words(row.name.replace(/_(bytes|s|usd)$/, ""))));
  const either = (item) => (item === null ? "–" : show(item));
  return html`<tr class=${row.equal ? "equal" : ""}>
    <th scope="row">${name}</th>
    <td class="number">${either(row.a)}</td>
    <td class="number">${either(row.b)}</td>
    <td class="number">${row.difference === null ? "" : signed(row.difference, SHARES.has(row.name) ? points : show)}</td>
    <td class="number">${row.ratio === null || row.equal ? "" : number(row.ratio)}</td>
  </tr>`;
}

/* Both pipelines on one scale of time and of memory. */
function Timelines({ a, b }) {
  const first = useQuery("/v1/timelines", a.document);
  const second = useQuery("/v1/timelines", b.document);
  const together = useMemo(() => new Set(), []);
  const both = [["A", first], ["B", second]];
  const there = both.map(([, { answer: found }]) => found).filter(Boolean);
  const span_s = Math.max(...there.map((found) => found.makespan_s));
  const most = Math.max(...there.flatMap((found) => found.peak_in_flight));
  return both.map(([label, { answer: found, problem }]) => html`
    ${problem && html`<${RefusalNotice} key=${`${label}-problem`} problem=${problem} />`}
    ${found && !problem && html`<${ChartFrame} key=${label} title=${`${label}: ${found.title}`} name=${`timeline-${label}`}
      caption=${`Pipeline of ${label}; both on one scale of ${seconds(span_s)}.`} ...${timelineTable(found)}>
      <${Timeline} answer=${found} span_s=${span_s} most=${most} together=${together} label=${`Pipeline of ${label}`} />
    <//>`}`);
}
