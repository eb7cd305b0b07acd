/* The queries of the Fit view: a model, a card, every card or an instance, and how many tokens. */

import { computed } from "@preact/signals";
import { searchQuery } from "../search_query.js";
import { persist } from "../state.js";

/* Either so many cards of a kind in one node, or a node by name. */
export const chosen = persist("fit", { model: "qwen3-8b", card: "rtx-4090", cards: 1, tokens: 1e7 });
export const EVERY = "every card";
export const fits = searchQuery("/v1/fits");
export const byCard = searchQuery("/v1/fits/by-card");

export const ofEvery = computed(() => chosen.value.on === undefined && chosen.value.card === EVERY);
export const query = computed(() => (ofEvery.value ? byCard : fits));
export const asked = computed(() => {
  const { model, card, cards = 1, on, tokens, global_batch_size } = chosen.value;
  const training = Object.fromEntries(Object.entries({ tokens, global_batch_size }).filter(([, value]) => value !== undefined));
  return ofEvery.value ? { model, training } : { model, cluster: on ?? `1x${cards}x${card}`, training };
});

export const choose = (changes) => { chosen.value = { ...chosen.peek(), ...changes }; };
export const refusedAt = (pointer) => query.value.problems.value.filter((one) => one.pointer === pointer);
