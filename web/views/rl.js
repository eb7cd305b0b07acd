/* A step of reinforcement learning: how long its parts take, and each way to run it. */

import { html } from "htm/preact";
import { useSignalEffect } from "@preact/signals";
import { bytes, count, number, percent, seconds, tokensPerSecond, words } from "../format.js";
import { units } from "../state.js";
import { canonical } from "../url.js";
import { SERIES } from "../charts/palette.js";
import { CopyButton } from "../ui/copy.js";
import { CheckField, NumberField, SelectField } from "../ui/field.js";
import { Progress } from "../ui/progress.js";
import { More, Section } from "../form/section.js";
import { useCatalog } from "../use_query.js";
import { asked, choose, chosen, command, refusedAt, steps } from "./rl_query.js";

const PAUSE_MS = 300;
const CUTS = ["oversampling", "partial_rollouts", "generated_per_trained", "turns", "tool_wait_s"];
const TRAINERS = [["verl", "verl"], ["nemo-rl", "NeMo-RL"], ["trl", "TRL"], ["slime", "slime"], ["openrlhf", "OpenRLHF"], ["prime-rl", "prime-rl"], ["areal", "AReaL"]];

export default function Rl() {
  useSignalEffect(() => {
    const body = asked.value;
    if (canonical(body) === steps.answered.peek() && !steps.failure.peek()) return undefined;
    const timer = setTimeout(() => steps.ask(body), steps.answer.peek() ? PAUSE_MS : 0);
    return () => { clearTimeout(timer); steps.cancel(); };
  });
  const found = steps.answer.value;
  return html`
    <div class="plan-view">
      <h1 class="for-readers">Reinforcement learning</h1>
      <div class="form-column"><${RlForm} /></div>
      <div class="results" id="results" tabindex="-1">
        <section class="answer card" aria-label="One step" aria-busy=${String(steps.busy.value)}>
          ${steps.busy.value
            ? html`<${Progress} label="Searching" noun="plans" told=${steps.progress.value} onCancel=${steps.cancel} />`
            : html`<div class="progress" hidden></div>`}
          ${steps.failure.value && html`<div class="notice bad" role="alert">
            ${(steps.failure.value.errors ?? [{ detail: steps.failure.value.detail }]).map(({ detail }) => html`<p>${detail}</p>`)}</div>`}
          <div role="status" aria-live="polite" class="answer-body ${steps.busy.value ? "waiting" : ""}">
            ${found ? html`<${Verdict} found=${found} />` : html`<div class="skeleton" aria-hidden="true"><i></i><i></i><i></i></div>`}
          </div>
        </section>
        ${found && html`<${Ways} found=${found} /><${Timelines} found=${found} /><${Memory} found=${found} /><${Launch} found=${found} />
          <details class="card rests-on"><summary>Assumptions</summary>
            <ul>${found.notes.map(({ code, text }) => html`<li key=${code}>${text}</li>`)}</ul></details>`}
      </div>
    </div>`;
}

/* A number of the step: its name in the document is that of the field. */
function Number({ name, label, title, length, unit, usual }) {
  return html`<${NumberField} id=${`rl-${name.replaceAll("_", "-")}`} label=${label} title=${title} length=${length} unit=${unit} usual=${usual}
    value=${chosen.value[name]} onChange=${(value) => choose({ [name]: value })} problems=${refusedAt(`/reinforcement/${name}`)} />`;
}

