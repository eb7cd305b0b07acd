/* <Dialog title="Keys" open=${bool} onClose=${() => …}>…</Dialog>
   A modal dialog: Escape and a click outside close it, and the focus returns.
   kind: "" (a box in the middle), "sheet" (from the side, a form on a small screen), "wide". */

import { html } from "htm/preact";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "./icon.js";

export function Dialog({ title, open, onClose, children, kind = "" }) {
  const box = useRef(null);
  useEffect(() => {
    if (open && !box.current.open) box.current.showModal();
    if (!open && box.current.open) box.current.close();
  }, [open]);
  return html`
    <dialog ref=${box} class="dialog ${kind}" aria-label=${title} onClose=${onClose}
      onClick=${(event) => event.target === box.current && onClose()}>
      ${open && html`<div class="dialog-body">
        <header><h2>${title}</h2>
          <button type="button" class="quiet square" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button>
        </header>
        ${children}
      </div>`}
    </dialog>`;
}
