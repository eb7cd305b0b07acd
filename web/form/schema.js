/* <SchemaFields type="ModelSpec" pointer="/model" skip=${[…]} value=${spec} onChange=${(name, value) => …} />
   A form field for every property of a schema in the service's OpenAPI description, so that new
   fields appear in the form.  `only` restricts the fields; `explain` shows their help below. */

import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { call } from "../api.js";
import { words } from "../format.js";
import { firstAnswer, problemsAt } from "../state.js";
import { CheckField, CheckList, NumberField, parseLength, parseNumber, SelectField, TextField } from "../ui/field.js";

/* The unit of a field is the last word of its name; the form shows larger units. */
const UNITS = [
  [/_flop_per_s$/, "", "TFLOP/s", 1e12],
  [/_bytes_per_s$/, " bandwidth", "GB/s", 1e9],
  [/_bytes$/, "", "GiB", 2 ** 30],
  [/_watts$/, "", "W", 1],
];

/* A field's label, the unit shown, and the scale from it to the document's unit. */
export function labelled(name) {
  const [ending, instead, unit, scale] = UNITS.find(([pattern]) => pattern.test(name)) ?? [/$/, "", undefined, 1];
  return { label: words(name.replace(ending, instead)), unit, scale };
}

let described;
export function useSchemas() {
  const [schemas, setSchemas] = useState(null);
  useEffect(() => {
    described ??= firstAnswer.then(() => call("/openapi.json")).then((document) => document.components.schemas);
    described.then(setSchemas, () => { described = undefined; });
  }, []);
  return schemas;
}

/* Whether a field has an effect given the document's other fields: at least one of the conditions
   in its schema (`x-read-where`) must hold. */
export function isRead(name, properties, document) {
  const valueOf = (field) => document[field] ?? properties[field].default;
  const meets = (value, rule) => {
    if ("const" in rule) return value === rule.const;
    if ("minItems" in rule) return (value?.length ?? 0) >= rule.minItems;
    return value > rule.exclusiveMinimum;
  };
  const conditions = properties[name]["x-read-where"];
  return !conditions || conditions.some((each) => Object.entries(each).every(([field, rule]) => meets(valueOf(field), rule)));
}

/* The schema of a property's values without `null`; optional: whether it may be null. */
export function kindOf(property, schemas) {
  const options = property.anyOf ?? [property];
  const real = options.filter(({ type }) => type !== "null");
  const [one] = real;
  const optional = real.length < options.length;
  if (one.$ref) return { document: one.$ref.split("/").at(-1), optional, ...schemas[one.$ref.split("/").at(-1)] };
  return { ...one, optional };
}

export function SchemaFields({ type, pointer, value, usual, onChange, skip = [], only, explain }) {
  const schemas = useSchemas();
  if (!schemas) return html`<div class="loading" aria-busy="true"></div>`;
  return Object.entries(schemas[type].properties)
    .filter(([name]) => !skip.includes(name) && (!only || only.includes(name)))
    .map(([name, property]) => html`<${SchemaField} key=${name} name=${name} property=${property} schemas=${schemas} explain=${explain}
      pointer=${`${pointer}/${name}`} value=${value?.[name]} usual=${usual?.[name]} onChange=${(now) => onChange(name, now)} />`);
}

function SchemaField({ name, property, schemas, explain, pointer, value, usual, onChange }) {
  const kind = kindOf(property, schemas);
  const told = property.description;
  const props = {
    id: `f${pointer.replaceAll("/", "-")}`, ...labelled(name), title: told, hint: explain && told, value, usual: usual ?? property.default ?? undefined,
    onChange, problems: problemsAt(pointer, kind.type === "array"), length: name.includes("length"),
  };
  if (kind.document) {
    const held = value ?? usual;
    if (!held) return null;
    return html`<fieldset class="inner"><legend>${words(name)}</legend>
      <${SchemaFields} type=${kind.document} pointer=${pointer} value=${value} usual=${usual}
        onChange=${(inner, now) => onChange({ ...held, [inner]: now })} /></fieldset>`;
  }
  if (kind.enum) return html`<${SelectField} ...${props} options=${kind.enum.map((one) => ({ value: one, label: words(one) }))} />`;
  if (kind.type === "boolean") return html`<${CheckField} ...${props} />`;
  if (kind.type === "integer" || kind.type === "number") return html`<${NumberField} ...${props} />`;
  if (kind.type === "array") return html`<${ListField} ...${props} items=${kind.items} />`;
  return kind.type === "string" ? html`<${TextField} ...${props} />` : null;
}

/* A comma-separated list of names or numbers; nothing for a list of documents. */
function ListField({ items, value, usual, onChange, length, ...props }) {
  if (items?.enum) return html`<${CheckList} ...${props} choices=${items.enum} value=${value ?? usual ?? []} onChange=${onChange} />`;
  if (!["integer", "string"].includes(items?.type)) return null;
  const number = length ? parseLength : (word) => parseNumber(word);
  const read = (text) => text?.split(/[\s,]+/).filter(Boolean).map((word) => (items.type === "integer" ? number(word) : word));
  return html`<${TextField} ...${props} value=${value?.join?.(", ") ?? value} usual=${usual?.join(", ")}
    onChange=${(text) => onChange(text ? read(text) : undefined)} />`;
}
