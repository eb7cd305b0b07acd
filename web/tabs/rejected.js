/* The rejected plans with the reasons, and why a given plan is not the best. */

import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { post } from "../api.js";
import { ChartFrame } from "../charts/frame.js";
import { timeParts } from "../charts/palette.js";
import { bytes, count, fieldLabel, fieldName, percent, planLine, seconds, tokensPerSecond, value, withChance } from "../format.js";
import { answer, apply, pick, report, request, resolved, units } from "../state.js";
import { useReasons } from "../answer/rejection_reasons.js";
import { Icon } from "../ui/icon.js";
import { RefusalNotice } from "../ui/notices.js";

export default function RejectedTab() {
  const found = answer.value;
  if (!found) return html`<div class="loading" aria-busy="true"></div>`;
  return html`<div class="rejected-tab">
    <${WhyNot} />
    <${Rejected} counts=${found.counts} />
  </div>`;
}

function Rejected({ counts }) {
  const meaning = useReasons();
  const rows = Object.entries(counts.rejected)
    .map(([code, number]) => ({ code, reason: meaning(code), count: number, example: counts.examples[code] ?? "" }))
    .sort((a, b) => b.count - a.count);
  const most = rows[0]?.count ?? 1;
  const columns = [
    { key: "reason", label: "Reason" },
    { key: "count", label: "Combinations", number: true },
    { key: "example", label: "For example" },
  ];
  const caption = `Of ${count(counts.enumerated)} combinations, ${count(counts.dominated)} are dominated by another plan, the ones above are rejected, and ${count(counts.feasible)} fit.`;
  return html`<${ChartFrame} title="Rejected plans" caption=${caption} name="rejected" columns=${columns} rows=${rows}>
    <ul class="reason-list">
      ${rows.map((row) => html`<li key=${row.code}>
        <span class="reason-name">${row.reason}</span>
        <b>${count(row.count)}</b>
        <span class="share" aria-hidden="true"><i style=${{ width: `${(row.count / most) * 100}%` }}></i></span>
        ${row.example && html`<small>${row.example}</small>`}
      </li>`)}
    </ul>
  <//>`;
}

const NUMBERS = ["tp", "pp", "cp", "ep", "vpp", "micro_batch_size"];
const CHOICES = { zero_stage: [0, 1, 2, 3], recompute: ["none", "selective", "full"] };
const SPLIT = ["stage_layers", "first_stage_layers", "last_stage_layers", "schedule"];

/* The plan from the form; other fields are those of `base`, unless they would contradict it. */
function typed(form, base) {
  const plan = { ...base, sequence_parallel: form.has("sequence_parallel") };
  for (const name of NUMBERS) plan[name] = Number(form.get(name));
  plan.zero_stage = Number(form.get("zero_stage"));
  plan.recompute = form.get("recompute");
  plan.recompute_num_layers = plan.recompute === "full" ? Number(form.get("recompute_num_layers")) : 0;
  if (plan.recompute !== "selective") delete plan.recompute_modules;
  delete plan.dp; // follows from the others
  if (plan.pp !== base.pp || plan.vpp !== base.vpp) for (const name of SPLIT) delete plan[name];
  return plan;
}

function WhyNot() {
  const base = report.value?.plan ?? answer.value.nearest?.[0]?.plan;
  const [told, setTold] = useState({});
  const [recompute, setRecompute] = useState(base?.recompute);
  const [tp, setTp] = useState(base?.tp);
  useEffect(() => {
    setRecompute(base?.recompute);
    setTp(base?.tp);
  }, [base]);
  if (!base) return null;
  const ask = async (event) => {
    event.preventDefault();
    const plan = typed(new FormData(event.target), base);
    setTold({ busy: true });
    try {
      setTold({ answer: await post("/v1/explanations", { ...request.peek(), plan }) });
    } catch (error) {
      if (!error.problem) throw error;
      setTold({ problem: error.problem });
    }
  };
  const layers = base.recompute_num_layers || Math.ceil((resolved.value?.model.num_layers ?? 1) / base.pp);
  return html`<section class="card why-not" aria-labelledby="why-not">
    <h3 id="why-not">Why not this plan?</h3>
    <form onSubmit=${ask} key=${JSON.stringify(base)}>
      ${NUMBERS.map((name) => html`<${IntegerField} key=${name} name=${name} value=${base[name]} onInput=${name === "tp" && setTp} />`)}
      ${Object.entries(CHOICES).map(([name, values]) => html`<div class="field" key=${name}>
        <label for=${`why-${name}`}>${fieldLabel(name)}</label>
        <select id=${`why-${name}`} name=${name} onChange=${({ target }) => name === "recompute" && setRecompute(target.value)}>
          ${values.map((one) => html`<option key=${one} value=${one} selected=${one === (name === "recompute" ? recompute : base[name])}>${one}</option>`)}
        </select>
      </div>`)}
      ${recompute === "full" && html`<${IntegerField} name="recompute_num_layers" label="Layers recomputed" value=${layers} />`}
      <label class="inline"><input type="checkbox" name="sequence_parallel" disabled=${tp === 1} defaultChecked=${base.sequence_parallel} /> Sequence parallel</label>
      <button class="primary" disabled=${told.busy}>${told.busy ? "Explaining …" : "Explain"}</button>
    </form>
    <div role="status">
      <${RefusalNotice} problem=${told.problem} />
      ${told.answer && html`<${Verdict} found=${told.answer} />`}
    </div>
  </section>`;
}

