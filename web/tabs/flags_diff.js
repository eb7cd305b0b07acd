/* A launch script that somebody already has, against the plan on show. */

import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { post } from "../api.js";
import { fieldName, percent, value } from "../format.js";
import { report, request } from "../state.js";
import { DataTable } from "../ui/table.js";
import { Trouble } from "./asked.js";

const VERDICTS = {
  refused: "The framework would refuse this script",
  "does not fit": "This script's plan does not fit",
  improvable: "This script runs, and could be better",
  fine: "This script is fine",
};

export function FlagsDiff({ framework, title }) {
  const [text, setText] = useState("");
  const [told, setTold] = useState({});
  const compare = async (event) => {
    event.preventDefault();
    setTold({ busy: true });
    const body = { files: { "launch.sh": text }, cluster: request.peek().cluster, framework };
    try {
      setTold({ answer: await post("/v1/lints", body) });
    } catch (error) {
      if (!error.problem) throw error;
      setTold({ problem: error.problem });
    }
  };
  return html`<details class="card flags-diff">
    <summary>Compare with the script you have</summary>
    <form onSubmit=${compare} class="stack">
      <label for=${`script-${framework}`}>Your ${title} launch script, or its flags. It is read, never run.</label>
      <textarea id=${`script-${framework}`} rows="8" spellcheck="false" autocomplete="off" required value=${text}
        placeholder="torchrun … pretrain_gpt.py --num-layers 80 …" onInput=${({ target }) => setText(target.value)}></textarea>
      <div class="actions"><button class="primary" disabled=${told.busy}>${told.busy ? "Reading …" : "Compare"}</button></div>
    </form>
    <div role="status">
      <${Trouble} problem=${told.problem} />
      ${told.answer && html`<${Difference} answer=${told.answer} plan=${report.value.plan} />`}
    </div>
  </details>`;
}

const FIELDS = [
  { key: "field", label: "Plan", show: fieldName },
  { key: "yours", label: "Your script", show: value },
  { key: "ours", label: "This plan", show: value },
];
const CHANGES = [
  { key: "option", label: "Option", show: (name) => html`<code>${name}</code>` },
  { key: "before", label: "Your script", show: setting },
  { key: "after", label: "Should be", show: setting },
  { key: "why", label: "Why" },
];

function setting(text) {
  if (text === null) return "absent";
  return text === "" ? "set" : html`<code>${text}</code>`;
}

function Difference({ answer, plan }) {
  const read = answer.request.plan;
  const fields = Object.keys(plan)
    .filter((field) => JSON.stringify(read?.[field]) !== JSON.stringify(plan[field]))
    .map((field) => ({ field, yours: read?.[field], ours: plan[field] }));
  const better = answer.mended ?? answer.best;
  const saved = answer.gain && (answer.gain.inside_error
    ? `The fastest plan for it is within the model's error (${percent(answer.gain.share, 2)}).`
    : `The fastest plan for it saves ${percent(answer.gain.share, 2)} of the time.`);
  return html`
    <h4>${VERDICTS[answer.verdict]}</h4>
    ${saved && html`<p>${saved}</p>`}
    <ul class="findings">
      ${answer.findings.map((finding) => html`<li class=${finding.severity}>
        <b>${finding.severity}</b> ${finding.text} ${finding.line > 0 && html`<small>line ${finding.line}</small>`}
      </li>`)}
    </ul>
    ${read && (fields.length
      ? html`<${DataTable} caption="Fields of the plan that differ" visibleCaption columns=${FIELDS} rows=${fields} filter=${false} />`
      : html`<p>It says the very plan on show.</p>`)}
    ${better && html`<${DataTable} name="changes" caption="Options to change" visibleCaption columns=${CHANGES} rows=${better.changes} filter=${false} />`}`;
}
