/* The image and sound encoders of a model: planned with it or left out, frozen or trained. */

import { html } from "htm/preact";
import { count } from "../format.js";
import { change, persist, problemsAt, replace, request, resolved } from "../state.js";
import { Bound, NumberField, SelectField } from "../ui/field.js";

const SOUND = /audio|sound|speech/;
const leftOut = persist("encoders", null); // {name, encoders}: the encoders removed from a model

/* The model's fields, from the request if it has them, else as the service resolved them. */
function stated() {
  const own = request.value.model;
  return own?.num_layers === undefined ? resolved.value?.model : own;
}

const isFrozen = ({ frozen = [] }) => frozen.includes("encoders");

/* A training without its fields for encoders. */
function withoutEncoders({ encoder_tokens: _, frozen = [], ...training }) {
  const others = frozen.filter((part) => part !== "encoders");
  return others.length ? { ...training, frozen: others } : training;
}

/* Remove the encoders from the model. */
export function planAlone() {
  const { encoders, ...model } = stated();
  const { training = {} } = request.peek();
  leftOut.value = { name: model.name, encoders };
  replace({ ...request.peek(), model, training: withoutEncoders(training) }, "Only the language model is planned");
}

export function Encoders() {
  const model = stated();
  const planned = model?.encoders ?? [];
  const kept = leftOut.value && leftOut.value.name === model?.name ? leftOut.value.encoders : [];
  const encoders = planned.length ? planned : kept;
  if (!encoders.length) return null;
  const whole = () => replace({ ...request.peek(), model: { ...model, encoders: kept } }, "The encoder is planned too");
  const choice = (label, on, choose) => html`<button type="button" aria-pressed=${String(on)} onClick=${() => on || choose()}>${label}</button>`;
  return html`
    <fieldset class="inner encoders">
      <legend>${encoders.length > 1 ? "Encoders" : "Encoder"}</legend>
      ${encoders.map((encoder, i) => html`<p class="hint" key=${i}>${line(encoder)}</p>`)}
      <div class="segments" role="group" aria-label="What is planned">
        ${choice("With encoder", planned.length > 0, whole)}
        ${choice("Language model alone", planned.length === 0, planAlone)}
      </div>
      ${planned.length > 0
        ? html`<${Choices} encoders=${planned} />`
        : html`<p class="hint">Left out: only the language model is planned, on text.</p>`}
    </fieldset>`;
}

function Choices({ encoders }) {
  const training = request.value.training ?? {};
  const adapters = (training.lora_rank ?? 0) > 0;
  const set = (how) => {
    const parts = (training.frozen ?? []).filter((part) => part !== "encoders");
    const now = how === "frozen" ? [...parts, "encoders"] : parts;
    change("/training/frozen", now.length ? now : undefined);
  };
  return html`
    ${adapters
      ? html`<p class="hint">LoRA trains adapters of the language model; the encoder is frozen.</p>`
      : html`<${SelectField} id="f-encoder-weights" label="Its weights" value=${isFrozen(training) ? "frozen" : "trained"}
          options=${[{ value: "trained", label: "Trained" }, { value: "frozen", label: "Frozen" }]} onChange=${set} problems=${problemsAt("/training/frozen")} />`}
    <${Bound} pointer="/training/encoder_tokens" of=${NumberField} length label=${SOUND.test(encoders[0].name) ? "Sound positions" : "Image positions"} usual=${encoders[0].tokens}
      title="Positions of images or sound in a sequence" />`;
}

const line = ({ name = "vision", num_layers: layers, hidden_size: hidden, tokens }) =>
  `${name}: ${layers} layers · hidden ${hidden} · ${count(tokens)} positions of images or sound in a sequence`;
