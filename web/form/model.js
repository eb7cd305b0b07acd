/* The model: a preset or a pasted, dropped or chosen config.json; all dimensions can be edited. */

import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { post } from "../api.js";
import { big, capitalized, kindsLine } from "../format.js";
import { change, layers, problems, problemsAt, replace, request, resolved } from "../state.js";
import { Options } from "../ui/field.js";
import { Icon } from "../ui/icon.js";
import { toast } from "../ui/toast.js";
import { Encoders } from "./encoders.js";
import { ImportNotes, importSummary, ImportProgress } from "./model_import.js";
import { More, sameSpec, Section } from "./section.js";
import { SchemaFields } from "./schema.js";
import { useCatalog } from "../use_query.js";

const FAMILIES = /^(gpt-oss|gpt|llama|qwen|deepseek|mistral|mixtral|megatron|gemma|falcon|opt|phi|glm|mpt)/;
const family = (id) => FAMILIES.exec(id)?.[0] ?? "others";
const TITLES = { gpt: "GPT", "gpt-oss": "GPT-OSS", llama: "Llama", qwen: "Qwen", deepseek: "DeepSeek", opt: "OPT", glm: "GLM", mpt: "MPT", others: "Others" };
const title = (name) => TITLES[name] ?? capitalized(name);
const OWN = "\0own";
const LARGEST = 1_000_000; // most characters of a config.json
const NAME = /^[\w.-]+(\/[\w.-]+)*$/; // of a model of the hub, or of one's own copy of it
const STRING_OR_NOT_FINITE = /"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b/g;

/** The value of a config.json; Infinity and NaN, which Python may have written, become strings. */
const parsed = (source) =>
  JSON.parse(source.replace(STRING_OR_NOT_FINITE, (found) => (found[0] === '"' ? found : `"${found}"`)));

export function Model() {
  const models = useCatalog("models");
  const given = request.value.model;
  const known = models.find(({ id, spec }) => id === given || (spec.name === given?.name && sameSpec(spec, given)));
  const model = known?.id ?? given;
  const named = typeof model === "string";
  const [text, setText] = useState(null); // pasted text that could not be read
  const [trouble, setTrouble] = useState([]);
  const [over, setOver] = useState(false);
  const [reading, setReading] = useState(false);
  const running = useRef(null); // AbortController of the import in progress

  const counted = useCounted(named ? null : given);

  const read = async (source, name) => {
    const failed = (found) => { setText(source); setTrouble(found); };
    if (source.length > LARGEST) return failed([{ detail: "This is too long for a config.json." }]);
    if (source.length < 200 && NAME.test(source.trim())) {
      choose(source.trim());
      return setText(null);
    }
    let config;
    try {
      config = parsed(source);
    } catch (error) {
      return failed([{ detail: `This is not JSON: ${error.message}.` }]);
    }
    running.current?.abort();
    const mine = new AbortController();
    running.current = mine;
    setReading(true);
    try {
      const found = await post("/v1/models/import", config, { signal: mine.signal });
      replace({ ...request.peek(), model: { ...found.model, ...(name && { name }) }, guessed: found.guessed }, importSummary(found));
      found.warnings?.forEach((warning) => toast(warning.text ?? warning));
      setText(null);
      setTrouble([]);
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      if (!error.problem) throw error;
      failed(error.problem.errors ?? [error.problem]);
    }
    setReading(false);
    return undefined;
  };
  const stop = () => { running.current?.abort(); setReading(false); };
  const file = async ([chosen]) => chosen && read(await chosen.text(), nameOf(chosen.name));
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer.files.length) file(event.dataTransfer.files);
    else if (event.dataTransfer.getData("text")) read(event.dataTransfer.getData("text"));
  };
  usePasted(read);
  const options = models.map(({ id, parameters }) => ({ value: id, label: `${id} · ${big(parameters)}`, group: title(family(id)) }))
    .sort((a, b) => a.group.localeCompare(b.group));
  const spec = resolved.value?.model;
  const edit = (name, value) => {
    const whole = named ? spec : model;
    const { [name]: _, ...others } = whole;
    change("/model", value === undefined ? others : { ...others, [name]: value });
  };
  const guessed = request.value.guessed ?? [];
  const choose = (id) => {
    const { guessed: _, ...others } = request.peek();
    replace({ ...others, model: id });
  };
  return html`
    <${Section} title="Model" problems=${problemsAt("/model")} onFix=${choose}>
      <div class="drop ${over ? "over" : ""}" onDragOver=${(event) => { event.preventDefault(); setOver(true); }}
        onDragLeave=${() => setOver(false)} onDrop=${drop}>
        <select aria-label="Model" id="f-model" value=${named ? model : OWN} onChange=${({ target }) => choose(target.value)}>
          ${!named && html`<option value=${OWN}>${model?.name ?? "custom"} (own)${counted ? ` · ${big(counted.parameters)}` : ""}</option>`}
          ${named && !known && html`<option value=${model}>${model}</option>`}
          <${Options} options=${options} />
        </select>
        <div class="drop-tools">
          <button type="button" onClick=${() => setText(text === null ? "" : null)} aria-expanded=${String(text !== null)}>Name or config.json</button>
          <label class="button"><${Icon} name="upload" /><span>Upload or drop</span>
            <input type="file" accept=".json,application/json" class="for-readers" onChange=${({ target }) => { file(target.files); target.value = ""; }} /></label>
        </div>
        ${text !== null && html`
          <div class="paste">
            <textarea aria-label="Name or config.json of a model" rows="7" spellcheck=${false} placeholder='meta-llama/Llama-3.2-1B-Instruct, or {"model_type": "llama", "hidden_size": 4096, …}'
              value=${text} onInput=${({ target }) => { setText(target.value); setTrouble([]); }}
              onPaste=${({ target }) => setTimeout(() => read(target.value))} ref=${(box) => box && !text && box.focus()}></textarea>
            ${trouble.length > 0 && html`<div class="problem" role="alert">${trouble.map(({ pointer, detail, did_you_mean }) => html`
              <p>${pointer && html`<code>${pointer}</code> `}${detail}${did_you_mean?.length ? ` Did you mean ${did_you_mean.join(" or ")}?` : ""}</p>`)}</div>`}
            <div class="actions"><button type="button" class="primary" onClick=${() => read(text)} disabled=${!text.trim()}>Read it</button>
              <button type="button" onClick=${() => { setText(null); setTrouble([]); }}>Close</button></div>
          </div>`}
        ${reading && html`<${ImportProgress} onCancel=${stop} />`}
        <p class="hint">${summary(spec, known ?? counted)}</p>
        ${Object.keys(layers.value).length > 1 && html`<p class="hint" aria-label="Layers by kind">${kindsLine(layers.value)}</p>`}
      </div>
      <${Encoders} />
      <${ImportNotes} guessed=${guessed} />
      <${More} label="All dimensions">
        ${spec && html`<div class="dense"><${SchemaFields} type="ModelSpec" pointer="/model" skip=${named ? ["name"] : []}
          value=${named ? undefined : model} usual=${spec} onChange=${edit} /></div>`}
      <//>
      ${!named && problems.value.filter(({ pointer }) => pointer.startsWith("/model/")).map(({ pointer, detail }) => html`
        <p class="problem" key=${pointer}><code>${pointer.slice(7)}</code> ${detail}</p>`)}
    <//>`;
}

