/* The dialog that lists the keyboard shortcuts, opened by "?". */

import { signal } from "@preact/signals";
import { html } from "htm/preact";
import { VIEWS } from "../registry.js";
import { Dialog } from "./dialog.js";

const shown = signal(false);
export const openKeyboardHelp = () => { shown.value = true; };

const KEYS = [
  ["?", "This help"],
  [`1 – ${VIEWS.length}`, VIEWS.map(({ label }) => label).join(", ")],
  ["t", "Theme: system, dark, light"],
  ["Tab", "Move through the page in reading order"],
  ["← →", "Move between tabs, and between the points of a chart"],
  ["Enter", "Show the plan of a point or a row"],
  ["p", "Pin the plan of a point, to compare it"],
  ["Esc", "Close; stop a search"],
];

export const KeyboardHelp = () => html`
  <${Dialog} title="Keys" open=${shown.value} onClose=${() => { shown.value = false; }}>
    <dl class="keys">${KEYS.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
    <p class="muted">Every chart can be shown as a table: use the button at its top right.</p>
  <//>`;
