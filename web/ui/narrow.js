/* narrow: whether the form of a view is a sheet that opens on demand; style.css has the same width. */

import { signal } from "@preact/signals";

const media = matchMedia("(max-width: 900px)");
export const narrow = signal(media.matches);
media.addEventListener("change", () => { narrow.value = media.matches; });
