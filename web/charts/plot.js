/* loadPlot() → Observable Plot, with d3, fetched after the first paint and once.
   <PlotFigure draw=${(Plot, width, d3) => element} deps=${[…]} label="…" height=${240} />
     draw    makes the SVG for a width in pixels; drawn again when deps, width or theme change */

import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";

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
    box.current.replaceChildren(draw(Plot, width, d3));
  }, [libraries, width, ...deps]);
  return html`<div class="plot-box" role="group" aria-label=${label} style=${{ minHeight: `${height}px` }} ref=${box}></div>`;
}
