/* A JSON schema as an outline whose levels are written when they are opened. */

import { element, prose } from "./docs_elements.js";

const BOUNDS = {
  minimum: "at least", exclusiveMinimum: "above", maximum: "at most", exclusiveMaximum: "below",
  minLength: "characters, at least", maxLength: "characters, at most",
  minItems: "items, at least", maxItems: "items, at most", pattern: "matches",
};

export function schemaOutline(description, name, schema, required = false) {
  const resolved = resolve(description, schema);
  const about = [
    element("code", {}, name),
    ` ${typeName(description, schema)}${required ? ", required" : ""}. `,
    ...prose([resolved.description ?? "", limits(resolved)].filter(Boolean).join("; ")),
  ];
  if (!hasParts(description, schema)) return element("p", { className: "schema" }, ...about);
  const outline = element("details", { className: "schema" }, element("summary", {}, ...about));
  outline.addEventListener("toggle", () => outline.append(...parts(description, schema)), { once: true });
  return outline;
}

/* The schema itself, by its reference; of a choice with null the other. */
function resolve(description, schema) {
  if (schema.$ref) {
    const found = description.components.schemas[schema.$ref.split("/").at(-1)];
    return { ...resolve(description, found), ...(schema.description && { description: schema.description }) };
  }
  const choices = (schema.anyOf ?? schema.oneOf ?? []).filter(({ type }) => type !== "null");
  return choices.length === 1 ? { ...resolve(description, choices[0]), ...schema } : schema;
}

function typeName(description, schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map((one) => typeName(description, one)).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(", ");
  if (schema.items) return `list of ${typeName(description, schema.items)}`;
  return schema.type ?? "anything";
}

function limits(schema) {
  const bounds = Object.keys(BOUNDS).filter((bound) => bound in schema);
  const said = bounds.map((bound) => `${BOUNDS[bound]} ${schema[bound]}`);
  if (schema.default !== undefined) said.push(`default ${JSON.stringify(schema.default)}`);
  return said.join(", ");
}

function parts(description, schema) {
  const found = resolve(description, schema);
  const outline = (name, inner, required) => schemaOutline(description, name, inner, required);
  const choices = (found.anyOf ?? found.oneOf ?? []).filter((one) => hasParts(description, one));
  return [
    ...Object.entries(found.properties ?? {}).map(([name, inner]) =>
      outline(name, inner, found.required?.includes(name))),
    ...(found.additionalProperties?.$ref || found.additionalProperties?.type
      ? [outline("any name", found.additionalProperties)] : []),
    ...[found.items, ...(found.prefixItems ?? [])]
      .filter((one) => one && hasParts(description, one)).flatMap((one) => parts(description, one)),
    ...(choices.length > 1 ? choices.map((one) => outline("either", one)) : []),
  ];
}

function hasParts(description, schema) {
  const found = resolve(description, schema);
  return Boolean(
    found.properties || found.additionalProperties?.$ref || found.additionalProperties?.type ||
    [found.items, ...(found.prefixItems ?? [])].some((one) => one && hasParts(description, one)) ||
    (found.anyOf ?? found.oneOf ?? []).some((one) => hasParts(description, one)),
  );
}
