// Elements without markup: text of the cluster reaches the document as text nodes and attribute values alone.

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A cell is a text, or {text, href, class, title, share}. Only our own functions make `href`.
function fill(td, cell, base) {
  const value = typeof cell === "object" && cell !== null ? cell : { text: String(cell ?? "") };
  const signature = `${value.href ?? ""}|${value.class ?? ""}|${value.share ?? ""}|${value.title ?? ""}|${value.text}`;
  if (td.signature === signature) return;
  td.signature = signature;
  td.className = `${base} ${value.class ?? ""}`.trim();
  if (value.title) td.title = value.title;
  const parts = [];
  if (value.share !== undefined) parts.push(track(value.share));
  parts.push(value.href ? el("a", { href: value.href }, value.text) : value.text);
  td.replaceChildren(...parts);
}

export function track(share) {
  const inner = el("i");
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { class: "track", "aria-hidden": "true" }, inner);
}

// A table whose rows stay the same elements while they show the same thing, so that focus and selection survive.
export function table(label, columns, key) {
  const head = el("tr", {}, ...columns.map((column) => el("th", { scope: "col", class: column.class }, column.head)));
  const body = el("tbody");
  const element = el("table", { "aria-label": label }, el("thead", {}, head), body);
  const known = new Map();
  element.show = (rows) => {
    const seen = new Set();
    let before = body.firstChild;
    for (const row of rows) {
      const id = key(row);
      seen.add(id);
      let tr = known.get(id);
      if (!tr) {
        tr = el("tr", {}, ...columns.map(() => el("td")));
        known.set(id, tr);
      }
      columns.forEach((column, index) => fill(tr.children[index], column.cell(row), column.class ?? ""));
      if (tr === before) before = before.nextSibling;
      else body.insertBefore(tr, before);
    }
    for (const [id, tr] of known) {
      if (!seen.has(id)) {
        tr.remove();
        known.delete(id);
      }
    }
  };
  return element;
}

export function heading(text, small) {
  const note = el("small", {}, small ?? "");
  const element = el("h2", {}, text, note);
  element.note = (value) => setText(note, value);
  return element;
}
