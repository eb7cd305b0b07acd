/* The state of the page as signals, and the user's actions as functions.

   Signals to read
     request    the document as the user wrote it: {model, cluster, training, search, profile, site}
     resolved   the same with all defaults, as the service resolved it; null at first
     layers     the model's number of layers of each kind, from the service; {} at first
     answer     the latest answer of POST /v1/plans, null at first; `fresh`: it answers `request`
     report     the displayed plan, a PlanReport: the picked one or the best; null if nothing fits
     picked     the picked plan (a plan document); null: show the best
     framework  the framework that the displayed plan is priced for, or null
     planRequest  the displayed plan with its request, as /v1/ranks … take it; or null
     current    whether that is the present request
     problems   what the service refused in `request`: [{pointer, detail, got, allowed, did_you_mean}]
     failure    a problem document that is not about the request (busy, unreachable …), or null
     busy       null, "estimate" or "search"; progress: null or {done, total, best}
     pins       [{plan, request}] to compare, at most two
     view, tab, units ("GiB" | "GB"), theme ("" | "light" | "dark")
   Actions: see the exported functions.
   persist(name, initial) gives a view its own signal, which is part of the link. */

import { batch, computed, effect, signal } from "@preact/signals";
import { post, Refused, search } from "./api.js";
import { get, set } from "./json_pointer.js";
import { canonical, pack, unpack } from "./url.js";

const PRESET = {
  model: "llama-3.1-70b",
  cluster: { accelerator: "h100-sxm-80gb", nodes: 16, accelerators_per_node: 8 },
  training: { seq_length: 8192, global_batch_size: 1024, tokens: 1e12 },
  search: {},
};
const PAUSE_MS = 400; // pause in typing before a search starts
const SHORT_PAUSE_MS = 100; // the same if the displayed plan can no longer run
const LINK_PAUSE_MS = 250;
const ONE_EDIT_MS = 1500; // changes closer together are one entry of the browser's history
export const MOST_PINS = 2;

// ---- state in the link ---------------------------------------------------------------------

let pending = {}; // values from the link for views that are not loaded yet
const kept = new Map(); // name → [signal, initial]
const keptCount = signal(0);

export function persist(name, initial) {
  if (!kept.has(name)) {
    kept.set(name, [signal(pending[name] ?? initial), initial]);
    keptCount.value = kept.size;
  }
  return kept.get(name)[0];
}

export const request = persist("request", PRESET);
export const picked = persist("picked", null);
export const pins = persist("pins", []);
export const view = persist("view", "plan");
export const tab = persist("tab", "timeline");

const linked = computed(() => {
  keptCount.value; // run again when a view adds a signal later
  const document = { ...pending };
  for (const [name, [held, initial]] of kept) {
    if (canonical(held.value) === canonical(initial)) delete document[name];
    else document[name] = held.value;
  }
  return document;
});

/* The URL of the page in its present state. */
export async function link() {
  const document = linked.peek();
  const { origin, pathname, search: query } = location;
  return origin + pathname + query + (Object.keys(document).length ? await pack(document) : "");
}

export const badLink = signal(false);

async function readLink() {
  try {
    const found = await unpack(location.hash);
    if (!found) return false;
    pending = found;
    batch(() => {
      for (const [name, [held, initial]] of kept) held.value = found[name] ?? initial;
    });
    return true;
  } catch {
    badLink.value = true;
    return false;
  }
}

// ---- settings of this browser --------------------------------------------------------------

function remember(name, initial) {
  const held = signal(initial);
  try {
    held.value = localStorage.getItem(name) ?? initial;
    effect(() => localStorage.setItem(name, held.value));
  } catch {
    // Storage may be disabled; the setting then lasts as long as the page.
  }
  return held;
}

export const units = remember("units", "GiB");
export const theme = remember("theme", "");
effect(() => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
});

// ---- the answer ----------------------------------------------------------------------------

export const answer = signal(null);
const answered = signal(null); // the request that `answer` answers
const priced = signal(null); // the request that `report` was computed for
export const problems = signal([]);
export const failure = signal(null);
export const busy = signal(null);
export const progress = signal(null);
export const undo = signal(null); // {text, restore}: undoes the last import

const same = (a, b) => a === b || canonical(a) === canonical(b);

