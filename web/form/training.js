/* The training: batch, length, precision, and the framework that runs it. */

import { html } from "htm/preact";
import { big } from "../format.js";
import { change, problemsAt, request, resolved } from "../state.js";
import { Bound, NumberField, SelectField } from "../ui/field.js";
import { More, Section } from "./section.js";
import { SchemaFields } from "./schema.js";
import { FineTuning, TUNING } from "./fine_tuning.js";
import { useCatalog } from "../use_query.js";

const ELSEWHERE = ["seq_length", "global_batch_size", "precision", "tokens", "encoder_tokens", ...TUNING];
const PRECISIONS = ["bf16", "fp16", "fp8", "fp4", "fp32"].map((value) => ({ value, label: value.toUpperCase() }));

export function Training() {
  const frameworks = useCatalog("frameworks");
  const choices = [{ value: "", label: "Any" }, ...frameworks.map(({ id, title }) => ({ value: id, label: title }))];
  const { seq_length: length, global_batch_size: batch } = resolved.value?.training ?? {};
  return html`
    <${Section} title="Training" problems=${problemsAt("/training")}>
      <div class="two">
        <${Bound} pointer="/training/global_batch_size" of=${NumberField} length label="Global batch" title="Sequences per optimizer step" />
        <${Bound} pointer="/training/seq_length" of=${NumberField} length label="Sequence length" title="Tokens per sequence" />
        <${Bound} pointer="/training/precision" of=${SelectField} label="Precision" options=${PRECISIONS} />
        <${Bound} pointer="/training/tokens" of=${NumberField} label="Total tokens" title="For days, cost and energy: 1T, 300B" />
      </div>
      ${length && html`<p class="hint">${big(length * batch)} tokens per iteration</p>`}
      <${SelectField} id="f-framework" label="Framework" value=${request.value.search?.framework ?? ""} options=${choices}
        onChange=${(value) => change("/search/framework", value || undefined)} />
      <${More} label="Optimizer and formats">
        <div class="dense"><${SchemaFields} type="TrainingSpec" pointer="/training" skip=${ELSEWHERE}
          value=${request.value.training} usual=${resolved.value?.training} onChange=${(name, value) => change(`/training/${name}`, value)} /></div>
      <//>
      <${FineTuning} />
    <//>`;
}