/* The model's name from its file's name; undefined for config.json. */
const nameOf = (file) => (/^config\b/i.test(file) ? undefined : file.replace(/\.json$/i, ""));

/* Import a config.json that is pasted anywhere outside a field. */
function usePasted(read) {
  const latest = useRef(read);
  latest.current = read;
  useEffect(() => {
    const onPaste = (event) => {
      const text = event.clipboardData?.getData("text") ?? "";
      if (event.target.closest?.("input, textarea, select, dialog") || !text.trim().startsWith("{")) return;
      event.preventDefault();
      latest.current(text);
    };
    addEventListener("paste", onPaste);
    return () => removeEventListener("paste", onPaste);
  }, []);
}

const PAUSE_MS = 300;

/* The parameter count of a custom model as currently edited; null until it is known. */
function useCounted(model) {
  const [counted, setCounted] = useState(null);
  const document = model && JSON.stringify(model);
  useEffect(() => {
    if (!document) { setCounted(null); return undefined; }
    const aborter = new AbortController();
    const count = () => post("/v1/models/describe", JSON.parse(document), { signal: aborter.signal })
      .then(({ parameters, active_parameters }) => setCounted({ parameters, active_parameters }), () => {});
    const timer = setTimeout(count, counted ? PAUSE_MS : 0);
    return () => { clearTimeout(timer); aborter.abort(); };
  }, [document]);
  return counted;
}

function summary(spec, known) {
  if (!spec) return "\u00a0";
  const active = known && known.active_parameters < known.parameters ? `, ${big(known.active_parameters)} active` : "";
  const size = known ? `${big(known.parameters)} parameters${active} · ` : "";
  const experts = spec.moe ? ` · ${spec.moe.num_experts} experts, ${spec.moe.top_k} used` : "";
  return `${size}${spec.num_layers} layers · hidden ${spec.hidden_size} · ${spec.num_attention_heads} heads${experts}`;
}
