/* Memory of every stage, stacked by part, with the accelerator's capacity. */

import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { bytes, BYTE_UNITS, kindsLine, number } from "../format.js";
import { report, units } from "../state.js";
import { ChartFrame } from "./frame.js";
import { memoryParts, partsOf } from "./palette.js";

const MOST_BARS = 16; // shown at first

export function MemoryChart() {
  const { memory } = report.value;
  const [all, setAll] = useState(false);
  const [near, setNear] = useState(null); // the stage under the pointer; null: the fullest
  const size = BYTE_UNITS[units.value];
  const shownParts = partsOf(memoryParts, Object.assign({}, ...memory.stages.map(({ parts }) => Object.fromEntries(Object.entries(parts).filter(([, held]) => held > 0)))));
  const widest = Math.max(memory.capacity_bytes, ...memory.stages.map(({ total_bytes }) => total_bytes)) * 1.02;
  const share = (value) => `${(100 * value) / widest}%`;
  const stages = all ? memory.stages : memory.stages.slice(0, MOST_BARS);
  const columns = [
    { key: "stage", label: "Stage", number: true },
    { key: "layers", label: "Layers", number: true },
    { key: "in_flight", label: "In flight", number: true, title: "micro-batches whose activations are held at once" },
    { key: "total_bytes", label: `Total (${units.value})`, number: true, show: (v) => number(v / size) },
    ...shownParts.map(({ key, label }) => ({ key, label, number: true, value: (row) => row.parts[key], show: (v) => number(v / size) })),
  ];
  const worst = memory.stages[memory.worst_stage];
  const told = memory.stages[near] ?? worst;
  const caption = `Stage ${memory.worst_stage} is the fullest: ${bytes(worst.total_bytes, units.value)} of ${bytes(memory.capacity_bytes, units.value)} at its highest moment.`;
  return html`
    <${ChartFrame} title="Memory per stage" name="memory" columns=${columns} rows=${memory.stages} caption=${caption}>
      <div class="stages ${stages.length > 8 ? "many" : ""}" onMouseLeave=${() => setNear(null)} style=${{ "--capacity": share(memory.capacity_bytes) }}>
        ${stages.map((stage) => {
          const over = stage.total_bytes > memory.capacity_bytes;
          return html`
            <div key=${stage.stage} class="stage ${over ? "over" : ""} ${stage.stage === memory.worst_stage ? "worst" : ""}" onMouseEnter=${() => setNear(stage.stage)}>
              <span class="stage-name">${stage.stage}</span>
              <div class="bar" role="img" tabindex="0" onFocus=${() => setNear(stage.stage)} onBlur=${() => setNear(null)} aria-label=${`Stage ${stage.stage}: ${bytes(stage.total_bytes, units.value)}. ${describe(stage, shownParts)}`}>
                ${shownParts.map(({ key, label, colour }) => stage.parts[key] > 0 && html`
                  <i key=${key} class=${`part part-${key}`} style=${{ width: share(stage.parts[key]), background: colour }} title=${`${label}: ${bytes(stage.parts[key], units.value)}`}></i>`)}
              </div>
              <span class="stage-total">${number(stage.total_bytes / size)}</span>
            </div>`;
        })}
        <div class="capacity" aria-hidden="true"><span>${bytes(memory.capacity_bytes, units.value)}</span></div>
      </div>
      ${memory.stages.length > stages.length && html`<button type="button" class="quiet" onClick=${() => setAll(true)}>${memory.stages.length - stages.length} more stages</button>`}
      <p class="legend-title">Stage ${told.stage}${told === worst ? ", the fullest" : ""} · ${layersOf(told)} · ${number(told.in_flight)} micro-batch${told.in_flight === 1 ? "" : "es"} in flight</p>
      <ul class="legend columns">${shownParts.map(({ key, label, colour }) => html`
        <li key=${key}><i class=${`part-${key}`} style=${{ background: colour }}></i>${label}<b>${bytes(told.parts[key], units.value)}</b></li>`)}</ul>
    <//>`;
}

/* The stage's layers, by kind if the model has several. */
const layersOf = ({ stage, layers }) => {
  const kinds = report.value.layers_by_kind[stage];
  return kinds ? kindsLine(kinds) : `${layers} layers`;
};

const describe = (stage, parts) =>
  parts.filter(({ key }) => stage.parts[key] > 0).map(({ key, label }) => `${label} ${bytes(stage.parts[key], units.value)}`).join(", ");
