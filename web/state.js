/* What the page knows, as signals, and what a user can do to it, as functions.

   Signals to read
     request    the document as the user wrote it: {model, cluster, training, search, profile, site}
     resolved   the same with every default written out, as the service read it; null at first
     layers     of the model as the service read it: how many of each kind; {} at first
     answer     the latest answer of POST /v1/plans, null at first; `fresh` whether it answers `request`
     report     the plan on show, a PlanReport: the picked one, else the best; null where nothing fits
     picked     the picked plan (a plan document), null where the best is followed
     framework  that the plan on show is priced for, or null
     planRequest  the plan on show with the request it was priced for, as /v1/ranks … take it; or null
     current    whether that is the request as it stands
     problems   what the service refused in `request`: [{pointer, detail, got, allowed, did_you_mean}]
     failure    a problem document that is not about the request (busy, unreachable …), or null
     busy       null, "estimate" or "search"; progress: null or {done, total, best}
     pins       [{plan, request}] to compare, at most two
     view, tab, units ("GiB" | "GB"), theme ("" | "light" | "dark")
   Actions: see the exported functions.
   persist(name, initial) gives a view a signal of its own that travels in the link. */

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
const PAUSE_MS = 400; // without typing, before a search
const SHORT_PAUSE_MS = 100; // where the plan on show cannot run any more, so that only a search helps
const LINK_PAUSE_MS = 250;
const ONE_EDIT_MS = 1500; // changes closer to each other are one step of the browser's history
export const MOST_PINS = 2;

// ---- what travels in the link --------------------------------------------------------------

let pending = {}; // of the link, for views that are not loaded yet
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
  keptCount.value; // a view that comes later is watched too
  const document = { ...pending };
  for (const [name, [held, initial]] of kept) {
    if (canonical(held.value) === canonical(initial)) delete document[name];
    else document[name] = held.value;
  }
  return document;
});

/* The address of the page as it stands. */
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

// ---- chosen once for this browser ----------------------------------------------------------

function remember(name, initial) {
  const held = signal(initial);
  try {
    held.value = localStorage.getItem(name) ?? initial;
    effect(() => localStorage.setItem(name, held.value));
  } catch {
    // Storage may be forbidden; the choice then lasts as long as the page.
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
export const undo = signal(null); // {text, restore}: the last import, to be taken back

const same = (a, b) => a === b || canonical(a) === canonical(b);

export const fresh = computed(() => same(answered.value, request.value));
export const current = computed(() => same(priced.value, request.value));
export const report = signal(null);
export const resolved = signal(null);
export const layers = signal({});
export const planRequest = computed(() =>
  report.value ? { ...priced.value, plan: report.value.plan } : null,
);

/* The framework that the plan on show is priced for: the one asked for, else the one whose best it
   is, else that of the fastest plan; null where no framework runs it. */
export const framework = computed(() => {
  const { launch, frameworks = [] } = answer.value ?? {};
  const own = frameworks.find(({ plan }) => same(plan.plan, report.value?.plan));
  return planRequest.value?.search?.framework ?? (own ?? launch)?.framework ?? null;
});

/* All reports that an answer holds, the best first. */
export const reports = (found) =>
  found
    ? [found.best, ...(found.plans ?? []), ...(found.pareto ?? []), ...(found.picks ?? []).map(({ plan }) => plan), ...(found.frameworks ?? []).map(({ plan }) => plan), found.baseline?.report].filter(Boolean)
    : [];

let tellFirst;
export const firstAnswer = new Promise((resolve) => { tellFirst = resolve; }); // what can wait, waits for it

let running = null; // AbortController of what is under way
let picking = null; // of the estimate of a picked plan
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

/* What is said of the training as a whole, and begins with one of its fields, stands at that field. */
function atField(problem) {
  const [field] = problem.detail.split(" ");
  const known = problem.pointer === "/training" && field in (resolved.peek()?.training ?? {});
  return known ? { ...problem, pointer: `/training/${field}` } : problem;
}

/* dp follows from the others when the cluster changes. */
const withoutDp = ({ dp: _, ...plan }) => plan;

async function ask() {
  clearTimeout(timer);
  const asked = request.peek();
  const aborted = begin("estimate");
  const mixed = asked.cluster?.groups?.length > 1; // only a search knows those
  const shown = !mixed && report.peek();
  const legal = shown && (await estimate(asked, withoutDp(shown.plan), aborted));
  if (aborted.aborted) return;
  if (shown && problems.peek().length) settle(aborted);
  else timer = setTimeout(searchNow, legal ? PAUSE_MS : SHORT_PAUSE_MS);
}

/* Whether the plan can run: then it is on show. */
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
    // A plan that is not legal any more says nothing of the request: the search will.
    const { errors = [] } = error.problem ?? {};
    const ofPlan = errors.length && errors.every(({ pointer }) => pointer.startsWith("/plan"));
    if (!ofPlan) refused(error);
    else batch(() => { problems.value = []; picked.value = null; });
    return false;
  }
}

