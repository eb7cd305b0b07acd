/* The API description: every operation with its parameters, its bodies, and a form to call it. */

import { element, prose } from "./docs_elements.js";
import { schemaOutline } from "./docs_schema.js";

const description = await (await fetch("openapi.json")).json();
const key = element("input", { type: "password", autocomplete: "off" });

show();

function show() {
  const { title, version, description: about } = description.info;
  document.getElementById("docs").replaceChildren(
    element("h1", {}, `${title} ${version}`),
    element("p", {}, about),
    element("label", { className: "field" }, "API key, where the service has keys", key),
    ...[...byTag()].flatMap(([tag, operations]) => [element("h2", {}, tag), ...operations]),
  );
  addEventListener("hashchange", openNamed);
  openNamed();
}

function byTag() {
  const tags = new Map();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags?.at(-1) ?? "other";
      if (!tags.has(tag)) tags.set(tag, []);
      tags.get(tag).push(operationPart(method, path, operation));
    }
  }
  return tags;
}

/* The operation that the address names, as in /docs#post-/v1/plans, is open. */
function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!named) return;
  named.open = true;
  named.scrollIntoView();
}

function operationPart(method, path, operation) {
  const part = element(
    "details",
    { id: `${method}-${path}`, className: "operation" },
    element(
      "summary",
      {},
      element("b", { className: method }, method.toUpperCase()),
      element("code", {}, path),
      element("span", { className: "muted" }, operation.summary ?? ""),
    ),
  );
  part.addEventListener("toggle", () => part.append(...operationDetails(method, path, operation)), {
    once: true,
  });
  return part;
}

function operationDetails(method, path, operation) {
  const body = operation.requestBody?.content["application/json"];
  const parameters = (operation.parameters ?? []).map(parameterField);
  const text = body && bodyField(body);
  const answers = Object.entries(operation.responses)
    .filter(([status]) => status.startsWith("2"))
    .flatMap(([status, { content }]) =>
      Object.entries(content ?? {}).map(([type, { schema }]) => [`${status} ${type}`, schema]));
  return [
    operation.description && element("p", {}, ...prose(operation.description)),
    ...(text ? [schemaOutline(description, "Body", body.schema), text.field] : []),
    ...parameters.map(({ field }) => field),
    ...callParts(() => call(method, path, parameters, text?.input.value)),
    ...answers.map(([name, schema]) => schemaOutline(description, `Answer ${name}`, schema)),
    element(
      "p",
      { className: "muted" },
      `Problems: ${Object.keys(operation.responses).filter((status) => status >= "4").join(", ")}; `,
      element("a", { href: "problems" }, "what they mean"),
    ),
  ].filter(Boolean);
}

function parameterField({ name, in: place, required, schema, description: about }) {
  const input = element("input", { required: Boolean(required), placeholder: schema.default ?? "" });
  const label = [element("code", {}, name), ` (${place}) `, ...prose(about ?? "")];
  const field = element("label", { className: "field" }, element("span", {}, ...label), input);
  return { name, place, input, field };
}

function bodyField({ examples = {} }) {
  const input = element("textarea", { rows: 12, spellcheck: false });
  const choice = element(
    "select",
    {},
    ...Object.entries(examples).map(([name, { summary }]) => element("option", { value: name }, summary ?? name)),
  );
  const fill = () => {
    input.value = JSON.stringify(examples[choice.value]?.value ?? {}, null, 2);
  };
  choice.addEventListener("change", fill);
  fill();
  const field = element(
    "div",
    {},
    element("label", { className: "field" }, "Example", choice),
    element("label", { className: "field" }, "JSON", input),
  );
  return { input, field };
}

/* What is sent: the address, and what fetch takes beside it. */
function call(method, path, parameters, body) {
  const filled = parameters.filter(({ input }) => input.value !== "");
  const at = (wanted) => filled.filter(({ place }) => place === wanted);
  const address = at("path").reduce(
    (made, { name, input }) => made.replace(`{${name}}`, encodeURIComponent(input.value)),
    path.slice(1),
  );
  const query = new URLSearchParams(at("query").map(({ name, input }) => [name, input.value]));
  const headers = Object.fromEntries(at("header").map(({ name, input }) => [name, input.value]));
  if (key.value) headers["X-API-Key"] = key.value;
  if (body !== undefined) headers["content-type"] = "application/json";
  const url = new URL(query.size ? `${address}?${query}` : address, document.baseURI);
  return [url, { method: method.toUpperCase(), headers, body }];
}

/* The button, the call for a shell, and the answer, shown as it comes: some are streams. */
function callParts(asked) {
  const button = element("button", { type: "button" }, "Send");
  const status = element("p", { role: "status" });
  const shell = element("pre", { hidden: true, tabIndex: 0 });
  const answer = element("pre", { hidden: true, tabIndex: 0 });
  let earlier = new AbortController();
  button.addEventListener("click", async () => {
    earlier.abort();
    const sent = (earlier = new AbortController());
    const [url, options] = asked();
    shell.textContent = curl(url, options);
    shell.hidden = answer.hidden = false;
    answer.textContent = status.textContent = "";
    try {
      await showAnswer(await timed(url, { ...options, signal: sent.signal }, status), answer);
    } catch (error) {
      if (!sent.signal.aborted) status.textContent = error.message;
    }
  });
  return [button, shell, status, answer];
}

async function timed(url, options, status) {
  const start = performance.now();
  const response = await fetch(url, options);
  const took = Math.round(performance.now() - start);
  status.textContent = `${response.status} ${response.statusText} in ${took} ms`;
  return response;
}

async function showAnswer(response, answer) {
  const type = response.headers.get("content-type") ?? "";
  if (/zip/.test(type)) {
    answer.textContent = `${(await response.blob()).size} bytes of ${type}`;
  } else if (/json/.test(type)) {
    answer.textContent = JSON.stringify(await response.json(), null, 2);
  } else if (response.body) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      answer.append(part.value);
    }
  }
}

function curl(url, { method, headers, body }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const shown = (name, value) => `-H ${quoted(`${name}: ${name === "X-API-Key" ? "..." : value}`)}`;
  return [
    `curl -X ${method} ${quoted(String(url))}`,
    ...Object.entries(headers).map(([name, value]) => shown(name, value)),
    ...(body === undefined ? [] : [`-d ${quoted(body)}`]),
  ].join(" \\\n  ");
}
