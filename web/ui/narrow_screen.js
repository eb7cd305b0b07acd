/* isNarrowScreen: whether a view's form becomes a sheet on a narrow screen; same width as in style.css. */

import { signal } from "@preact/signals";

const media = matchMedia("(max-width: 900px)");
export const isNarrowScreen = signal(media.matches);
media.addEventListener("change", () => { isNarrowScreen.value = media.matches; });
