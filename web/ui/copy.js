/* <CopyButton text=${string or () => string} label="Copy flags" />
   Copies the text, shows "Copied" for two seconds, and keeps the focus. */

import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { Icon } from "./icon.js";
import { toast } from "./toast.js";

/* The clipboard API needs https or localhost; elsewhere copy through a selection. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = Object.assign(document.createElement("textarea"), { value: text });
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!done) throw new Error("not copied");
}

export function CopyButton({ text, label = "Copy", kind = "" }) {
  const [copied, setCopied] = useState(false);
  const onClick = async () => {
    try {
      await copy(await (typeof text === "function" ? text() : text));
      setCopied(true);
      setTimeout(() => setCopied(false), 2000);
    } catch {
      toast("The browser did not allow copying.", { kind: "bad" });
    }
  };
  return html`<button type="button" class=${kind} onClick=${onClick}>
    <${Icon} name=${copied ? "check" : "copy"} /><span aria-live="polite">${copied ? "Copied" : label}</span>
  </button>`;
}