/* Search now, without waiting for the pause. */
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
      layers.value = found.layers ?? {}; // of a mixed cluster's answer: none
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

/* Stop what is under way; the latest answer stays on show. */
export function cancel() {
  clearTimeout(timer);
  running?.abort();
  batch(() => { busy.value = null; progress.value = null; });
}

// ---- actions -------------------------------------------------------------------------------

/* Change one field of the request; undefined leaves it to its default. */
export function change(pointer, value) {
  request.value = set(request.peek(), pointer, value);
}

export const field = (pointer) => get(request.value, pointer);

/* What the service said of a place in the request, and of what lies inside it. */
export const problemsAt = (pointer, inside = false) => problems.value.filter(
  (one) => one.pointer === pointer || (inside && one.pointer.startsWith(`${pointer}/`)),
);

/* Replace the request whole, with a way back. */
export function replace(document, text) {
  const before = request.peek();
  request.value = document;
  if (text) undo.value = { text, restore: () => { request.value = before; } };
}

/* Show a plan: null follows the best one. */
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

/* Pin a plan, or take its pin away; the oldest pin makes room. */
export function togglePin(plan) {
  const others = pins.peek().filter((pin) => !same(pin.plan, plan));
  pins.value = others.length < pins.peek().length
    ? others
    : [...others, { plan, request: priced.peek() }].slice(-MOST_PINS);
}

/* Short forms of a cluster, as an object that fields can be set in. */
export function unfolded(cluster) {
  if (typeof cluster !== "string" || cluster === "local") return cluster;
  const [, nodes, each, accelerator] = /^(\d+)x(\d+)x(.+)$/.exec(cluster) ?? [];
  return accelerator ? { accelerator, nodes: Number(nodes), accelerators_per_node: Number(each) } : { preset: cluster };
}

/* Apply a change that the service proposed: fields of the plan become limits, `nodes` the cluster's. */
export function apply(fields) {
  let document = { ...request.peek(), cluster: unfolded(request.peek().cluster) };
  for (const [name, value] of Object.entries(fields)) {
    document = set(document, name === "nodes" ? "/cluster/nodes" : `/search/${name}`, value);
  }
  replace(document, "Change applied");
}

export const open = (name) => { view.value = name; };
export const show = (name) => batch(() => { view.value = "plan"; tab.value = name; });

// ---- at the start --------------------------------------------------------------------------

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
  let editedAt = 0; // when the request last changed: what is typed in one go is one step back
  effect(() => {
    linked.value;
    clearTimeout(linkTimer);
    const pause_ms = lastView === view.peek() ? LINK_PAUSE_MS : 0; // what is typed changes again at once
    linkTimer = setTimeout(async () => {
      const before = location.href;
      const address = await link();
      if (location.href !== before) return; // back or forward was pressed meanwhile: that link is read
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
