/* What the codes in an answer's `counts.rejected` mean, as the service's description says. */

import { words } from "../format.js";
import { useSchemas } from "../form/schema.js";

export function useReasons() {
  const meanings = useSchemas()?.Reason.properties.code["x-meanings"] ?? {};
  const said = (code) => meanings[code] ?? words(code);
  return (code) => said(code)[0].toUpperCase() + said(code).slice(1);
}
