/* The options of a launch bundle as text that can be pasted after a command. */

import { shellWord } from "./format.js";

export const words = ({ value }) => (value === null ? [] : [value].flat());

/* The options as on a command line, or the settings of a framework that has no options. */
export function flagsText({ flags }) {
  const options = flags.filter(({ name }) => name.startsWith("-"));
  if (options.length) return options.map((flag) => [flag.name, ...words(flag).map(shellWord)].join(" ")).join(" \\\n") + "\n";
  return flags.map((flag) => `${flag.name} = ${words(flag).join(" ")}`).join("\n") + "\n";
}
