/* The query of the RL view: a model, accelerators, and what one step is made of. */

import { computed } from "@preact/signals";
import { searchQuery } from "../search_query.js";
import { persist } from "../state.js";

export const chosen = persist("rl", {
  model: "qwen3-8b", accelerator: "h100-sxm-80gb", nodes: 2, per_node: 8, prompts: 64, samples: 8,
  prompt_tokens: 512, response_tokens: 1500, max_response_tokens: 8192, staleness: 0,
  algorithm: "grpo", trainer: "verl",
});
export const steps = searchQuery("/v1/rl");

const OF_CLUSTER = new Set(["model", "accelerator", "nodes", "per_node"]);
const STEP = () => Object.fromEntries(Object.entries(chosen.value).filter(([name, value]) => !OF_CLUSTER.has(name) && value !== undefined));

export const asked = computed(() => {
  const { model, accelerator, nodes = 1, per_node = 8 } = chosen.value;
  return { model, cluster: `${nodes}x${per_node}x${accelerator}`, reinforcement: STEP() };
});

export const command = computed(() => {
  const { model, cluster, reinforcement } = asked.value;
  const said = Object.entries({ model, cluster, ...reinforcement }).filter(([name, value]) => !(name === "staleness" && value === 0));
  const option = ([name, value]) => `--${name.replaceAll("_", "-")}${value === true ? "" : ` ${value}`}`;
  return `planner rl-emit ${said.map(option).join(" ")} --output rl`;
});

export const choose = (changes) => { chosen.value = { ...chosen.peek(), ...changes }; };
export const refusedAt = (pointer) => steps.problems.value.filter((one) => one.pointer === pointer);
