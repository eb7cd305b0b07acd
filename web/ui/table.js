/* <DataTable name="candidates" caption="…" columns=${[…]} rows=${[…]} />
   A table that can be sorted by any column, filtered, and downloaded as CSV or JSON.
     columns   [{key, label, title?, value?: (row) => any, show?: (value, row) => text or html,
                 number?: bool, sort?: (row) => comparable, saved?: bool, wraps?: bool}]; saved: only in downloads
     rows      plain objects; rowKey (row) => key; `row.class`: CSS class of the row (optional)
     caption   for screen readers; visible if `visibleCaption`
     name      of the files to download; without it there is no download
     filter    whether there is a filter box (default: if there are more than 12 rows)
     onRow     (row) => void: makes rows selectable by click or Enter; isCurrent (row) => bool
     limit     rows shown at first (default 100), with a button for the rest */

import { html } from "htm/preact";
import { useMemo, useState } from "preact/hooks";
import { download } from "../api.js";
import { value as plain } from "../format.js";
import { Icon } from "./icon.js";
import { Menu } from "./menu.js";

const valueOf = (column, row) => (column.value ? column.value(row) : row[column.key]);

/* A CSV cell; text that a spreadsheet would run as a formula is escaped. */
function csvCell(item) {
  const text = item === null || item === undefined ? "" : typeof item === "object" ? JSON.stringify(item) : String(item);
  const safe = typeof item !== "number" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function toCsv(columns, rows) {
  const lines = [columns.map((column) => column.key), ...rows.map((row) => columns.map((c) => valueOf(c, row)))];
  return lines.map((line) => line.map(csvCell).join(",")).join("\n") + "\n";
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

export function DataTable({
  name, caption, columns, rows, rowKey = (_, i) => i, filter = rows.length > 12, onRow, isCurrent,
  limit = 100, visibleCaption = false, actions,
}) {
  const [sort, setSort] = useState(null); // {key, down}
  const [text, setText] = useState("");
  const [all, setAll] = useState(false);
  const ordered = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    const found = wanted
      ? rows.filter((row) => columns.some((c) => plain(valueOf(c, row)).toLowerCase().includes(wanted)))
      : [...rows];
    const column = columns.find(({ key }) => key === sort?.key);
    const key = (row) => (column.sort ? column.sort(row) : valueOf(column, row));
    if (column) found.sort((a, b) => compare(key(a), key(b)) * (sort.down ? -1 : 1));
    return found;
  }, [rows, columns, sort, text]);
  const drawn = columns.filter((column) => !column.saved);
  const shown = all ? ordered : ordered.slice(0, limit);
  const turn = (column) => setSort(
    sort?.key === column.key ? (sort.down === Boolean(column.number) ? { ...sort, down: !sort.down } : null)
      : { key: column.key, down: Boolean(column.number) },
  );
  const heading = (column) => html`
    <th key=${column.key} scope="col" title=${column.title} class=${column.number ? "number" : ""}
      aria-sort=${sort?.key === column.key ? (sort.down ? "descending" : "ascending") : "none"}>
      <button type="button" onClick=${() => turn(column)}>${column.label}</button>
    </th>`;
  const cell = (column, row) => {
    const item = valueOf(column, row);
    return html`<td key=${column.key} class=${column.number ? "number" : column.wraps ? "wraps" : ""}>${column.show ? column.show(item, row) : plain(item)}</td>`;
  };
  const keyed = (row) => (event) => (event.key === "Enter" || event.key === " ") && event.target === event.currentTarget
    && (event.preventDefault(), onRow(row));
  return html`
    <div class="data-table">
      ${(filter || name || actions) && html`<div class="table-tools">
        ${filter && html`<input type="search" aria-label=${`Filter ${caption}`} placeholder="Filter" value=${text}
          onInput=${(event) => setText(event.target.value)} />`}
        <span class="muted" role="status">${text ? `${ordered.length} of ${rows.length} rows` : `${rows.length} rows`}</span>
        <span class="spring"></span>
        ${actions}
        ${name && html`<${Menu} label="Save" icon="download" items=${[
          { label: "CSV", run: () => download(`${name}.csv`, toCsv(columns, ordered), "text/csv") },
          { label: "JSON", run: () => download(`${name}.json`, JSON.stringify(ordered, null, 1)) },
        ]} />`}
      </div>`}
      <div class="table-scroll" tabindex="0" role="region" aria-label=${`${caption}: table`}>
        <table>
          <caption class=${visibleCaption ? "" : "for-readers"}>${caption}</caption>
          <thead><tr>${drawn.map(heading)}</tr></thead>
          <tbody>
            ${shown.map((row, i) => html`
              <tr key=${rowKey(row, i)} class=${row.class ?? ""} aria-current=${isCurrent?.(row) ? "true" : undefined}
                tabindex=${onRow ? 0 : undefined} onClick=${onRow && (() => onRow(row))} onKeyDown=${onRow && keyed(row)}>
                ${drawn.map((column) => cell(column, row))}
              </tr>`)}
          </tbody>
        </table>
      </div>
      ${shown.length < ordered.length && html`
        <button type="button" class="quiet" onClick=${() => setAll(true)}><${Icon} name="plus" /> ${ordered.length - shown.length} more rows</button>`}
    </div>`;
}
