/* What the Size view asks and what it got: the plan's model, training, limits and site, and `sizing`. */

import { batch, computed } from "@preact/signals";
import { get, set } from "../json_pointer.js";
import { searchQuery } from "../search_query.js";
import { open, persist, picked, request } from "../state.js";

/* The fields of `sizing` in POST /v1/sizings; what is left out is the service's to choose. */
export const sizing = persist("sizing", { deadline_days: 60 });
export const sizes = searchQuery("/v1/sizings");

export const asked = computed(() => {
  const { model, training, search, site } = request.value;
  return { model, training, search, site, sizing: sizing.value };
});

export const sizingField = (name) => get(sizing.value, `/${name}`);
export const changeSizing = (name, value) => { sizing.value = set(sizing.peek(), `/${name}`, value); };

/* What the service refused at a place of the document that was asked. */
export const refusedAt = (pointer) => sizes.problems.value.filter((one) => one.pointer === pointer);

/* The cluster of a row in the Plan view, by the plan it was sized with. */
export function openRow(row) {
  const { pue, failures_per_1000_node_days, prices_usd_per_accelerator_hour: prices = {} } = sizing.peek();
  const given = { pue, failures_per_1000_node_days, price_usd_per_accelerator_hour: prices[row.accelerator] };
  batch(() => {
    request.value = {
      ...request.peek(),
      cluster: {
        accelerator: row.accelerator, nodes: row.nodes,
        accelerators_per_node: row.accelerators / row.nodes,
        ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)),
      },
    };
    picked.value = row.plan;
    open("plan");
  });
}