const IntegerField = ({ name, value, onInput, label = fieldLabel(name) }) => html`<div class="field">
  <label for=${`why-${name}`}>${label}</label>
  <input id=${`why-${name}`} name=${name} type="number" min="1" max="1000000" required defaultValue=${value}
    onInput=${({ target }) => onInput && onInput(Number(target.value))} />
</div>`;

const HEADS = {
  illegal: ["alert", () => "It cannot run"],
  "does not fit": ["alert", () => "It does not fit"],
  "may run out": ["alert", () => "It may run out of memory"],
  slower: ["info", ({ slower_by }) => `It fits, and is ${percent(slower_by)} slower than the best`],
  best: ["check", () => "It is the best plan"],
};

function Verdict({ found }) {
  const meaning = useReasons();
  const [icon, head] = HEADS[found.verdict];
  const { estimate, smallest_change: change } = found;
  return html`<div class=${`why-verdict ${icon}`}>
    <h4><${Icon} name=${icon} /> ${head(found)}</h4>
    ${found.reasons.length > 0 && html`<ul>${found.reasons.map(({ code, text }) => html`<li key=${code}><b>${meaning(code)}.</b> ${text}</li>`)}</ul>`}
    ${estimate && html`<p>${tokensPerSecond(estimate.tokens_per_s)}, ${seconds(estimate.iteration_time_s)} a step,
      ${" "}${bytes(estimate.memory.peak_bytes, units.value)} of ${bytes(estimate.memory.capacity_bytes, units.value)} on stage ${estimate.memory.worst_stage}.
      ${estimate.fits && html` <button type="button" class="link" onClick=${() => pick(estimate.plan)}>Show this plan</button>`}</p>`}
    ${found.verdict === "slower" && html`<p>The best is faster ${withChance(found.chance_slower)}.</p><${TimeDifferences} differences=${found.differences_s} />`}
    ${change && html`<div class="smallest-change">
      <p><b>The smallest change that fits:</b> ${Object.entries(change.set).map(([name, to]) => `${fieldName(name)} ${value(to)}`).join(", ")}.
        ${" "}Then ${tokensPerSecond(change.tokens_per_s)} with ${bytes(change.peak_bytes, units.value)}.</p>
      <button type="button" onClick=${() => use(change)}>Use ${planLine(change.plan)}</button>
    </div>`}
    ${found.reasons.length > 0 && !change && html`<p>No similar plan fits.</p>`}
  </div>`;
}

/* Apply a change: more nodes change the request, anything else picks another plan. */
function use(change) {
  if ("nodes" in change.set) apply(change.set);
  else pick(change.plan);
}

function TimeDifferences({ differences }) {
  const labels = Object.fromEntries(timeParts.map(({ key, label }) => [key, label]));
  const rows = Object.entries(differences).filter(([, s]) => Math.abs(s) > 1e-6).slice(0, 6);
  const most = Math.max(...rows.map(([, s]) => Math.abs(s)));
  return html`<table class="where"><caption>Where the time goes, against the best</caption><tbody>
    ${rows.map(([part, s]) => html`<tr key=${part}><th scope="row">${labels[part] ?? part}</th>
      <td class="number">${s > 0 ? "+" : "−"}${seconds(Math.abs(s))}</td>
      <td class="share" aria-hidden="true"><i class=${s > 0 ? "slower" : "faster"} style=${{ width: `${(Math.abs(s) / most) * 100}%` }}></i></td></tr>`)}
  </tbody></table>`;
}
