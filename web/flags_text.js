/* The options of a launch bundle as text to paste behind a command. */

import { shellWord } from "./format.js";

export const words = ({ value }) => (value === null ? [] : [value].flat());

/* The options as they stand on a command line; where a framework has none, its settings. */
export function flagsText({ flags }) {
  const options = flags.filter(({ name }) => name.startsWith("-"));
  if (options.length) return options.map((flag) => [flag.name, ...words(flag).map(shellWord)].join(" ")).join(" \\\n") + "\n";
  return flags.map((flag) => `${flag.name} = ${words(flag).join(" ")}`).join("\n") + "\n";
}
