/* Plans to choose from, the best of each framework, and what the search held fixed. */

import { html } from "htm/preact";
import { post } from "../api.js";
import { flagsText } from "../flags_text.js";
import { capitalized, free, percent, seconds, words } from "../format.js";
import { behindBest } from "./recipe.js";
import { answer, change, framework, fresh, pick, picked, planRequest, request } from "../state.js";
import { CopyButton } from "../ui/copy.js";

const WORTH_OPENING = 0.001; // relative saving above which a held-fixed field's better value is shown

/* How much slower a plan is than the best, or how much memory it leaves if that is the goal. */
function behind({ plan: { memory }, slower_by: slower }, best) {
  if (request.value.search?.objective !== "memory_headroom") {
    return slower < 0 ? `${percent(-slower, 2)} faster, but by its code alone: no published run` : `${percent(slower, 2)} slower`;
  }
  return free(memory, best.memory);
}

export function PlanPicks({ shown }) {
  const { best, picks = [], frameworks = [], recipe } = answer.value ?? {};
  if (!fresh.value || !best) return null;
  const rivals = frameworks.filter(({ plan }) => plan.id !== best.id);
  const same = frameworks.filter(({ plan }) => plan.id === best.id).map(({ framework }) => framework);
  return html`
    <div class="choices">
      ${picks.length > 0 && html`<div class="segments" role="group" aria-label="Which plan">
        ${picks.map((one) => html`<${Pick} key=${one.name} one=${one} best=${best} shown=${shown} />`)}
        ${recipe?.plan && html`<${Pick} one=${{ ...recipe, name: "published recipe", why: recipe.recipe.name }} best=${best} shown=${shown} />`}
      </div>`}
      <${Reasons} picks=${picks} />
      ${framework.value && html`<${CopyFlags} recommended=${picks.find(({ name }) => name === "recommended")} />`}
      ${frameworks.length > 1 && html`<p class="muted">Runs in ${same.join(" and ")}.${rivals.length > 0 && " Best plan of the other frameworks: "}
        ${rivals.map((one, i) => html`<span key=${one.framework}>${i > 0 && " · "}<button type="button" class="link" onClick=${() => pick(one.plan.plan)}>${one.framework}</button> ${behind(one, best)}</span>`)}</p>`}
      <${HeldFixed} held=${answer.value.held_fixed ?? []} />
    </div>`;
}

/* What each plan that is not the fastest is offered for. */
function Reasons({ picks }) {
  const others = picks.filter(({ plan }) => plan.id !== picks[0].plan.id);
  if (others.length === 0) return null;
  return html`<p class="muted">${others.map(({ name, why }, i) => html`<span key=${name}>${i > 0 && " · "}${capitalized(words(name))}: ${why}</span>`)}</p>`;
}

/* Copies the flags of the picked plan, or else of the recommended one, as `planner emit` does. */
function CopyFlags({ recommended }) {
  const other = !picked.value && recommended?.slower_by > 0;
  const text = async () => {
    const asked = planRequest.peek();
    const plan = other ? recommended.plan.plan : asked.plan;
    return flagsText(await post("/v1/bundles", { ...asked, plan, search: { ...asked.search, framework: framework.peek() } }));
  };
  return html`<${CopyButton} kind="primary" text=${text} label=${other ? "Copy flags of the recommended plan" : "Copy flags"} />`;
}

function HeldFixed({ held }) {
  const worth = held.filter(({ saves }) => saves >= WORTH_OPENING);
  const rest = held.slice(worth.length).map(({ field }) => words(field));
  if (held.length === 0) return null;
  return html`<p class="muted">Not varied: ${worth.map((one, i) => html`<span key=${one.field}>${i > 0 && " · "}<${Saving} one=${one} /></span>`)}
    ${worth.length > 0 && rest.length > 0 && " · "}${rest.length > 0 && `${rest.join(", ")}: no other value saves time`}</p>`;
}

function Saving({ one: { field, value, other, saves, runs_in: runs } }) {
  const where = field !== "schedule" ? "" : runs.length > 0 ? `, in ${runs.join(" and ")}` : "; no framework runs it";
  const offered = field === "precision"
    ? html`<button type="button" class="link" onClick=${() => change("/training/precision", other)}>${other}</button>`
    : words(String(other));
  return html`${words(field)} ${words(String(value))} (${offered} would save ${percent(saves, 2)}${where})`;
}

function Pick({ one: { name, plan, slower_by: slower, why }, best, shown }) {
  const left = free(plan.memory, best.memory);
  const about = `${seconds(plan.iteration_time_s)}, ${left}: ${why}`;
  return html`<button type="button" title=${about} aria-pressed=${String(shown.id === plan.id)}
    onClick=${() => pick(plan.id === best.id ? null : plan.plan)}>
    ${capitalized(words(name))} <small>${slower === 0 ? "" : `${behindBest(slower)}, `}${left}</small></button>`;
}
