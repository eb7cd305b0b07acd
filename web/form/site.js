/* The site, whose calibration and measured runs correct the times. */

import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { call } from "../api.js";
import { count } from "../format.js";
import { change, problemsAt, request } from "../state.js";
import { SelectField } from "../ui/field.js";

const NONE = { value: "", label: "None" };
const LEARN = "planner learn LOG --site NAME";

/* A site's runs and calibration in one line. */
function told({ name, runs, calibrated_at: calibrated, problem }) {
  if (problem) return `${name}: damaged`;
  const what = [calibrated && "calibrated", runs > 0 && `${count(runs)} run${runs > 1 ? "s" : ""}`].filter(Boolean);
  return `${name}: ${what.join(", ") || "nothing yet"}`;
}

export function Site() {
  const [rows, setRows] = useState(null); // null: not loaded yet
  useEffect(() => { call("/v1/sites").then((found) => setRows(found.rows), () => {}); }, []);
  const options = [NONE, ...(rows ?? []).map((row) => ({ value: row.name, label: told(row) }))];
  return html`<${SelectField} id="f-site" label="Site" title="The cluster this will run on: times then use its calibration and its measured runs"
    value=${request.value.site ?? ""} options=${options} onChange=${(name) => change("/site", name || undefined)}
    problems=${problemsAt("/site")} hint=${rows?.length === 0 && html`no site yet; create one with <code>${LEARN}</code>`} />`;
}
