/* <ChartFrame title="Memory per stage" caption="…" columns rows name>chart</ChartFrame>
   A chart with its heading, a caption, and its data as a table.
     title     heading
     caption   one sentence: what is drawn and how to read it
     columns   of the data table, as for DataTable; rows; name: of the files to download
     tools     further controls beside the heading (optional)
     children  the drawing: focusable marks, or role="img" with a label */

import { html } from "htm/preact";
import { useId, useState } from "preact/hooks";
import { Icon } from "../ui/icon.js";
import { DataTable } from "../ui/table.js";

export function ChartFrame({ title, caption, columns, rows, name, tools, children }) {
  const [table, setTable] = useState(false);
  const id = useId();
  return html`
    <section class="chart card" aria-labelledby=${id}>
      <header>
        <h3 id=${id}>${title}</h3>
        <span class="spring"></span>
        ${tools}
        <button type="button" class="quiet square" aria-pressed=${String(table)} title=${table ? "Show the chart" : "Show the numbers as a table"}
          aria-label=${`${title} as a table`} onClick=${() => setTable(!table)}><${Icon} name="table" /></button>
      </header>
      ${table
        ? html`<${DataTable} name=${name} caption=${title} columns=${columns} rows=${rows} />`
        : children}
      <p class="caption">${caption}</p>
    </section>`;
}
