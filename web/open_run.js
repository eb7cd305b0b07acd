/* Opens an existing run in the Plan view: its model, training and cluster. */

import { batch } from "@preact/signals";
import { open, picked, pins, replace, request } from "./state.js";

/* The first argument is a resolved request.  plan: the plan to show, null for the best; own: the
   run's plan, pinned for comparison; site: corrects the times; said: the text of the undo toast. */
export function openRun({ model, training, cluster, search }, { plan = null, own = null, site, said }) {
  const [{ accelerator, nodes, accelerators_per_node }] = cluster.groups;
  const mine = request.peek().cluster;
  const place = typeof mine === "object" && !mine.groups ? mine : { accelerator: accelerator.id };
  const document = {
    model, training, cluster: { ...place, nodes, accelerators_per_node },
    search: search.framework ? { framework: search.framework } : {}, ...(site && { site }),
  };
  batch(() => {
    replace(document, said);
    picked.value = plan;
    if (own) pins.value = [{ plan: own, request: document }];
    open("plan");
  });
}
