/* <Tabs label="Plan" items=${TABS} current=${tab.value} onSelect=${(id) => (tab.value = id)} />
   A tab bar and the panel of the current tab; arrow keys, Home and End move.
     label     name of the tab bar for screen readers
     items     [{id, label, load}]: load imports the panel's module, or render() draws it
     current   id of the current tab
     onSelect  (id) => void
   useInView(bar, at)   scrolls the ref `bar`'s element sideways until its child `at` is visible */

import { html } from "htm/preact";
import { useEffect, useRef } from "preact/hooks";
import { Lazy } from "./lazy.js";

const STEPS = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };

export function useInView(bar, at) {
  useEffect(() => {
    const [shown, item] = [bar.current.getBoundingClientRect(), bar.current.children[at].getBoundingClientRect()];
    bar.current.scrollLeft += Math.min(0, item.left - shown.left) + Math.max(0, item.right - shown.right);
  }, [at]);
}

export function Tabs({ label, items, current, onSelect }) {
  const bar = useRef(null);
  const at = Math.max(0, items.findIndex(({ id }) => id === current));
  useInView(bar, at);
  const onKeyDown = (event) => {
    const step = STEPS[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const last = items.length - 1;
    const to = Number.isFinite(step) ? (at + step + items.length) % items.length : step > 0 ? last : 0;
    onSelect(items[to].id);
    bar.current.children[to].focus();
  };
  const { id, load, render } = items[at];
  return html`
    <div class="tabs">
      <div class="tab-bar" role="tablist" aria-label=${label} ref=${bar} onKeyDown=${onKeyDown}>
        ${items.map((item, i) => html`
          <button key=${item.id} type="button" role="tab" id=${`tab-${item.id}`}
            aria-selected=${String(i === at)} aria-controls=${`panel-${item.id}`}
            tabindex=${i === at ? 0 : -1} onClick=${() => onSelect(item.id)}>${item.label}</button>`)}
      </div>
      <div class="tab-panel" role="tabpanel" id=${`panel-${id}`} aria-labelledby=${`tab-${id}`} tabindex="0">
        ${load ? html`<${Lazy} load=${load} />` : render()}
      </div>
    </div>`;
}
