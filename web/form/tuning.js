/* Tuning: what of the model is trained, on which loss, on samples of what lengths. */

import { html } from "htm/preact";
import { change, problems, request, resolved } from "../state.js";
import { More } from "./section.js";
import { SchemaFields } from "./schema.js";

/* Each field, and what must be asked before it says something. */
const FIELDS = {
  lora_rank: () => true,
  lora_targets: ({ lora_rank: rank }) => rank > 0,
  lora_dropout: ({ lora_rank: rank }) => rank > 0,
  frozen: ({ lora_rank: rank }) => !rank,
  frozen_dtype: ({ lora_rank: rank, frozen }) => rank > 0 || frozen?.length > 0,
  loss: () => true,
  teacher_parameters: ({ loss }) => loss === "distillation",
  sample_lengths: () => true,
  packing: ({ sample_lengths: lengths }) => lengths?.length > 0,
};
export const TUNING = Object.keys(FIELDS);

export function Tuning() {
  const given = request.value.training ?? {};
  const asked = { ...resolved.value?.training, ...given };
  const said = TUNING.filter((name) => given[name] !== undefined);
  const shown = TUNING.filter((name) => said.includes(name) || FIELDS[name](asked));
  const wrong = problems.value.some(({ pointer }) => TUNING.includes(pointer.split("/")[2]) && pointer.startsWith("/training/"));
  return html`
    <${More} label=${said.length ? `Tuning: ${said.length} set` : "Tuning"} force=${wrong}>
      <div class="explained"><${SchemaFields} type="TrainingSpec" pointer="/training" only=${shown} explain
        value=${request.value.training} usual=${resolved.value?.training} onChange=${(name, value) => change(`/training/${name}`, value)} /></div>
    <//>`;
}
