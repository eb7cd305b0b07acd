/* <Section title problems>…</Section> and <More label open>…</More>, the sections of the form.
   sameSpec(a, b): whether two specs are equal. */

import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { canonical } from "../url.js";

/* Whether two specs are equal; null counts as absent. */
export function sameSpec(a, b) {
  const bare = (spec) => canonical(JSON.parse(JSON.stringify(spec, (_, value) => value ?? undefined)));
  return bare(a) === bare(b);
}

export const Section = ({ title, note, problems = [], onFix, children }) => html`
  <fieldset class="section">
    <legend>${title}</legend>
    ${note && html`<p class="note">${note}</p>`}
    ${children}
    ${problems.length > 0 && html`<div class="problem" role="alert">${problems.map((problem) => html`<p>
      ${problem.detail}${onFix && (problem.did_you_mean ?? []).map((name) => html` <button type="button" class="link" onClick=${() => onFix(name)}>Use ${name}</button>`)}
    </p>`)}</div>`}
  </fieldset>`;

/* force: keep it open regardless of the user's choice, since a field inside has a problem. */
export function More({ label, force = false, children }) {
  const [opened, setOpen] = useState(false);
  const open = opened || force;
  return html`
    <details class="more" open=${open} onToggle=${(event) => setOpen(event.target.open)}>
      <summary>${label}</summary>${open && children}
    </details>`;
}
