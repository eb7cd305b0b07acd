/* A question that a part of the page puts to the service by itself.

   useCatalog(kind)               → the list of a kind of things, empty until it is there
   useAsked(path, body)           → {answer, problem, busy}: asked again when the body changes; the last
                                    answer stays until the next is there; a body of null asks nothing
   <Trouble problem title />      what the service refused, one sentence each
   <NoPlan />                     what stands where a plan would, and there is none */

import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { catalog, post } from "../api.js";
import { canonical } from "../url.js";

const MOST_KEPT = 24;
const PAUSE_MS = 200;
const kept = new Map(); // the latest answers, so that going back to a tab shows it at once

function remember(key, answer) {
  kept.delete(key);
  kept.set(key, answer);
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
}

export function useAsked(path, body) {
  const key = body && `${path} ${canonical(body)}`;
  const [told, setTold] = useState({});
  useEffect(() => {
    if (!key || kept.has(key)) return undefined;
    const leave = new AbortController();
    const ask = () => post(path, body, { signal: leave.signal }).then(
      (answer) => {
        remember(key, answer);
        setTold({ key, answer });
      },
      (error) => {
        if (error.name === "AbortError") return;
        if (!error.problem) throw error;
        setTold({ key, problem: error.problem });
      },
    );
    // What follows somebody's typing waits for a pause.
    const timer = setTimeout(ask, told.key ? PAUSE_MS : 0);
    return () => {
      clearTimeout(timer);
      leave.abort();
    };
  }, [key]);
  if (!key) return { answer: null, problem: null, busy: false };
  if (kept.has(key)) {
    if (told.key !== key) queueMicrotask(() => setTold({ key, answer: kept.get(key) }));
    return { answer: kept.get(key), problem: null, busy: false };
  }
  const mine = told.key === key;
  return { answer: told.answer ?? null, problem: mine ? (told.problem ?? null) : null, busy: !mine };
}

export function useCatalog(kind) {
  const [list, setList] = useState([]);
  useEffect(() => { catalog(kind).then(setList, () => {}); }, [kind]);
  return list;
}

export function Trouble({ problem, title, children }) {
  if (!problem) return null;
  const errors = problem.errors?.length ? problem.errors : [{ detail: problem.detail || problem.title }];
  return html`<div class="notice bad" role="alert">
    ${title && html`<p><b>${title}</b></p>`}
    ${errors.map(({ detail }) => html`<p>${detail}</p>`)}
    ${children}
  </div>`;
}

export const NoPlan = () => html`<p class="notice">No plan is on show: nothing fits. The top of the page says what would.</p>`;
