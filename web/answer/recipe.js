/* What others do: the nearest published recipe on this cluster, and the best plan beside it. */

import { html } from "htm/preact";
import { movedTime } from "../charts/palette.js";
import { count, fieldLabel, percent, planLine, seconds, teraflops } from "../format.js";
import { nameOf } from "../published_runs.js";
import { answer, fresh, pick } from "../state.js";

const WORTH = 0.0005; // share of the time from which a change or a difference is told

/* "1.5 % slower" than the best plan, "as fast" as it. */
export const behindBest = (slower) =>
  Math.abs(slower) < WORTH ? "as fast" : `${percent(Math.abs(slower), 2)} ${slower > 0 ? "slower" : "faster"}`;

export function PublishedRecipe() {
  const found = answer.value?.recipe;
  if (!found || !fresh.value) return null;
  const { recipe, plan, problem, slower_by: slower, forced, saved_s: saved } = found;
  const changes = found.changes.filter(({ saves }) => saves === null || Math.abs(saves) >= WORTH);
  const moved = movedTime(saved).join(", ");
  const measured = recipe.name !== answer.value.evidence?.record?.run.id && recipe.model_flop_per_s;
  return html`
    <div class="published-recipe">
      <p>What others do: <${Source} recipe=${recipe} /> for ${!found.same_model && "the nearest model, "}${recipe.model} on ${count(recipe.accelerators)} × ${nameOf("accelerator", recipe.accelerator)}${measured && `, which reached ${teraflops(measured)} each`}.
        ${plan
          ? html` <button type="button" class="link" onClick=${() => pick(plan.plan)}>${planLine(plan.plan)}</button> takes ${seconds(plan.iteration_time_s)} here${forced.length > 0 && ` (${forced.join(", ").replaceAll("->", "→")})`}, ${behindBest(slower)}${Math.abs(slower) >= WORTH ? " than the best" : " as the best"}.`
          : ` It does not run here: ${problem}.`}</p>
      ${changes.length > 0 && html`<details><summary>What the best plan has instead</summary>
        ${moved && html`<p>In all it ${moved}.</p>`}
        <table class="recipe-changes">
          <thead><tr><th scope="col">Field</th><th scope="col">Recipe</th><th scope="col">Best plan</th><th scope="col" class="number">Time, alone</th></tr></thead>
          <tbody>${changes.map((one) => html`<tr key=${one.field}>
            <th scope="row">${fieldLabel(one.field)}</th><td>${one.theirs}</td><td>${one.ours}</td>
            <td class="number">${alone(one)}</td></tr>`)}</tbody>
        </table></details>`}
    </div>`;
}

/* The change of the recipe's time by one field; most others go with a change of another field. */
const alone = ({ saves }) => (saves === null ? "–" : `${saves > 0 ? "−" : "+"}${percent(Math.abs(saves), 2)}`);

const Source = ({ recipe: { by, release, name, url, source } }) => {
  const text = `${by} ${release}`.trim();
  return html`<span title=${source}>${url ? html`<a href=${url} target="_blank" rel="noreferrer">${text}</a>` : text} <code>${name}</code></span>`;
};
