/* A long query with progress, independent of the search for plans in state.js.

   const sizes = searchQuery("/v1/sizings");
   sizes.ask(body)     sends the query and aborts the previous one; sizes.cancel() aborts it
   Signals: answer (the latest, null at first), answered (its body, canonical), busy, progress
   ({done, total, best} or null), problems ([{pointer, detail, …}]), failure (a problem document or null) */

import { batch, signal } from "@preact/signals";
import { Refused, search } from "./api.js";
import { canonical } from "./url.js";

export function searchQuery(path) {
  const own = {
    answer: signal(null), answered: signal(""), busy: signal(false), progress: signal(null),
    problems: signal([]), failure: signal(null),
  };
  let running = null;

  function cancel() {
    running?.abort();
    batch(() => { own.busy.value = false; own.progress.value = null; });
  }

  async function ask(body) {
    running?.abort();
    const mine = new AbortController();
    running = mine;
    own.busy.value = true;
    try {
      const onProgress = (told) => { own.progress.value = told; };
      const found = await search(path, body, { signal: mine.signal, onProgress });
      if (running !== mine) return;
      batch(() => {
        own.answer.value = found;
        own.answered.value = canonical(body);
        own.problems.value = [];
        own.failure.value = null;
      });
    } catch (error) {
      if (error.name === "AbortError" || running !== mine) return;
      if (!(error instanceof Refused)) throw error;
      batch(() => {
        own.problems.value = error.problem.errors ?? [];
        own.failure.value = error.problem;
      });
    }
    if (running === mine) batch(() => { own.busy.value = false; own.progress.value = null; });
  }

  return { ...own, ask, cancel };
}
