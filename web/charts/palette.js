/* One palette for every chart: style.css holds the colours, this file their names and order.

   memoryParts, timeParts  [{key, label, colour}]: colour is a CSS value such as var(--part-weights)
   partsOf(known, values)  those of them that values has, and any part that is not among them
   SERIES                  eight colours to tell series apart
   resolved(colour)        the same as a colour that a canvas takes, in the theme on show */

const part = ([key, label]) => ({
  key,
  label,
  colour: `var(--part-${key.replaceAll("_", "-")}, var(--c8))`,
});

/* The parts that a value is above zero for, with those that have no name here yet. */
export function partsOf(known, values) {
  const named = new Set(known.map(({ key }) => key));
  const others = Object.keys(values).filter((key) => !named.has(key));
  return [...known, ...others.map((key) => part([key, key.replaceAll("_", " ")]))].filter(
    ({ key }) => values[key] > 0,
  );
}

export const memoryParts = [
  ["weights", "Weights"],
  ["gradients", "Gradients"],
  ["optimizer", "Optimizer"],
  ["activations", "Activations"],
  ["logits", "Logits"],
  ["working", "Working"],
  ["communication", "Communication"],
  ["fragmentation", "Fragmentation"],
  ["driver", "Driver, NCCL"],
].map(part);

export const timeParts = [
  ["forward", "Forward"],
  ["backward", "Backward"],
  ["recompute", "Recompute"],
  ["recompute_exchange", "Exchange of recompute"],
  ["tp_comm", "TP exchange"],
  ["cp_comm", "CP exchange"],
  ["ep_comm", "EP exchange"],
  ["pp_comm", "PP messages"],
  ["dp_comm", "DP exchange"],
  ["bubble", "Bubble"],
  ["optimizer", "Optimizer step"],
  ["offload", "Offload"],
  ["stragglers", "Stragglers"],
].map(part);

export const SERIES = [1, 2, 3, 4, 5, 6, 7, 8].map((i) => `var(--c${i})`);

export function resolved(colour) {
  const probe = document.createElement("i");
  probe.style.color = colour;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
