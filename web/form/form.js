/* The form: model, cluster, training, limits.  Every field edits a place in the request. */

import { html } from "htm/preact";
import { Cluster } from "./cluster.js";
import { Limits } from "./limits.js";
import { Model } from "./model.js";
import { Training } from "./training.js";
import { problems } from "../state.js";

const AT_HOME = /^\/(model|cluster|training|search|site)\b/;

export function Form() {
  const others = problems.value.filter(({ pointer }) => !AT_HOME.test(pointer));
  return html`
    <form class="form" aria-label="What to plan" onSubmit=${(event) => event.preventDefault()}>
      <${Model} />
      <${Cluster} />
      <${Training} />
      <${Limits} />
      ${others.length > 0 && html`<div class="problem" role="alert">${others.map(({ pointer, detail }) => html`<p>${pointer} ${detail}</p>`)}</div>`}
    </form>`;
}
