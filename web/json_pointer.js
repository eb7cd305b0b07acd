/* JSON pointers (RFC 6901) into plain documents, which are copied instead of modified. */

const parts = (pointer) =>
  pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));

export function get(document, pointer) {
  return parts(pointer).reduce((value, name) => value?.[name], document);
}

/* A copy of the document with a new value; undefined removes the field and emptied parents. */
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
