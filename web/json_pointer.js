/* JSON pointers (RFC 6901) into plain documents that are never changed, only replaced. */

const parts = (pointer) =>
  pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));

export function get(document, pointer) {
  return parts(pointer).reduce((value, name) => value?.[name], document);
}

/* The document with another value there; undefined takes the field out, and what it leaves empty. */
export function set(document, pointer, value) {
  const change = (old, [name, ...rest]) => {
    const inner = rest.length ? change(old?.[name], rest) : value;
    if (Array.isArray(old)) return old.map((item, i) => (String(i) === name ? inner : item));
    const { [name]: _, ...others } = old && typeof old === "object" ? old : {};
    return inner === undefined || (rest.length && inner && !Object.keys(inner).length)
      ? others
      : { ...old, [name]: inner };
  };
  return change(document, parts(pointer));
}
