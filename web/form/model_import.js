/* The import of a config.json: its progress, and what was read, guessed or approximated. */

import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { big } from "../format.js";
import { Progress } from "../ui/progress.js";
import { More } from "./section.js";

const OF_MODULES = /^(layers|other_parameters): /; // notes on a model that was built to inspect it
const APPROXIMATE = /^layers: matched approximately/;
const SHORT_S = 1; // shorter imports show no progress bar

/* The result of an import in one line. */
export function importSummary({ title, model, parameters, active_parameters: used, guessed }) {
  const active = used < parameters ? `, ${big(used)} active` : "";
  const guesses = guessed.filter((line) => !OF_MODULES.test(line)).length;
  const said = [guesses ? `${guesses} field${guesses > 1 ? "s" : ""} guessed` : "nothing guessed"];
  if (guessed.some((line) => APPROXIMATE.test(line))) said.push("some layers matched approximately");
  return `Read as ${title ?? model.name}: ${big(parameters)} parameters${active}; ${said.join(", ")}`;
}

/* The progress of an import; a family without a reader takes longer, since it is built first. */
export function ImportProgress({ onCancel }) {
  const [waited, setWaited] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setWaited((now) => now + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  if (waited < SHORT_S) return null;
  return html`<div class="reading"><${Progress} label="Building the model to read its layers" more=${`… ${waited} s`} onCancel=${onCancel} /></div>`;
}

/* The notes of an import: how its layers were read, and what was guessed. */
export function ImportNotes({ guessed }) {
  const seen = guessed.filter((line) => OF_MODULES.test(line));
  const guesses = guessed.filter((line) => !OF_MODULES.test(line));
  const list = (lines) => html`<ul class="hint">${lines.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`;
  return html`
    ${seen.length > 0 && html`<${More} label=${seen.some((line) => APPROXIMATE.test(line)) ? "Read from the built model: some layers matched approximately" : "Read from the built model: all layers matched exactly"}>
      ${list(seen.map((line) => line.replace(/^layers: /, "")))}<//>`}
    ${guesses.length > 0 && html`<${More} label=${`${guesses.length} field${guesses.length > 1 ? "s" : ""} guessed`}>${list(guesses)}<//>`}`;
}
