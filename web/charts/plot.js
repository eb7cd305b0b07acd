/* loadPlot() → Observable Plot, with d3, fetched once, after the first paint.
   <PlotFigure draw=${(Plot, width, d3) => element} deps=${[…]} label="…" height=${240} />
     draw    makes the SVG for a width in pixels; runs again when deps or width change; focus inside
             moves to the new mark with tabindex 0 */

import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";

/* Remove Plot's labels from groups, where ARIA does not allow them; the marks have labels. */
const named = (figure) => {
  for (const group of figure.querySelectorAll("g[aria-label]")) group.removeAttribute("aria-label");
  return figure;
};

const script = (path) => new Promise((resolve, reject) => {
  const element = Object.assign(document.createElement("script"), {
    src: new URL(path, import.meta.url), onload: resolve, onerror: () => reject(new Error(path)),
  });
  document.head.append(element);
});

let loaded;
export const loadPlot = () => {
  loaded ??= script("../lib/d3-7.9.2/d3.min.js")
    .then(() => script("../lib/plot-0.6.17/plot.umd.min.js"))
    .then(() => [window.Plot, window.d3]);
  return loaded;
};

export function PlotFigure({ draw, deps, label, height = 260 }) {
  const box = useRef(null);
  const [libraries, setLibraries] = useState(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    loadPlot().then(setLibraries);
    const observer = new ResizeObserver(([{ contentRect }]) => setWidth(Math.floor(contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (!libraries || !width) return;
    const [Plot, d3] = libraries;
    const focused = box.current.contains(document.activeElement);
    box.current.replaceChildren(named(draw(Plot, width, d3)));
    if (focused) box.current.querySelector('[tabindex="0"]')?.focus();
  }, [libraries, width, ...deps]);
  return html`<div class="plot-box" role="group" aria-label=${label} style=${{ minHeight: `${height}px` }} ref=${box}></div>`;
}
