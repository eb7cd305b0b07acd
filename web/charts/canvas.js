// Common parts of canvas charts: device pixels, the page's colours, redrawing after changes.

const THEME = { attributes: true, attributeFilter: ["data-theme", "class", "style"] };

/** Keep a canvas up to date: draw(context, width, height, colour) runs at most once per frame,
 * after `redraw()` and whenever the size or the theme changes.  colour(name) is the value of a CSS
 * custom property.  Returns { redraw, stop }. */
export function paint(canvas, draw) {
  const context = canvas.getContext("2d");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let frame = 0;
  let colours = new Map();
  const now = () => {
    frame = 0;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
    const colour = (name) => {
      if (!colours.has(name)) colours.set(name, resolved(`var(--${name})`));
      return colours.get(name);
    };
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
    draw(context, width, height, colour);
  };
  const redraw = () => {
    frame ||= requestAnimationFrame(now);
  };
  const recolour = () => {
    colours = new Map();
    redraw();
  };
  const size = new ResizeObserver(redraw);
  size.observe(canvas);
  const theme = new MutationObserver(recolour);
  theme.observe(document.documentElement, THEME);
  dark.addEventListener("change", recolour);
  const stop = () => {
    cancelAnimationFrame(frame);
    size.disconnect();
    theme.disconnect();
    dark.removeEventListener("change", recolour);
  };
  redraw();
  return { redraw, stop };
}

/** A CSS colour, resolved for a canvas in the current theme. */
function resolved(colour) {
  const probe = document.createElement("i");
  probe.style.color = colour;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// A pattern for each kind besides its colour, as in all other pictures of timelines.
const SIGNS = {
  B: { path: "M-1 7L7-1M-1 1L1-1M5 7L7 5", width: 1, alpha: 0.3 },
  I: { path: "M1.5 1.5h.01M4.5 4.5h.01", width: 1.7, alpha: 0.42 },
  W: { path: "M0 1.5h6M0 4.5h6", width: 1, alpha: 0.3 },
  C: { path: "M-1-1L7 7M-1 5L1 7M5-1L7 1", width: 1.3, alpha: 1 },
};

/** Fill styles by kind of action: a colour, with a pattern on it except for forward. */
export function fills(context, colour) {
  const ratio = context.getTransform().a;
  const styles = { F: colour("tl-F") };
  for (const [kind, sign] of Object.entries(SIGNS)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(6 * ratio);
    const scale = tile.width / 6;
    const on = tile.getContext("2d");
    on.scale(scale, scale);
    if (kind !== "C") {
      on.fillStyle = colour(`tl-${kind}`);
      on.fillRect(0, 0, 6, 6);
    }
    on.globalAlpha = sign.alpha;
    on.strokeStyle = colour(kind === "C" ? "bad" : "ink");
    on.lineWidth = sign.width;
    on.lineCap = "round";
    on.stroke(new Path2D(sign.path));
    styles[kind] = context.createPattern(tile, "repeat");
    styles[kind].setTransform(new DOMMatrix().scale(1 / scale));
  }
  return styles;
}

/** About `most` round values within [low, high], in steps of 1, 2 or 5 times 10^n. */
export function ticks(low, high, most) {
  const span = high - low;
  let step = 10 ** Math.floor(Math.log10(span / most));
  step *= [1, 2, 5, 10].find((factor) => span / (step * factor) <= most);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
