/* The page: header, current view, footer, and the global keyboard shortcuts. */

import { effect } from "@preact/signals";
import { html, render } from "htm/preact";
import { keyNeeded } from "./api.js";
import { Header } from "./header.js";
import { KeyboardHelp, openKeyboardHelp } from "./ui/keyboard_help.js";
import { VIEWS } from "./registry.js";
import { badLink, busy, cancel, open, start, theme, undo, view } from "./state.js";
import { Dialog } from "./ui/dialog.js";
import { Lazy } from "./ui/lazy.js";
import { Toasts, toast } from "./ui/toast.js";

const current = () => VIEWS.find(({ id }) => id === view.value) ?? VIEWS[0];

function App() {
  const { load, label } = current();
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to results</a>
    <${Header} />
    <main id="main" tabindex="-1" aria-label=${label}><${Lazy} load=${load} /></main>
    <${KeyboardHelp} />
    <${KeyDialog} />
    <${Toasts} />`;
}

/* The URL's fragment holds the state of the page, so a skip link must not replace it. */
function skip(event) {
  event.preventDefault();
  (document.getElementById("results") ?? document.getElementById("main")).focus();
}

function KeyDialog() {
  const submit = (event) => {
    event.preventDefault();
    const key = new FormData(event.target).get("key").trim();
    sessionStorage.setItem("api-key", key);
    location.reload();
  };
  return html`
    <${Dialog} title="API key" open=${keyNeeded.value} onClose=${() => { keyNeeded.value = false; }}>
      <form onSubmit=${submit} class="stack">
        <p>This service answers only calls with a key. It is kept until this tab closes.</p>
        <div class="field"><label for="api-key">Key</label><div class="control"><input id="api-key" name="key" type="password" autocomplete="off" required autofocus /></div></div>
        <div class="actions"><button class="primary">Use this key</button></div>
      </form>
    <//>`;
}

effect(() => {
  const taken = undo.value;
  if (taken) toast(taken.text, { action: "Undo", run: taken.restore });
});
effect(() => {
  if (badLink.value) toast("The link could not be read; the default request is shown.", { kind: "bad" });
});
effect(() => { document.title = `${current().label} · Parallel Planner`; });

const KEYS = {
  "?": openKeyboardHelp,
  t: () => { theme.value = { "": "dark", dark: "light", light: "" }[theme.value]; },
};

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && busy.value && !event.target.closest("dialog, .menu")) cancel();
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  const run = KEYS[event.key] ?? (/^[1-9]$/.test(event.key) && VIEWS[event.key - 1] && (() => open(VIEWS[event.key - 1].id)));
  if (run) { event.preventDefault(); run(); }
});

render(html`<${App} />`, document.getElementById("app"));
start();
