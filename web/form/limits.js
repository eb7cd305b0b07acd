/* Limits: any field of a plan fixed, bounded, or left to the search. */

import { html } from "htm/preact";
import { chance, fieldLabel, words } from "../format.js";
import { change, field, problemsAt, request } from "../state.js";
import { Bound, CheckField, parseNumber, SelectField, TextField } from "../ui/field.js";
import { More, Section } from "./section.js";
import { kindOf, useSchemas } from "./schema.js";

const FIRST = ["tp", "pp", "cp", "dp", "ep", "micro_batch_size", "zero_stage", "recompute"];

/* "8" · "≤8" · "2-8" · "1, 2, 4" → the request's value; other text stays as typed. */
export function parseLimit(text) {
  const plain = text.replaceAll(" ", "");
  const [, sign, bound] = /^(<=|≤|<|>=|≥|>)(\d+)$/.exec(plain) ?? [];
  if (bound) {
    const to = Number(bound) + ({ "<": -1, ">": 1 }[sign] ?? 0);
    return /[<≤]/.test(sign) ? { max: to } : { min: to };
  }
  const [, min, max] = /^(\d*)(?:\.\.|-|–)(\d*)$/.exec(plain) ?? [];
  if (min || max) return { ...(min && { min: Number(min) }), ...(max && { max: Number(max) }) };
  const items = plain.split(",").filter(Boolean).map((word) => parseNumber(word));
  return items.length > 1 ? items : items[0];
}

export function limitText(limit) {
  if (limit === undefined || limit === null) return undefined;
  if (Array.isArray(limit)) return limit.join(", ");
  if (typeof limit !== "object") return String(limit);
  const { min, max, values } = limit;
  if (values) return values.join(", ");
  if (min === undefined) return `≤ ${max}`;
  return max === undefined ? `≥ ${min}` : `${min} – ${max}`;
}

export function Limits() {
  const schemas = useSchemas();
  const search = request.value.search ?? {};
  const own = schemas?.ParallelPlan.properties ?? {};
  const names = Object.keys(own);
  const bound = names.filter((name) => search[name] !== undefined);
  const first = [...new Set([...FIRST, ...bound])];
  const rest = names.filter((name) => !first.includes(name));
  const row = (name) => html`<${Limit} key=${name} name=${name} property=${own[name]} schemas=${schemas} limit=${search[name]} />`;
  const free = () => bound.forEach((name) => change(`/search/${name}`, undefined));
  return html`
    <${Section} title="Limits" problems=${problemsAt("/search")}
      note=${html`Write 8, ≤ 8, 2 – 8 or 1, 2, 4. Empty fields are searched.${bound.length > 0 && html` <button type="button" class="link" onClick=${free}>Remove all limits</button>`}`}>
      ${schemas && html`<div class="limits">${first.map(row)}</div>
      <${More} label=${`All ${names.length} fields`}><div class="limits">${rest.map(row)}</div><//>
      <${More} label="Goal and options"><${GoalAndOptions} spec=${schemas.SearchSpec.properties} /><//>`}
    <//>`;
}

/* With the last option only the predicted peak has to fit. */
const RISKS = [...[0.01, 0.02, 0.05, 0.1, 0.2].map((value) => ({ value, label: `up to ${chance(value)}` })), { value: 1, label: "any, if the predicted peak fits" }];

/* The goal, and the axes that a search leaves fixed by default. */
function GoalAndOptions({ spec }) {
  const open = field("/search/open") ?? [];
  const turn = (name, on) => {
    const now = on ? [...open, name] : open.filter((one) => one !== name);
    change("/search/open", now.length ? now : undefined);
  };
  const label = { tokens_per_s: "Most tokens per second", memory_headroom: "Most memory left", cost: "Least cost" };
  return html`
    <${Bound} pointer="/search/objective" of=${SelectField} label="Goal" usual=${spec.objective.default}
      options=${spec.objective.enum.map((value) => ({ value, label: label[value] ?? words(value) }))} />
    <${Bound} pointer="/search/memory_risk" of=${SelectField} label="Risk of running out of memory" title="Plans with a higher chance of running out of memory are left out"
      usual=${spec.memory_risk.default} options=${RISKS} />
    <p class="note">Also search (takes longer):</p>
    <div class="limits">${spec.open.items.enum.map((name) => html`
      <${CheckField} key=${name} id=${`f-open-${name}`} label=${words(name)} value=${open.includes(name)} onChange=${(on) => turn(name, on)} />`)}</div>`;
}

function Limit({ name, property, schemas, limit }) {
  const kind = kindOf(property, schemas);
  const pointer = `/search/${name}`;
  const label = fieldLabel(name);
  const props = {
    id: `f-limit-${name}`, label, title: property.description ? `${words(name)}: ${property.description}` : words(name),
    problems: problemsAt(pointer, true),
  };
  const set = (value) => change(pointer, value);
  const choices = kind.enum ?? (kind.type === "boolean" ? [true, false] : null);
  if (choices) {
    const options = [{ value: "", label: "any" }, ...choices.map((value) => ({ value, label: value === true ? "yes" : value === false ? "no" : value }))];
    return html`<${SelectField} ...${props} value=${limitText(limit) ?? ""} options=${options} onChange=${(value) => set(value === "" ? undefined : value)} />`;
  }
  return html`<${TextField} ...${props} value=${limitText(limit)} usual="any" onChange=${(text) => set(text && parseLimit(text))} />`;
}
