/* The query of the Size view: the plan's model, training, limits and site, plus `sizing`. */

import { batch, computed } from "@preact/signals";
import { get, set } from "../json_pointer.js";
import { searchQuery } from "../search_query.js";
import { open, persist, picked, request } from "../state.js";

/* The fields of `sizing` in POST /v1/sizings; the service has defaults for the others. */
export const sizing = persist("sizing", { deadline_days: 60 });
export const sizes = searchQuery("/v1/sizings");

export const asked = computed(() => {
  const { model, training, search, site } = request.value;
  return { model, training, search, site, sizing: sizing.value };
});

export const sizingField = (name) => get(sizing.value, `/${name}`);
export const changeSizing = (name, value) => { sizing.value = set(sizing.peek(), `/${name}`, value); };

/* The service's problems at a place in the query's document. */
export const refusedAt = (pointer) => sizes.problems.value.filter((one) => one.pointer === pointer);

/* Open a row's cluster in the Plan view, with the plan that it was sized with. */
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
