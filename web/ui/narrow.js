/* narrow: whether a view's form becomes a sheet on a narrow screen; same width as in style.css. */

import { signal } from "@preact/signals";

const media = matchMedia("(max-width: 900px)");
export const narrow = signal(media.matches);
media.addEventListener("change", () => { narrow.value = media.matches; });
