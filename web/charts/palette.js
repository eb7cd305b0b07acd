/* The palette of all charts: style.css has the colours, this file their names and order.

   memoryParts, timeParts  [{key, label, noun, colour}]: noun is the label inside a sentence; colour is
                           a CSS value such as var(--part-weights)
   partsOf(known, values)  the known parts that values has, then its unknown parts
   movedTime(saved_s)      phrases for the seconds saved (below zero: lost), by part of the time:
                           ["saves 14 s of TP communication", "costs 0.6 s of bubble"]
   SERIES                  eight colours to tell series apart */

import { seconds } from "../format.js";

const part = ([key, label]) => ({
  key,
  label,
  // "TP communication" keeps its capitals.
  noun: label[1] === label[1].toUpperCase() ? label : label[0].toLowerCase() + label.slice(1),
  colour: `var(--part-${key.replaceAll("_", "-")}, var(--c8))`,
});

/* The parts with a value above zero, including those without a name here. */
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
  ["recompute_exchange", "Communication of recompute"],
  ["tp_comm", "TP communication"],
  ["cp_comm", "CP communication"],
  ["ep_comm", "EP communication"],
  ["pp_comm", "PP messages"],
  ["dp_comm", "DP communication"],
  ["bubble", "Bubble"],
  ["optimizer", "Optimizer step"],
  ["offload", "Offload"],
  ["stragglers", "Stragglers"],
].map(part);

const listed = new Intl.ListFormat("en-GB");

export function movedTime(saved_s) {
  const largest = partsOf(timeParts, Object.fromEntries(Object.keys(saved_s).map((key) => [key, 1])))
    .map(({ key, noun }) => ({ noun, saved: saved_s[key] }))
    .sort((a, b) => Math.abs(b.saved) - Math.abs(a.saved));
  const phrase = (verb, rows) =>
    rows.length ? [`${verb} ${listed.format(rows.map(({ noun, saved }) => `${seconds(Math.abs(saved))} of ${noun}`))}`] : [];
  return [
    ...phrase("saves", largest.filter(({ saved }) => saved > 0)),
    ...phrase("costs", largest.filter(({ saved }) => saved < 0)),
  ];
}

export const SERIES = [1, 2, 3, 4, 5, 6, 7, 8].map((i) => `var(--c${i})`);
