/* Fine-tuning: the trained parts of the model, the loss, and the lengths of samples. */

import { html } from "htm/preact";
import { change, problems, request, resolved } from "../state.js";
import { More } from "./section.js";
import { isRead, SchemaFields, useSchemas } from "./schema.js";

export const TUNING = [
  "lora_rank", "lora_targets", "lora_dropout", "frozen", "frozen_dtype", "loss", "teacher_parameters", "sample_lengths", "packing",
];

export function FineTuning() {
  const schemas = useSchemas();
  const stated = request.value.training ?? {};
  const training = { ...resolved.value?.training, ...stated };
  const set = TUNING.filter((name) => stated[name] !== undefined);
  const fields = schemas?.TrainingSpec.properties;
  const shown = TUNING.filter((name) => set.includes(name) || (fields && isRead(name, fields, training)));
  const wrong = problems.value.some(({ pointer }) => TUNING.includes(pointer.split("/")[2]) && pointer.startsWith("/training/"));
  return html`
    <${More} label=${set.length ? `Fine-tuning: ${set.length} set` : "Fine-tuning"} force=${wrong}>
      <div class="explained"><${SchemaFields} type="TrainingSpec" pointer="/training" only=${shown} explain
        value=${request.value.training} usual=${resolved.value?.training} onChange=${(name, value) => change(`/training/${name}`, value)} /></div>
    <//>`;
}
