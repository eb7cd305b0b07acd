/* The header: views on the left, settings for all views on the right. */

import { html } from "htm/preact";
import { useRef } from "preact/hooks";
import { download, url } from "./api.js";
import { openKeyboardHelp } from "./ui/keyboard_help.js";
import { VIEWS } from "./registry.js";
import { answer, link, open, pins, planRequest, theme, units, view } from "./state.js";
import { BYTE_UNITS } from "./format.js";
import { CopyButton } from "./ui/copy.js";
import { Icon } from "./ui/icon.js";
import { Menu } from "./ui/menu.js";
import { toCsv } from "./ui/table.js";
import { useInView } from "./ui/tabs.js";
import { toast } from "./ui/toast.js";

const THEMES = { "": ["system", "System theme"], dark: ["moon", "Dark theme"], light: ["sun", "Light theme"] };
const NEXT_THEME = { "": "dark", dark: "light", light: "" };

const FRONT = [
  ...["tp", "pp", "dp", "cp", "ep", "vpp", "micro_batch_size", "zero_stage", "recompute", "schedule"]
    .map((key) => ({ key, value: (report) => report.plan[key] })),
  ...["iteration_time_s", "tokens_per_s", "mfu", "days", "cost_usd", "energy_kwh"].map((key) => ({ key })),
  { key: "peak_bytes", value: (report) => report.memory.peak_bytes },
];

const json = (value) => JSON.stringify(value, null, 1);
const ready = (run) => () => (answer.value ? run(answer.value) : toast("There is no answer yet."));
const EXPORTS = [
  { label: "Answer as JSON", run: ready((found) => download("plan.json", json(found))) },
  { label: "Pareto front as CSV", run: ready((found) => download("pareto.csv", toCsv(FRONT, found.pareto), "text/csv")) },
  { label: "Request for the command line", run: ready(() => download("request.json", json(planRequest.value ?? answer.value.request))) },
];

export function Header() {
  const [icon, name] = THEMES[theme.value];
  const nav = useRef(null);
  useInView(nav, Math.max(0, VIEWS.findIndex(({ id }) => id === view.value)));
  return html`
    <header class="top">
      <a class="brand" href=${url("")} aria-label="Parallel Planner, start again">
        <svg viewBox="0 0 24 24" aria-hidden="true"><path d="M3 6h8M8 12h8M13 18h8M16 6h5M3 12h1M3 18h6" /></svg>
        <span>Parallel Planner</span>
      </a>
      <nav aria-label="Views" ref=${nav}>
        ${VIEWS.map(({ id, label }) => html`
          <button key=${id} type="button" aria-current=${view.value === id ? "page" : undefined} onClick=${() => open(id)}>
            ${label}${id === "compare" && pins.value.length > 0 && html` <span class="badge">${pins.value.length}</span>`}
          </button>`)}
        <a href=${url("docs")}>API</a>
      </nav>
      <span class="spring"></span>
      <div class="top-tools">
        <div class="segments" role="group" aria-label="Units of memory">
          ${Object.keys(BYTE_UNITS).map((one) => html`<button key=${one} type="button" aria-pressed=${String(units.value === one)} onClick=${() => { units.value = one; }}>${one}</button>`)}
        </div>
        <button type="button" class="quiet square" title=${name} aria-label=${`${name}; press for another`} onClick=${() => { theme.value = NEXT_THEME[theme.value]; }}><${Icon} name=${icon} /></button>
        <button type="button" class="quiet square keyboard" title="Keys (?)" aria-label="Keyboard help" onClick=${openKeyboardHelp}><${Icon} name="keyboard" /></button>
        <${CopyButton} text=${link} label="Share" />
        <${Menu} label="Export" icon="download" items=${EXPORTS} />
      </div>
    </header>`;
}