export const fresh = computed(() => same(answered.value, request.value));
export const current = computed(() => same(priced.value, request.value));
export const report = signal(null);
export const resolved = signal(null);
export const layers = signal({});
export const planRequest = computed(() =>
  report.value ? { ...priced.value, plan: report.value.plan } : null,
);

/* The framework that the displayed plan is priced for: the requested one, else the one whose best
   plan it is, else that of the fastest plan; null if no framework runs it. */
export const framework = computed(() => {
  const { launch, frameworks = [] } = answer.value ?? {};
  const own = frameworks.find(({ plan }) => same(plan.plan, report.value?.plan));
  return planRequest.value?.search?.framework ?? (own ?? launch)?.framework ?? null;
});

/* All reports of an answer, the best first. */
export const reports = (found) =>
  found
    ? [found.best, ...(found.plans ?? []), ...(found.pareto ?? []), ...(found.picks ?? []).map(({ plan }) => plan), ...(found.frameworks ?? []).map(({ plan }) => plan), found.baseline?.report, found.recipe?.plan].filter(Boolean)
    : [];

let tellFirst;
export const firstAnswer = new Promise((resolve) => { tellFirst = resolve; }); // low-priority loading awaits it

let running = null; // AbortController of the search or estimate in progress
let picking = null; // AbortController of the estimate of a picked plan
let timer = 0;

function begin(kind) {
  picking?.abort();
  running?.abort();
  running = new AbortController();
  busy.value = kind;
  return running.signal;
}

function settle(aborted) {
  if (!aborted.aborted) batch(() => { busy.value = null; progress.value = null; });
}

function refused(error) {
  if (error.name === "AbortError") return;
  if (!(error instanceof Refused)) throw error;
  const { errors } = error.problem;
  if (errors?.length) problems.value = errors.map(atField);
  else failure.value = error.problem;
}

/* Move a problem of the whole training whose text begins with a field's name to that field. */
function atField(problem) {
  const [field] = problem.detail.split(" ");
  const known = problem.pointer === "/training" && field in (resolved.peek()?.training ?? {});
  return known ? { ...problem, pointer: `/training/${field}` } : problem;
}

/* A plan without dp, which follows from the other fields when the cluster changes. */
const withoutDp = ({ dp: _, ...plan }) => plan;

async function ask() {
  clearTimeout(timer);
  const asked = request.peek();
  const aborted = begin("estimate");
  const mixed = asked.cluster?.groups?.length > 1; // only a search handles mixed clusters
  const shown = !mixed && report.peek();
  const legal = shown && (await estimate(asked, withoutDp(shown.plan), aborted));
  if (aborted.aborted) return;
  if (shown && problems.peek().length) settle(aborted);
  else timer = setTimeout(searchNow, legal ? PAUSE_MS : SHORT_PAUSE_MS);
}

/* Price the plan and display it; returns whether it can run. */
async function estimate(asked, plan, aborted) {
  try {
    const found = await post("/v1/estimates", { ...asked, plan }, { signal: aborted });
    batch(() => {
      report.value = found.estimate;
      priced.value = asked;
      resolved.value = found.request;
      layers.value = found.layers ?? {};
      problems.value = [];
      failure.value = null;
      if (picked.peek()) picked.value = found.estimate.plan;
    });
    return true;
  } catch (error) {
    // A plan that is no longer legal is not a problem of the request; the search will report those.
    const { errors = [] } = error.problem ?? {};
    const ofPlan = errors.length && errors.every(({ pointer }) => pointer.startsWith("/plan"));
    if (!ofPlan) refused(error);
    else batch(() => { problems.value = []; picked.value = null; });
    return false;
  }
}

/* Search now, without the pause. */
export async function searchNow() {
  clearTimeout(timer);
  const asked = request.peek();
  const aborted = begin("search");
  try {
    const onProgress = (told) => { progress.value = told; };
    const found = await search("/v1/plans", asked, { signal: aborted, onProgress });
    batch(() => {
      answer.value = found;
      answered.value = asked;
      resolved.value = found.request;
      layers.value = found.layers ?? {}; // absent for a mixed cluster
      problems.value = [];
      failure.value = null;
    });
    await pick(picked.peek());
  } catch (error) {
    refused(error);
  }
  settle(aborted);
  tellFirst();
}

