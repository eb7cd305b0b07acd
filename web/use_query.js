/* Hooks that call the service while a component is mounted.

   useCatalog(kind)        → the entries of a kind in the catalog, [] until they are loaded
   useQuery(path, body)    → {answer, problem, busy}: POSTs whenever the body changes; the last
                             answer stays until the next arrives; a null body sends nothing */

import { useEffect, useState } from "preact/hooks";
import { catalog, post } from "./api.js";
import { canonical } from "./url.js";

const MOST_CACHED = 24;
const PAUSE_MS = 200;
const cache = new Map(); // recent answers, so that returning to a tab shows its answer at once

function remember(key, answer) {
  cache.delete(key);
  cache.set(key, answer);
  if (cache.size > MOST_CACHED) cache.delete(cache.keys().next().value);
}

export function useQuery(path, body) {
  const key = body && `${path} ${canonical(body)}`;
  const [latest, setLatest] = useState({});
  useEffect(() => {
    if (!key || cache.has(key)) return undefined;
    const aborter = new AbortController();
    const send = () => post(path, body, { signal: aborter.signal }).then(
      (answer) => {
        remember(key, answer);
        setLatest({ key, answer });
      },
      (error) => {
        if (error.name === "AbortError") return;
        if (!error.problem) throw error;
        setLatest({ key, problem: error.problem });
      },
    );
    // Later changes wait for a pause in typing.
    const timer = setTimeout(send, latest.key ? PAUSE_MS : 0);
    return () => {
      clearTimeout(timer);
      aborter.abort();
    };
  }, [key]);
  if (!key) return { answer: null, problem: null, busy: false };
  if (cache.has(key)) {
    if (latest.key !== key) queueMicrotask(() => setLatest({ key, answer: cache.get(key) }));
    return { answer: cache.get(key), problem: null, busy: false };
  }
  const mine = latest.key === key;
  return { answer: latest.answer ?? null, problem: mine ? (latest.problem ?? null) : null, busy: !mine };
}

export function useCatalog(kind) {
  const [list, setList] = useState([]);
  useEffect(() => { catalog(kind).then(setList, () => {}); }, [kind]);
  return list;
}