function RlForm() {
  const models = useCatalog("models");
  const cards = useCatalog("accelerators");
  const { model, accelerator, nodes, per_node: each, algorithm, trainer, partial_rollouts: partial } = chosen.value;
  const pick = (name) => (value) => choose({ [name]: value });
  return html`
    <form class="form" aria-label="What a step is" onSubmit=${(event) => event.preventDefault()}>
      <${Section} title="Model">
        <${SelectField} id="rl-model" label="Model" value=${model} options=${models.map(({ id }) => ({ value: id, label: id }))}
          onChange=${pick("model")} problems=${refusedAt("/model")} />
        <${SelectField} id="rl-algorithm" label="Algorithm" value=${algorithm} onChange=${pick("algorithm")}
          options=${[{ value: "grpo", label: "GRPO" }, { value: "ppo", label: "PPO, with a critic" }]} />
      <//>
      <${Section} title="Cluster">
        <${SelectField} id="rl-accelerator" label="Accelerator" value=${accelerator} onChange=${pick("accelerator")}
          options=${cards.map(({ id, spec }) => ({ value: id, label: spec.name }))} problems=${refusedAt("/cluster")} />
        <${NumberField} id="rl-nodes" label="Nodes" value=${nodes} usual=${1} onChange=${pick("nodes")} />
        <${NumberField} id="rl-per-node" label="Accelerators in each" value=${each} usual=${8} onChange=${pick("per_node")} />
      <//>
      <${Section} title="Step">
        <${Number} name="prompts" label="Prompts" />
        <${Number} name="samples" label="Responses to each" />
        <${Number} name="prompt_tokens" label="Prompt" title="mean tokens" unit="tokens" length />
        <${Number} name="response_tokens" label="Mean response" unit="tokens" length />
        <${Number} name="max_response_tokens" label="Longest response" unit="tokens" length />
        <${Lengths} found=${steps.answer.value} />
        <${Number} name="staleness" label="Updates behind" title="0: in step; 1: one step off-policy; more: asynchronous" />
        <${SelectField} id="rl-trainer" label="Trainer" value=${trainer} onChange=${pick("trainer")}
          options=${TRAINERS.map(([value, label]) => ({ value, label }))} problems=${refusedAt("/reinforcement/trainer")} />
        <${More} label="Cuts, filters and tools" force=${CUTS.some((name) => refusedAt(`/reinforcement/${name}`).length)}>
          <div class="dense">
            <${Number} name="oversampling" label="Started for each" usual=${1} title="responses started for each that a step waits for; the others are cut" />
            <${Number} name="generated_per_trained" label="Generated for each" usual=${1} title="responses generated for each that is trained on (DAPO's dynamic sampling)" />
            <${Number} name="turns" label="Turns" usual=${1} title="of a mean response, with a tool between two of them" />
            <${Number} name="tool_wait_s" label="Wait for a tool" usual=${0} unit="s" />
            <${CheckField} id="rl-partial-rollouts" label="Cut responses go on" title="in the next step, with more started than waited for" value=${partial}
              onChange=${(on) => choose({ partial_rollouts: on || undefined })} problems=${refusedAt("/reinforcement/partial_rollouts")} />
          </div>
        <//>
      <//>
    </form>`;
}

/* How many responses have which length. */
function Lengths({ found }) {
  if (!found?.generated) return null;
  const { mean_tokens: mean, max_tokens: longest, length_shares: shares } = found.generated;
  const top = Math.max(...shares);
  const points = shares.map((share, i) => `${(200 * (i + 0.5)) / shares.length},${40 - (36 * share) / top}`).join(" ");
  return html`
    <svg class="lengths" viewBox="0 0 200 42" preserveAspectRatio="none" role="img" aria-label=${`Responses of ${count(Math.round(mean))} tokens on average, ${count(longest)} at most`}>
      <polyline points=${points} fill="none" stroke="currentColor" stroke-width="1.5" />
      <line x1=${(200 * mean) / longest} x2=${(200 * mean) / longest} y1="4" y2="41" stroke="currentColor" stroke-dasharray="2 2" />
    </svg>`;
}

function Verdict({ found }) {
  const [best] = found.ways;
  const [low, high] = found.interval_s;
  const total = Object.values(found.parts_s).reduce((sum, one) => sum + one, 0);
  const parts = Object.entries(found.parts_s).filter(([, taken]) => taken > 0);
  const made = found.generated;
  return html`
    <h2 class="verdict ${found.fits ? "" : "none"}"><span>${seconds(found.step_time_s)} per step${found.fits ? "" : ", does not fit"}</span></h2>
    <p class="lead">${seconds(low)} to ${seconds(high)} · ${best.name} · ${tokensPerSecond(best.tokens_per_s)} · limited by ${words(best.limited_by)}</p>
    <div class="time-bar" role="img" aria-label=${parts.map(([name, taken]) => `${words(name)} ${seconds(taken)}`).join(", ")}>
      ${parts.map(([name, taken]) => html`<i key=${name} class="part" style=${{ width: `${(100 * taken) / total}%`, background: colourOf(found, name) }} title=${`${words(name)}: ${seconds(taken)}`}></i>`)}
    </div>
    <ul class="legend with-values">
      ${parts.map(([name, taken]) => html`<li key=${name}><i style=${{ background: colourOf(found, name) }}></i><span>${words(name)}</span><b>${seconds(taken)}</b><span class="muted">${percent(taken / total, 2)}</span></li>`)}
    </ul>
    ${made && html`<p class="muted">${count(made.engines)} engines of tp ${made.tp}${made.expert_parallel ? " with whole experts on each" : ""} · ${count(Math.round(made.running))} responses at a time · ${seconds(made.decode_s)} per token · ${bytes(made.cache_bytes, units.value)} of cache on each accelerator${made.tail_s > 0 ? ` · the last responses take ${seconds(made.tail_s)}` : ""}</p>`}`;
}

/* The parts that take time in some way to run it, in the order of a step. */
const partsOf = (found) => Object.keys(found.parts_s).filter((part) => found.ways.some((way) => way.lanes.some(({ bars }) => bars.some((bar) => bar.part === part))));

