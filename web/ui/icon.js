/* <Icon name="copy" />: a 16 × 16 line icon in the text's colour, hidden from screen readers. */

import { html } from "htm/preact";

const PATHS = {
  alert: "M8 2 15 14H1zM8 6.5v3.5M8 12v.2",
  check: "m3 8.5 3.2 3.2L13 4.8",
  chevron: "m4 6 4 4 4-4",
  close: "m4 4 8 8M12 4l-8 8",
  copy: "M5.5 5.5h8v8h-8zM3 10.5H2.5v-8h8V3",
  download: "M8 2v8.5M4.5 7.2 8 10.7l3.5-3.5M2.5 13.5h11",
  info: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 7.3v3.9M8 4.9v.2",
  keyboard: "M1.5 4h13v8h-13zM4 6.6h.1M6.7 6.6h.1M9.3 6.6h.1M12 6.6h.1M4.5 9.5h7",
  link: "M6.5 9.5 9.5 6.5M7.4 4.7l1.3-1.3a2.7 2.7 0 0 1 3.9 3.9l-1.3 1.3M8.6 11.3l-1.3 1.3a2.7 2.7 0 0 1-3.9-3.9l1.3-1.3",
  lock: "M4 7.5h8v6H4zM5.5 7.5V5.2a2.5 2.5 0 0 1 5 0v2.3",
  moon: "M13.5 9.6A6 6 0 0 1 6.4 2.5a6 6 0 1 0 7.1 7.1z",
  pin: "M9.5 1.8 14.2 6.5 11 8.2 10.3 11.6 4.4 5.7 7.8 5zM7.2 8.8 2 14",
  plus: "M8 3v10M3 8h10",
  stop: "M4 4h8v8H4z",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.1 1.1M11.9 11.9 13 13M3 13l1.1-1.1M11.9 4.1 13 3",
  system: "M1.5 3h13v8.5h-13zM5.5 14h5",
  table: "M2 3h12v10H2zM2 6.3h12M2 9.7h12M7 6.3V13",
  undo: "M5.5 3 2.5 6l3 3M3 6h6.2a4 4 0 0 1 0 8H6",
  upload: "M8 10.7V2.2M4.5 5.5 8 2l3.5 3.5M2.5 13.5h11",
};

export const Icon = ({ name }) => html`
  <svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} /></svg>
`;
