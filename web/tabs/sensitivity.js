/* Sensitivity: inputs by how much they move the answer, and where another plan becomes best. */

import { html } from "htm/preact";
import { signal, useSignalEffect } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { ChartFrame } from "../charts/frame.js";
import { Tornado, inputValue, moves, signed } from "../charts/tornado.js";
import { capitalized, number, planLine } from "../format.js";
import { searchQuery } from "../search_query.js";
import { persist, planRequest } from "../state.js";
import { Progress } from "../ui/progress.js";
import { canonical } from "../url.js";

const PAUSE_MS = 800;
const FACTORS = [["× ½, × 2", [0.5, 2]], ["− 20 %, + 25 %", [0.8, 1.25]], ["all four", [0.5, 0.8, 1.25, 2]]];

const factors = persist("sensitivity", FACTORS[0][1]);
const all = searchQuery("/v1/sensitivities");
const one = searchQuery("/v1/sensitivities");
const chosen = signal(null);

const COLUMNS = [
  { key: "title", label: "Input" },
  { key: "value", label: "Value", number: true, value: (row) => row.input.value, show: (value, row) => inputValue(value, row.input.unit) },
  { key: "factor", label: "Times", number: true, show: (value) => number(value) },
  { key: "fixed_change", label: "This plan", number: true, show: (value) => (value === null ? "does not run" : signed(value)) },
  { key: "replanned_change", label: "Best plan", number: true, show: (value) => (value === null ? "nothing fits" : signed(value)) },
];

export default function Sensitivity() {
  const body = planRequest.value && { ...planRequest.value, sensitivity: { factors: factors.value } };
  useSignalEffect(() => {
    if (!planRequest.value) return undefined;
    const asked = { ...planRequest.value, sensitivity: { factors: factors.value } };
    if (canonical(asked) === all.answered.peek()) return undefined;
    const timer = setTimeout(() => all.ask(asked), all.answer.peek() ? PAUSE_MS : 0);
    return () => { clearTimeout(timer); all.cancel(); };
  });
  const found = all.answer.value;
  const old = found && canonical(body) !== all.answered.value;
  const tools = html`
    <div class="segments" role="group" aria-label="Change each input by">
      ${FACTORS.map(([label, values]) => html`<button key=${label} type="button" aria-pressed=${String(String(values) === String(factors.value))}
        onClick=${() => { factors.value = values; }}>${label}</button>`)}
    </div>`;
  return html`
    <div class="sensitivity">
      ${all.busy.value && html`<${Progress} label="Changing the inputs one by one" noun="steps" told=${all.progress.value} onCancel=${all.cancel} />`}
      ${!all.busy.value && old && html`<p class="notice">These numbers belong to another plan. <button type="button" class="link" onClick=${() => all.ask(body)}>Compute again</button></p>`}
      ${!all.busy.value && !found && !all.failure.value && html`<p><button type="button" class="primary" onClick=${() => all.ask(body)}>Compute</button></p>`}
      ${all.failure.value && html`<p class="notice bad" role="alert">${all.failure.value.detail ?? all.failure.value.title}</p>`}
      ${all.busy.value && !found && html`
        <p class="muted">Each input is made smaller and larger: once with this plan kept, once with the best plan for the new value.</p>
        <div class="skeleton" aria-hidden="true"><i></i><i></i><i></i></div>`}
      ${found && html`<div class=${all.busy.value || old ? "waiting" : ""}><${Found} found=${found} tools=${tools} /></div>`}
    </div>`;
}

function Found({ found, tools }) {
  const inputs = found.inputs.filter(moves);
  const still = found.inputs.filter((input) => !moves(input));
  const rows = found.inputs.flatMap((input) => input.points.map((point) => ({ ...point, title: input.title, input })));
  const current = inputs.find(({ name }) => name === chosen.value) ?? inputs[0];
  return html`
    <${ChartFrame} title=${`What changes the ${found.measure}`} name="sensitivity" columns=${COLUMNS} rows=${rows} tools=${tools}
      caption=${`Bars: ${planLine(found.held.plan)} kept unchanged. Diamonds: the best plan for the new value.${still.length ? ` Little effect: ${still.map(({ title }) => title).join(", ")}.` : ""}`}>
      <${Tornado} inputs=${inputs} measure=${found.measure} current=${current?.name} onSelect=${(name) => { chosen.value = name; }} />
    <//>
    ${current && html`<${Detail} key=${current.name} input=${current} />`}`;
}

function Detail({ input }) {
  return html`
    <section class="input-detail" aria-label=${input.title}>
      <h3>${capitalized(input.title)}, ${inputValue(input.value, input.unit)}</h3>
      <ul>${input.words.map((text) => html`<li key=${text}>${text}</li>`)}</ul>
      <${Try} input=${input} />
    </section>`;
}

const exponent = 2 ** 4; // slider steps per factor of two

function Try({ input }) {
  const [step, setStep] = useState(0);
  const factor = 2 ** (step / exponent);
  useEffect(() => {
    if (step === 0 || !planRequest.value) return undefined;
    const timer = setTimeout(() => one.ask({ ...planRequest.peek(), sensitivity: { inputs: [input.name], factors: [factor] } }), 300);
    return () => { clearTimeout(timer); one.cancel(); };
  }, [step, planRequest.value]);
  const answered = one.answer.value?.inputs[0];
  const point = answered?.name === input.name && step !== 0 ? answered.points[0] : null;
  const id = `try-${input.name}`;
  return html`
    <div class="try">
      <label for=${id}>Try a value</label>
      <input id=${id} type="range" min=${-2 * exponent} max=${2 * exponent} step="1" value=${step}
        aria-valuetext=${`times ${number(factor)}, ${inputValue(input.value * factor, input.unit)}`} onInput=${({ target }) => setStep(Number(target.value))} />
      <output for=${id}>×${number(factor)} · ${inputValue(point ? point.value : input.value * factor, input.unit)}</output>
      <div role="status" class=${one.busy.value ? "waiting" : ""}>
        ${step === 0 ? html`<span class="muted">Move the slider to see this plan and the best plan at another value.</span>`
          : one.failure.value ? html`<span class="problem">${one.failure.value.detail}</span>`
          : point ? html`<p>${answered.words[0]}</p>${point.plan ? html`<p class="muted">Best there: ${planLine(point.plan)}</p>` : html`<p class="muted">No plan fits there.</p>`}`
          : answered && !one.busy.value ? html`<p>${answered.words.at(-1)}</p>`
          : html`<span class="muted">Working it out …</span>`}
      </div>
    </div>`;
}
