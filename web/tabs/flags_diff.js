/* The difference between an existing launch script and the displayed plan. */

import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { post } from "../api.js";
import { fieldName, value } from "../format.js";
import { open, report, request } from "../state.js";
import { DataTable } from "../ui/table.js";
import { RefusalNotice } from "../ui/notices.js";

const VERDICTS = {
  refused: "The framework would refuse this script",
  "does not fit": "This script's plan does not fit",
  "may run out": "This script may run out of memory",
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
      <textarea id=${`script-${framework}`} rows="8" spellcheck=${false} autocomplete="off" required value=${text}
        placeholder="torchrun … pretrain_gpt.py --num-layers 80 …" onInput=${({ target }) => setText(target.value)}></textarea>
      <div class="actions"><button class="primary" disabled=${told.busy}>${told.busy ? "Reading …" : "Compare"}</button></div>
    </form>
    <div role="status">
      <${RefusalNotice} problem=${told.problem} />
      ${told.answer && html`<${Difference} answer=${told.answer} plan=${report.value.plan} />`}
    </div>
  </details>`;
}

const FIELDS = [
  { key: "field", label: "Plan", show: fieldName },
  { key: "yours", label: "Your script", show: value },
  { key: "ours", label: "This plan", show: value },
];

function Difference({ answer, plan }) {
  const read = answer.request.plan;
  const fields = Object.keys(plan)
    .filter((field) => JSON.stringify(read?.[field]) !== JSON.stringify(plan[field]))
    .map((field) => ({ field, yours: read?.[field], ours: plan[field] }));
  const count = answer.findings.length;
  return html`
    <h4>${VERDICTS[answer.verdict]}</h4>
    ${count > 0 && html`<p>${count} ${count === 1 ? "finding" : "findings"}, the first: ${answer.findings[0].text}.
      ${" "}<button type="button" class="link" onClick=${() => open("lint")}>See all findings in Lint</button></p>`}
    ${read && (fields.length
      ? html`<${DataTable} caption="Fields of the plan that differ" visibleCaption columns=${FIELDS} rows=${fields} filter=${false} />`
      : html`<p>The script describes exactly this plan.</p>`)}`;
}
