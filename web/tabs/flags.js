/* The launch flags and files of the displayed plan for a framework. */

import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { blob, call, download } from "../api.js";
import { flagsText, words } from "../flags_text.js";
import { count } from "../format.js";
import { change, framework, persist, pick, planRequest, report } from "../state.js";
import { CopyButton } from "../ui/copy.js";
import { Icon } from "../ui/icon.js";
import { Tabs } from "../ui/tabs.js";
import { toast } from "../ui/toast.js";
import { Loading, NoPlanNotice, RefusalNotice } from "../ui/notices.js";
import { useCatalog, useQuery } from "../use_query.js";
import { FlagsDiff } from "./flags_diff.js";

const shown = persist("flags_for", null); // a framework; null: that of the displayed plan
const launcher = persist("launcher", "");

function useLaunchers() {
  const [names, setNames] = useState([]);
  useEffect(() => { call("/v1/info").then(({ launchers }) => setNames(launchers), () => {}); }, []);
  return names;
}

export default function FlagsTab() {
  const frameworks = useCatalog("frameworks");
  const launchers = useLaunchers();
  if (!planRequest.value) return html`<${NoPlanNotice} />`;
  const current = shown.value ?? framework.value ?? frameworks[0]?.id;
  const items = frameworks.map((one) => ({
    id: `flags-${one.id}`,
    label: one.title,
    render: () => html`<${Launch} key=${one.id} of=${one} launchers=${launchers} />`,
  }));
  if (!items.length) return html`<div class="loading" aria-busy="true"></div>`;
  return html`<div class="flags-tab">
    <${Equation} />
    <${Tabs} label="Frameworks" items=${items} current=${`flags-${current}`}
      onSelect=${(id) => { shown.value = id.replace("flags-", ""); }} />
  </div>`;
}

/* The batch and rank equations that any flags must satisfy. */
function Equation() {
  const { plan, num_micro_batches: accumulation } = report.value;
  const batch = plan.micro_batch_size * accumulation * plan.dp;
  const term = (name, value) => html`<span class="term"><b>${count(value)}</b><small>${name}</small></span>`;
  return html`<p class="equation" aria-label="Batch equation">
    ${term("global_batch_size", batch)} = ${term("micro_batch_size", plan.micro_batch_size)} ×
    ${term("accumulation", accumulation)} × ${term("dp", plan.dp)}
  </p>`;
}

function Launch({ of, launchers }) {
  const { id, title } = of;
  const asked = planRequest.value;
  const body = { ...asked, search: { ...asked.search, framework: id } };
  const query = launcher.value ? `?launcher=${encodeURIComponent(launcher.value)}` : "";
  const { answer, problem, busy } = useQuery(`/v1/bundles${query}`, body);
  const replan = () => {
    pick(null);
    change("/search/framework", id);
  };
  const zip = async () => {
    try {
      download(`${id}.zip`, await blob(`/v1/bundles${query}`, { method: "POST", body, accept: "application/zip" }));
    } catch (error) {
      toast(error.message, { kind: "bad" });
    }
  };
  return html`<div class="launch" aria-busy=${String(busy)}>
    <div class="table-tools">
      <label class="inline">Started by
        <select value=${launcher.value} onChange=${({ target }) => { launcher.value = target.value; }}>
          <option value="" selected=${!launcher.value}>${title}'s own script</option>
          ${launchers.map((name) => html`<option key=${name} value=${name} selected=${name === launcher.value}>${name}</option>`)}
        </select>
      </label>
      ${answer && !problem && html`
        <span class="spring"></span>
        <${CopyButton} kind="primary" label="Copy flags" text=${() => flagsText(answer)} />
        <${CopyButton} label=${`Copy ${answer.main}`} text=${answer.files[answer.main]} />
        <button type="button" onClick=${() => download(answer.main, answer.files[answer.main], "text/plain")}><${Icon} name="download" /> ${answer.main}</button>
        <button type="button" onClick=${zip}><${Icon} name="download" /> Zip</button>`}
    </div>
    <${Loading} when=${!answer && !problem} />
    <${RefusalNotice} problem=${problem} title=${`${title} cannot be given this plan`}>
      ${id !== asked.search?.framework && html`<p><button type="button" onClick=${replan}>Find the best plan for ${title}</button></p>`}
    <//>
    ${answer && !problem && html`
      <p class="muted">For ${answer.versions}. ${answer.starts === "every node" ? "Start it on every node." : "Start it on the first node."}</p>
      <${Flags} flags=${answer.flags} />
      <${Files} files=${answer.files} main=${answer.main} />
      ${answer.notes.length > 0 && html`<div class="notice"><ul>${answer.notes.map(({ code, text }) => html`<li key=${code}>${text}</li>`)}</ul></div>`}
      ${of.read_back && html`<${FlagsDiff} framework=${id} title=${title} />`}`}
  </div>`;
}

function Flags({ flags }) {
  const groups = [...new Set(flags.map(({ group }) => group))];
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Flags">
    <table class="flags plain-table">
      <caption class="for-readers">Every flag, its value and why</caption>
      <thead><tr><th scope="col">Flag</th><th scope="col">Value</th><th scope="col">Why</th></tr></thead>
      ${groups.map((group) => html`<tbody key=${group}>
        ${groups.length > 1 && html`<tr class="group"><th scope="rowgroup" colspan="3">${group}</th></tr>`}
        ${flags.filter((flag) => flag.group === group).map((flag) => html`<tr>
          <th scope="row"><code>${flag.name}</code></th>
          <td><code>${words(flag).join(" ")}</code></td>
          <td>${flag.why}</td>
        </tr>`)}
      </tbody>`)}
    </table>
  </div>`;
}

function Files({ files, main }) {
  const names = Object.keys(files);
  return html`<div class="files">
    ${names.map((name) => html`<details key=${name} class="card">
      <summary><code>${name}</code> <span class="muted">${count(files[name].split("\n").length - 1)} lines${name === main ? ", starts the run" : ""}</span></summary>
      <div class="table-tools">
        <span class="spring"></span>
        <${CopyButton} text=${files[name]} label="Copy" />
        <button type="button" onClick=${() => download(name, files[name], "text/plain")}><${Icon} name="download" /> Download</button>
      </div>
      <pre tabindex="0" role="region" aria-label=${name}><code>${files[name]}</code></pre>
    </details>`)}
  </div>`;
}
