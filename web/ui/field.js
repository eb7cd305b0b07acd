/* Form fields.  Typed text is never lost: unreadable text is kept as it is, and the service reports
   the problem at the field.

   <Field id label problems hint unit>control</Field>     label, control, unit, problems below
   <NumberField label value onChange />                   text box for a number: 1e12, 1T, 1_000
     length       for lengths and batches, where 8k is 8,192
   <TextField …/> <SelectField options=${[{value, label, group?}]} …/> <CheckField …/>
   <CheckList choices=${[names]} …/>                      several names of a fixed set
     label        shown, and the accessible name; `title`: a longer explanation on hover
     value        the value in the document's unit; undefined: none given
     onChange     (value | undefined) => void; undefined: use the default
     usual        the default, shown as the placeholder
     unit, scale  the unit shown after the box, and its size in the document's unit
     problems     [{detail, did_you_mean}]; each suggestion is a button that applies it
     id           unique in the page
   <Bound pointer="/training/seq_length" of=${NumberField} …/> binds to the request in state.js. */

import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { change, field, problemsAt, resolved } from "../state.js";
import { get } from "../json_pointer.js";

const POWERS = { k: 1e3, m: 1e6, b: 1e9, g: 1e9, t: 1e12 };
const LENGTHS = { ...POWERS, k: 2 ** 10, m: 2 ** 20 };

/* "1.5T" → 1.5e12, "8k" as a length → 8192; other text is returned as it is. */
export const parseLength = (text) => parseNumber(text, LENGTHS);
export function parseNumber(text, powers = POWERS) {
  const plain = text.trim().replace(/[,_\s\u202f]/g, "");
  const [, digits, power] = /^(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)([kmbgt])?$/i.exec(plain) ?? [];
  return digits === undefined ? text : Number(digits) * (power ? powers[power.toLowerCase()] : 1);
}

const exact = (value) => Number(value.toPrecision(12));

function written(value, scale) {
  if (value === undefined || value === null) return "";
  if (typeof value !== "number") return String(value);
  const shown = exact(value / scale);
  const [size, name] = [[1e12, "T"], [1e9, "B"]].find(([least]) => scale === 1 && shown >= least && shown % (least / 1000) === 0) ?? [];
  return size ? `${shown / size} ${name}` : String(shown);
}

export function Field({ id, label, title, unit, problems = [], onFix, hint, children, kind = "" }) {
  return html`
    <div class="field ${kind} ${problems.length ? "bad" : ""}">
      <label for=${id} title=${title}>${label}</label>
      <div class="control">${children}${unit && html`<span class="unit" aria-hidden="true">${unit}</span>`}</div>
      ${hint && html`<p class="hint" id=${`${id}-hint`}>${hint}</p>`}
      ${problems.length > 0 && html`<div class="problem" id=${`${id}-problem`} role="alert">
        ${problems.map((problem) => html`<p>${problem.detail}
          ${onFix && (problem.did_you_mean ?? []).map((name) => html` <button type="button" class="link" onClick=${() => onFix(name)}>Use ${name}</button>`)}</p>`)}
      </div>`}
    </div>`;
}

const described = (id, { problems = [], hint }) => ({
  "aria-invalid": problems.length ? "true" : undefined,
  "aria-describedby": [problems.length && `${id}-problem`, hint && `${id}-hint`].filter(Boolean).join(" ") || undefined,
});

function TextBox({ id, value, usual, onChange, scale = 1, read, ...rest }) {
  const [draft, setDraft] = useState(null); // text being typed; null: none
  const box = useRef(null);
  useEffect(() => {
    if (document.activeElement !== box.current) setDraft(null);
  }, [value]);
  const onInput = ({ target }) => {
    setDraft(target.value);
    const found = read(target.value);
    onChange(target.value.trim() === "" ? undefined : typeof found === "number" ? exact(found * scale) : found);
  };
  return html`<input id=${id} ref=${box} type="text" autocomplete="off" spellcheck=${false}
    value=${draft ?? written(value, scale)} placeholder=${written(typeof usual === "number" ? Number((usual / scale).toPrecision(4)) * scale : usual, scale)}
    onInput=${onInput} onBlur=${() => setDraft(null)} ...${rest} />`;
}

export const NumberField = (props) => html`
  <${Field} ...${props} onFix=${props.onChange}>
    <${TextBox} id=${props.id} value=${props.value} usual=${props.usual} onChange=${props.onChange} scale=${props.scale}
      read=${props.length ? parseLength : (text) => parseNumber(text)} inputmode="decimal" class="number" ...${described(props.id, props)} />
  <//>`;

export const TextField = (props) => html`
  <${Field} ...${props} onFix=${props.onChange}>
    <${TextBox} id=${props.id} value=${props.value} usual=${props.usual} onChange=${props.onChange}
      read=${(text) => text} ...${described(props.id, props)} />
  <//>`;

export function Options({ options }) {
  const groups = [...new Set(options.map(({ group }) => group))];
  const option = ({ value, label }) => html`<option key=${value} value=${value}>${label}</option>`;
  return groups.map((group) => {
    const own = options.filter((one) => one.group === group).map(option);
    return group ? html`<optgroup key=${group} label=${group}>${own}</optgroup>` : own;
  });
}

/* A `value` that is not among the options is added to them. */
export function SelectField(props) {
  const { id, value, usual, options, onChange } = props;
  const current = String(value ?? usual ?? "");
  const known = options.some((one) => String(one.value) === current);
  const all = known || current === "" ? options : [{ value: current, label: current }, ...options];
  const pick = (text) => onChange(options.find((one) => String(one.value) === text)?.value ?? text);
  return html`
    <${Field} ...${props} onFix=${onChange}>
      <select id=${id} value=${current} onChange=${({ target }) => pick(target.value)} ...${described(id, props)}>
        <${Options} options=${all} />
      </select>
    <//>`;
}

export const CheckField = ({ id, label, title, value, usual = false, onChange, problems = [] }) => html`
  <div class="field check ${problems.length ? "bad" : ""}">
    <input id=${id} type="checkbox" checked=${value ?? usual} onChange=${({ target }) => onChange(target.checked)} />
    <label for=${id} title=${title}>${label}</label>
    ${problems.map(({ detail }) => html`<p class="problem" role="alert">${detail}</p>`)}
  </div>`;

/* Checkboxes for a fixed set of names; `value` lists the checked ones. */
export const CheckList = ({ id, label, title, hint, choices, value, onChange, problems = [] }) => html`
  <fieldset class="field check-list ${problems.length ? "bad" : ""}">
    <legend title=${title}>${label}</legend>
    <div class="names">${choices.map((name) => html`
      <label key=${name}><input id=${`${id}-${name}`} type="checkbox" checked=${value.includes(name)}
        onChange=${({ target }) => onChange(choices.filter((one) => (one === name ? target.checked : value.includes(one))))} />${name}</label>`)}</div>
    ${hint && html`<p class="hint">${hint}</p>`}
    ${problems.map(({ detail }) => html`<p class="problem" role="alert">${detail}</p>`)}
  </fieldset>`;

export function Bound({ pointer, of, usual, inside = false, ...props }) {
  return html`<${of} id=${`f${pointer.replaceAll("/", "-")}`} value=${field(pointer)}
    usual=${usual ?? get(resolved.value, pointer)} onChange=${(value) => change(pointer, value)}
    problems=${problemsAt(pointer, inside)} ...${props} />`;
}
