/* The views in the header and the tabs of a plan.

   Each module's default export is a Preact component without props, which reads state.js.
   To add one, add a file and a line here. */

export const VIEWS = [
  { id: "plan", label: "Plan", load: () => import("./views/plan.js") },
  { id: "compare", label: "Compare", load: () => import("./views/compare.js") },
  { id: "size", label: "Size", load: () => import("./views/size.js") },
  { id: "fit", label: "Fit", load: () => import("./views/fit.js") },
  { id: "rl", label: "RL", load: () => import("./views/rl.js") },
  { id: "accuracy", label: "Accuracy", load: () => import("./views/accuracy.js") },
  { id: "validate", label: "Validate", load: () => import("./views/validate.js") },
  { id: "lint", label: "Lint", load: () => import("./views/lint.js") },
  { id: "saved", label: "Saved", load: () => import("./views/saved.js") },
];

export const TABS = [
  { id: "timeline", label: "Pipeline timeline", load: () => import("./tabs/timeline.js") },
  { id: "ranks", label: "Rank map", load: () => import("./tabs/ranks.js") },
  { id: "flags", label: "Flags", load: () => import("./tabs/flags.js") },
  { id: "layers", label: "Layers", load: () => import("./tabs/layers.js") },
  { id: "sensitivity", label: "Sensitivity", load: () => import("./tabs/sensitivity.js") },
  { id: "candidates", label: "Candidates", load: () => import("./tabs/candidates.js") },
  { id: "rejected", label: "Why not", load: () => import("./tabs/rejected.js") },
];
