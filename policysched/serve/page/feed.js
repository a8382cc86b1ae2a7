// Documents of the server. The browser's cache sends the ETag, so an unchanged document is a 304 without a body.

let clockOffsetMs = 0;
const texts = new Map(); // the last text of each path, so that what did not change is not parsed and drawn again
const TEXTS_MAX = 4;

export const serverNow = () => Date.now() + clockOffsetMs;

export class NotShown extends Error {}

// {value, changed}. Throws NotShown for an answer that is a message for people, TypeError if nothing answers.
export async function fetchDocument(path) {
  const response = await fetch(path, { cache: "no-cache", signal: AbortSignal.timeout(15000) });
  const text = await response.text();
  if (!response.ok) throw new NotShown(text.trim() || `the server answered ${response.status}`);
  const serverMs = Number(response.headers.get("Policysched-Time-Ms"));
  if (serverMs) clockOffsetMs = serverMs - Date.now();
  const before = texts.get(path);
  if (before && before.text === text) return { value: before.value, changed: false };
  const value = JSON.parse(text);
  texts.delete(path);
  texts.set(path, { text, value });
  if (texts.size > TEXTS_MAX) texts.delete(texts.keys().next().value);
  return { value, changed: true };
}

// Answers alike. The server asks for this type, which no other site can send unasked.
export async function postDocument(path, value) {
  const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value), signal: AbortSignal.timeout(40000) });
  const text = await response.text();
  if (!response.ok) throw new NotShown(text.trim() || `the server answered ${response.status}`);
  return JSON.parse(text);
}