/* Abort the search or estimate in progress; the latest answer stays displayed. */
export function cancel() {
  clearTimeout(timer);
  running?.abort();
  batch(() => { busy.value = null; progress.value = null; });
}

// ---- actions -------------------------------------------------------------------------------

/* Change one field of the request; undefined resets it to its default. */
export function change(pointer, value) {
  request.value = set(request.peek(), pointer, value);
}

export const field = (pointer) => get(request.value, pointer);

/* The problems at a place in the request; inside: also those at places within it. */
export const problemsAt = (pointer, inside = false) => problems.value.filter(
  (one) => one.pointer === pointer || (inside && one.pointer.startsWith(`${pointer}/`)),
);

/* Replace the whole request, with an undo. */
export function replace(document, text) {
  const before = request.peek();
  request.value = document;
  if (text) undo.value = { text, restore: () => { request.value = before; } };
}

/* Display a plan; null: the best one. */
export async function pick(plan) {
  picked.value = plan;
  const held = reports(answer.peek());
  const known = plan === null ? (answer.peek()?.best ?? null) : held.find((one) => same(one.plan, plan));
  if (known === undefined) {
    picking?.abort();
    picking = new AbortController();
    await estimate(request.peek(), plan, picking.signal);
    return;
  }
  batch(() => {
    report.value = known;
    priced.value = answered.peek();
  });
}

export const isPinned = (plan) => pins.value.some((pin) => same(pin.plan, plan));

/* Pin or unpin a plan; a new pin may replace the oldest. */
export function togglePin(plan) {
  const others = pins.peek().filter((pin) => !same(pin.plan, plan));
  pins.value = others.length < pins.peek().length
    ? others
    : [...others, { plan, request: priced.peek() }].slice(-MOST_PINS);
}

/* A cluster's short form as an object with editable fields. */
export function unfolded(cluster) {
  if (typeof cluster !== "string" || cluster === "local") return cluster;
  const [, nodes, each, accelerator] = /^(\d+)x(\d+)x(.+)$/.exec(cluster) ?? [];
  return accelerator ? { accelerator, nodes: Number(nodes), accelerators_per_node: Number(each) } : { preset: cluster };
}

/* Apply a proposed change: fields of the plan become limits, `nodes` goes to the cluster. */
export function apply(fields) {
  let document = { ...request.peek(), cluster: unfolded(request.peek().cluster) };
  for (const [name, value] of Object.entries(fields)) {
    document = set(document, name === "nodes" ? "/cluster/nodes" : `/search/${name}`, value);
  }
  replace(document, "Change applied");
}

export const open = (name) => { view.value = name; };
export const show = (name) => batch(() => { view.value = "plan"; tab.value = name; });

// ---- startup -------------------------------------------------------------------------------

let written = location.hash;

export async function start() {
  await readLink();
  if (picked.peek()) await estimate(request.peek(), picked.peek(), begin("estimate"));
  searchNow();
  let last = request.peek();
  effect(() => {
    if (request.value === last) return;
    last = request.value;
    ask();
  });
  let linkTimer = 0;
  let lastView = view.peek();
  let lastRequest = request.peek();
  let editedAt = 0; // time of the last change; quick successive edits share one history entry
  effect(() => {
    linked.value;
    clearTimeout(linkTimer);
    const pause_ms = lastView === view.peek() ? LINK_PAUSE_MS : 0; // typing soon changes it again
    linkTimer = setTimeout(async () => {
      const before = location.href;
      const address = await link();
      if (location.href !== before) return; // the user went back or forward meanwhile
      const edited = !same(lastRequest, request.peek());
      const again = edited && Date.now() - editedAt < ONE_EDIT_MS;
      if (edited) editedAt = Date.now();
      const moved = lastView !== view.peek() || (edited && !again);
      lastView = view.peek();
      lastRequest = request.peek();
      if (address === location.href) return;
      history[moved ? "pushState" : "replaceState"](null, "", address);
      written = location.hash;
    }, pause_ms);
  });
  addEventListener("popstate", async () => {
    if (location.hash === written) return;
    written = location.hash;
    if (!(await readLink()) && !location.hash) batch(() => {
      for (const [held, initial] of kept.values()) held.value = initial;
    });
    lastView = view.peek();
    lastRequest = request.peek();
    editedAt = 0;
  });
}
