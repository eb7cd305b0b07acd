/* The query of the Fit view: a model, a card or an instance, and how many tokens. */

import { computed } from "@preact/signals";
import { searchQuery } from "../search_query.js";
import { persist } from "../state.js";

/* Either so many cards of a kind in one node, or a node by name. */
export const chosen = persist("fit", { model: "qwen3-8b", card: "rtx-4090", cards: 1, tokens: 1e7 });
export const fits = searchQuery("/v1/fits");

export const asked = computed(() => {
  const { model, card, cards = 1, on, tokens, global_batch_size } = chosen.value;
  const training = Object.fromEntries(Object.entries({ tokens, global_batch_size }).filter(([, value]) => value !== undefined));
  return { model, cluster: on ?? `1x${cards}x${card}`, training };
});

export const choose = (changes) => { chosen.value = { ...chosen.peek(), ...changes }; };
export const refusedAt = (pointer) => fits.problems.value.filter((one) => one.pointer === pointer);
