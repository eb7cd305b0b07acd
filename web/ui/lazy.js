/* <Lazy load=${() => import("../views/size.js")} />
   The module's default export once it is loaded; before, a placeholder; on failure, the reason.
     load    function that imports the module; must be a stable reference
     props   of the component (optional) */

import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";

export function Lazy({ load, props = {} }) {
  const [part, setPart] = useState({});
  useEffect(() => {
    let here = true;
    load().then(
      (module) => here && setPart({ load, Part: module.default }),
      (error) => { console.error(error); if (here) setPart({ load, error }); },
    );
    return () => { here = false; };
  }, [load]);
  if (part.load !== load) return html`<div class="loading" aria-busy="true"></div>`;
  if (part.error) return html`<p class="notice bad">This part could not be loaded. Reload the page to try again.</p>`;
  return html`<${part.Part} ...${props} />`;
}