/* A part has one colour in the whole view; the ninth, of PPO, none of the series. */
const colourOf = (found, part) => SERIES[partsOf(found).indexOf(part)] ?? "var(--muted)";

function Ways({ found }) {
  return html`
    <section class="card" aria-label="Ways to run it">
      <h3>Ways to run it</h3>
      <p class="muted">The first is the answer; the others lag behind by more than is allowed, or are slower.</p>
      <div class="table-scroll data-table" tabindex="0" role="region" aria-label="Ways to run it: table">
        <table><caption class="for-readers">Ways to run it</caption>
          <thead><tr><th scope="col">Way</th><th scope="col">Step</th><th scope="col">Nodes that generate</th><th scope="col">tp</th><th scope="col">Updates behind</th><th scope="col">Limited by</th></tr></thead>
          <tbody>${found.ways.map((way) => html`<tr key=${way.name + way.generation}>
            <th scope="row">${way.name}</th><td>${seconds(way.step_time_s)}</td>
            <td>${way.generation === "same" ? "all, in turn" : count(way.generation_nodes)}</td>
            <td>${count(way.generation_tp)}</td><td>${number(way.staleness)}</td><td>${words(way.limited_by)}</td></tr>`)}</tbody>
        </table>
      </div>
    </section>`;
}

/* Every way on one scale: what each group of accelerators does during a step, and when it waits. */
function Timelines({ found }) {
  const scale = Math.max(...found.ways.map((way) => way.step_time_s));
  const ahead = found.ways.some((way) => way.lanes.some(({ bars }) => bars.some((bar) => bar.ahead)));
  return html`
    <section class="card" aria-label="Timeline of one step">
      <h3>Timeline of one step</h3>
      <div class="step-lanes">
        ${found.ways.map((way) => html`
          <h4 key=${way.name}>${way.name}, ${seconds(way.step_time_s)}</h4>
          ${way.lanes.map((lane) => html`<${StepLane} key=${way.name + lane.name} found=${found} lane=${lane} scale=${scale} />`)}`)}
        <p class="step-axis muted" aria-hidden="true"><span>0</span><span>${seconds(scale)}</span></p>
      </div>
      <ul class="legend">
        ${partsOf(found).map((part) => html`<li key=${part}><i style=${{ background: colourOf(found, part) }}></i>${words(part)}</li>`)}
        ${ahead && html`<li><i class="ahead" style=${{ background: colourOf(found, "generation") }}></i>for a later step</li>`}
      </ul>
    </section>`;
}

const WHO = { all: "all", generation: "generate", training: "train" };

function StepLane({ found, lane, scale }) {
  const said = lane.bars.map(({ part, start_s: start, end_s: end, ahead }) => `${words(part)}${ahead ? " for a later step" : ""} from ${seconds(start)} to ${seconds(end)}`);
  return html`
    <div class="step-lane" role="img" aria-label=${`${lane.accelerators} accelerators, ${WHO[lane.name]}: ${said.join(", ")}`}>
      <span class="muted">${WHO[lane.name]} ${count(lane.accelerators)}</span>
      <span class="step-track">
        ${lane.bars.map(({ part, start_s: start, end_s: end, ahead }, i) => html`<i key=${part} class=${ahead ? "ahead" : ""} title=${said[i]}
          style=${{ left: `${(100 * start) / scale}%`, width: `${(100 * (end - start)) / scale}%`, background: colourOf(found, part) }}></i>`)}
      </span>
    </div>`;
}

function Memory({ found }) {
  return html`
    <section class="card" aria-label="Memory of each phase">
      <h3>Memory of an accelerator</h3>
      <dl class="phases">${found.memory.map(({ name, total_bytes: total, capacity_bytes: capacity, fits }) => html`
        <div key=${name}><dt>${name === "host" ? "host of a node" : name}</dt>
          <dd class=${fits ? "" : "bad"}>${bytes(total, units.value)} of ${bytes(capacity, units.value)}
            <span class="meter ${fits ? "" : "over"}"><i style=${{ width: `${Math.min(100, (100 * total) / capacity)}%` }}></i></span></dd></div>`)}</dl>
    </section>`;
}

function Launch({ found }) {
  return html`
    <section class="card" aria-label="To run">
      <h3>To run</h3>
      ${found.framework === null
        ? html`<p>The trainer can't run this training: no launch files.</p>`
        : html`<div class="fit-command"><p>Files for ${found.request.reinforcement.trainer} <${CopyButton} text=${command.value} label="Copy command" /></p>
          <pre tabindex="0"><code>${command.value}</code></pre></div>`}
    </section>`;
}
