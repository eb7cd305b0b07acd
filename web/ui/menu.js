/* <Menu label="Export" icon="download" items=${[{label, run}]} />
   A button that opens a menu of commands; arrow keys move, Escape closes. */

import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icon.js";

export function Menu({ label, icon, items }) {
  const [open, setOpen] = useState(false);
  const box = useRef(null);
  useEffect(() => {
    if (!open) return undefined;
    const leave = (event) => !box.current.contains(event.target) && setOpen(false);
    addEventListener("pointerdown", leave);
    box.current.querySelector("[role=menuitem]").focus();
    return () => removeEventListener("pointerdown", leave);
  }, [open]);
  const close = () => { setOpen(false); box.current.querySelector("button").focus(); };
  const onKeyDown = (event) => {
    const entries = [...box.current.querySelectorAll("[role=menuitem]")];
    const at = entries.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (open && step) {
      event.preventDefault();
      entries[(at + step + entries.length) % entries.length].focus();
    }
    if (open && event.key === "Escape") { event.stopPropagation(); close(); }
  };
  return html`
    <div class="menu" ref=${box} onKeyDown=${onKeyDown}>
      <button type="button" aria-haspopup="menu" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>
        <${Icon} name=${icon} /><span>${label}</span>
      </button>
      ${open && html`<div class="menu-list" role="menu" aria-label=${label}>
        ${items.map((item) => html`<button key=${item.label} type="button" role="menuitem" tabindex="-1"
          onClick=${() => { close(); item.run(); }}>${item.label}</button>`)}
      </div>`}
    </div>`;
}
