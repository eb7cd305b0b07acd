/* Client of the service: calls, problem documents, server-sent events, downloads.

   call(path, {method, body, signal, accept, headers})  → the JSON answer (text for other types)
   post(path, body, options)                            → the same, POST
   search(path, body, {signal, onProgress})             → the answer of a search, with progress
   events(path, {signal, lastEventId, body, method})    → async iterator of {event, id, data}
   catalog(kind)                                        → the catalog's entries of a kind, cached
   download(name, content, type)                        → saves a file for the user
   All calls throw Refused (with .problem, a problem document) if the service refuses, and an
   AbortError if `signal` is aborted. */

import { signal } from "@preact/signals";

const ROOT = new URL("../", import.meta.url);

/* The API key, if the service requires one; `keyNeeded` becomes true at the first 401. */
const apiKey = sessionStorage.getItem("api-key");
export const keyNeeded = signal(false);

export class Refused extends Error {
  constructor(problem) {
    super(problem.detail || problem.title);
    this.problem = problem;
  }
}

export const url = (path) => new URL(path.replace(/^\//, ""), ROOT);

async function respond(path, { method = "GET", body, signal, accept, headers = {} } = {}) {
  const sent = { ...headers };
  if (accept) sent.Accept = accept;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  if (apiKey) sent["X-API-Key"] = apiKey;
  let response;
  try {
    response = await fetch(url(path), {
      method,
      signal,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused({ title: "The service cannot be reached", detail: "The service cannot be reached. Is it still running?", status: 0 });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({ title: response.statusText }));
  if (response.status === 401) keyNeeded.value = true;
  throw new Refused({ ...problem, status: response.status, retryAfter: response.headers.get("Retry-After") });
}

export async function call(path, options) {
  const response = await respond(path, options);
  if (response.status === 204) return null;
  return isJson(response) ? response.json() : response.text();
}

export const post = (path, body, options) => call(path, { ...options, method: "POST", body });

const type = (response) => response.headers.get("Content-Type") ?? "";
const isJson = (response) => /[/+]json/.test(type(response));

export async function search(path, body, { signal, onProgress } = {}) {
  const accept = "text/event-stream, application/json;q=0.9";
  const response = await respond(path, { method: "POST", body, signal, accept });
  if (isJson(response)) return response.json();
  for await (const { event, data } of parse(response)) {
    if (event === "progress") onProgress?.(data);
    if (event === "done") return data;
    if (event === "problem") throw new Refused(data);
  }
  throw new Refused({ title: "The search broke off", detail: "The service ended the search without an answer.", status: 0 });
}

export async function* events(path, { lastEventId, headers, ...options } = {}) {
  const resume = lastEventId ? { "Last-Event-ID": String(lastEventId) } : {};
  const accept = "text/event-stream";
  yield* parse(await respond(path, { ...options, accept, headers: { ...headers, ...resume } }));
}

async function* parse(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      pending += value.replaceAll("\r", "");
      const blocks = pending.split("\n\n");
      pending = blocks.pop();
      for (const block of blocks) {
        const found = { event: "message", id: undefined, data: "" };
        for (const line of block.split("\n")) {
          const [, name, text] = /^(\w+): ?(.*)$/.exec(line) ?? [];
          if (name === "data") found.data += text;
          else if (name) found[name] = text;
        }
        if (found.data) yield { ...found, data: JSON.parse(found.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/* The answer as a Blob. */
export const blob = async (path, options) => (await respond(path, options)).blob();

const lists = new Map();

export function catalog(kind) {
  if (!lists.has(kind)) {
    const list = call(`/v1/catalog/${kind}`).then((answer) => answer[kind]);
    list.catch(() => lists.delete(kind));
    lists.set(kind, list);
  }
  return lists.get(kind);
}

export function download(name, content, mediaType = "application/json") {
  const blob = content instanceof Blob ? content : new Blob([content], { type: mediaType });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
