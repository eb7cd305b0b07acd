/* A document in the URL: #q= and the base64url of its deflated canonical JSON. */

const text = { encode: new TextEncoder(), decode: new TextDecoder() };
const LONGEST = 200_000; // characters that a link may unpack to

/* Canonical JSON: equal values give equal text, whatever the order of their fields. */
export function canonical(value) {
  return JSON.stringify(value, (_, item) =>
    item && typeof item === "object" && !Array.isArray(item)
      ? Object.fromEntries(Object.entries(item).sort(([a], [b]) => (a < b ? -1 : 1)))
      : item,
  );
}

async function through(bytes, stream, limit = Infinity) {
  const chunks = [];
  let size = 0;
  for await (const chunk of readable(new Blob([bytes]).stream().pipeThrough(stream))) {
    size += chunk.length;
    if (size > limit) throw new Error("the link is too long");
    chunks.push(chunk);
  }
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

async function* readable(stream) {
  const reader = stream.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
}

export async function pack(document) {
  const bytes = await through(text.encode.encode(canonical(document)), new CompressionStream("deflate-raw"));
  const base64 = btoa(String.fromCharCode(...bytes));
  return `#q=${base64.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

/* The document in a URL's fragment; null if it has none.  Throws if it cannot be read. */
export async function unpack(hash) {
  const [, packed] = /^#q=([\w-]+)$/.exec(hash) ?? [];
  if (!packed) return null;
  const base64 = packed.replaceAll("-", "+").replaceAll("_", "/");
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const whole = await through(bytes, new DecompressionStream("deflate-raw"), LONGEST);
  return JSON.parse(text.decode.decode(whole));
}
