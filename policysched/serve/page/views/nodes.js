// A heat map of one value of every node, on one canvas.

import { el, heading, setText, table } from "../dom.js";
import { amount, count } from "../format.js";

// Cividis, which looks the same to nearly all kinds of colour vision; dark is low.
const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const STALE = 2;
const CORDONED = 1;

function colours() {
  const parse = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  return Array.from({ length: 101 }, (_, percent) => {
    const at = (percent / 100) * (CIVIDIS.length - 1);
    const low = Math.min(CIVIDIS.length - 2, Math.floor(at));
    const [a, b] = [parse(CIVIDIS[low]), parse(CIVIDIS[low + 1])];
    return `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * (at - low))).join(",")})`;
  });
}
const RAMP = colours();

export function nodesView(argument, refresh) {
  let by = argument || "cpu";
  let page = null;
  let layout = null;
  let chosen = -1;
  const select = el("select", { id: "by" });
  const title = el("h1", {}, "Nodes", el("small"));
  const low = el("span");
  const high = el("span");
  const ramp = el("canvas", { class: "ramp", width: 160, height: 10, "aria-hidden": "true" });
  const canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": "Heat map of the nodes; arrow keys choose a node" });
  const detail = el("p", { class: "detail", role: "status" });
  const fullest = table("Fullest nodes", [
    { head: "node", class: "tight mono", cell: (n) => n.name },
    { head: "value", class: "tight", cell: (n) => ({ text: n.text, share: n.share ?? 0 }) },
    { head: "pods", class: "tight num", cell: (n) => count(n.pods) },
    { head: "", class: "", cell: (n) => n.notes },
  ], (n) => n.name);
  const sort = el("select", { id: "sort" }, el("option", { value: "name" }, "by name"), el("option", { value: "value" }, "by value"));
  RAMP.forEach((colour, index) => {
    const paint = ramp.getContext("2d");
    paint.fillStyle = colour;
    paint.fillRect(index * 1.6, 0, 2, 10);
  });
  const heat = el("div", { class: "heat" }, canvas);
  const element = el("section", {}, title,
    el("div", { class: "controls" }, el("label", { for: "by" }, "Show"), select, el("label", { for: "sort" }, "sorted"), sort,
      el("span", { class: "legend" }, low, ramp, high), el("span", { class: "legend" }, "▨ stale or no sample   ▢ cordoned")),
    heat, detail, heading("Highest", "the first 20"), fullest);

  select.addEventListener("change", () => {
    by = select.value;
    history.replaceState(null, "", `#nodes/${encodeURIComponent(by)}`);
    refresh();
  });
  sort.addEventListener("change", draw);
  canvas.addEventListener("pointermove", (event) => choose(at(event.offsetX, event.offsetY)));
  canvas.addEventListener("pointerleave", () => choose(-1));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: layout?.columns, ArrowUp: -layout?.columns }[event.key];
    if (!step || !page) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(page.names.length - 1, chosen + step)));
  });
  const resized = new ResizeObserver(draw);
  resized.observe(heat);

  function at(x, y) {
    if (!layout) return -1;
    const column = Math.floor(x / layout.size);
    const cell = Math.floor(y / layout.size) * layout.columns + column;
    return column < layout.columns && cell < page.names.length ? cell : -1;
  }

  function shares() {
    if (page.metrics.includes(page.by)) {
      const present = page.values.filter((value) => value !== null);
      const top = page.type === "ratio" ? 1 : Math.max(1e-9, ...chunkMax(present));
      setText(low, amount(0, page.type));
      setText(high, amount(top, page.type));
      return page.values.map((value) => (value === null ? null : value / top));
    }
    setText(low, "0 %");
    setText(high, "100 % requested");
    return page.values.map((value, index) => (page.of[index] ? value / page.of[index] : null));
  }

  function draw() {
    if (!page || !heat.clientWidth) return;
    const names = page.names.length;
    const share = shares();
    const order = share.map((_, index) => index);
    if (sort.value === "value") order.sort((a, b) => (share[b] ?? -1) - (share[a] ?? -1));
    const width = heat.clientWidth;
    const room = Math.max(200, innerHeight - 240);
    const size = Math.max(7, Math.min(46, Math.floor(Math.sqrt((width * room) / Math.max(1, names)))));
    const columns = Math.max(1, Math.floor(width / size));
    const height = Math.ceil(names / columns) * size;
    const ratio = devicePixelRatio;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    layout = { size, columns, order, share };
    const paint = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const [soft, ink, empty] = ["--soft", "--ink", "--hover"].map((name) => style.getPropertyValue(name));
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    const gap = size > 10 ? 2 : 1;
    order.forEach((node, cell) => {
      const x = (cell % columns) * size;
      const y = Math.floor(cell / columns) * size;
      const flags = page.flags[node];
      paint.fillStyle = share[node] === null ? empty : RAMP[Math.round(Math.max(0, Math.min(1, share[node])) * 100)];
      paint.fillRect(x, y, size - gap, size - gap);
      if (share[node] === null || flags & STALE) hatch(paint, x, y, size - gap, share[node] === null ? soft : "#fff");
      if (flags & CORDONED) frame(paint, x + 0.75, y + 0.75, size - gap - 1.5, "#e69f00");
      if (cell === chosen) frame(paint, x, y, size - gap, ink);
    });
  }

  function choose(cell) {
    if (cell === chosen) return;
    chosen = cell;
    showDetail();
    draw();
  }

  function showDetail() {
    if (!page || !layout || chosen < 0) {
      setText(detail, "Point at a node, or press arrow keys in the map.");
      return;
    }
    const node = described(layout.order[chosen]);
    setText(detail, [node.name, node.text, `${count(node.pods)} pods`, node.notes].filter(Boolean).join("  ·  "));
  }

  function described(node) {
    const of = page.of[node];
    const value = amount(page.values[node], page.type);
    const notes = [page.flags[node] & CORDONED ? "cordoned" : "", page.flags[node] & STALE ? "stale sample: rules do not use it" : ""];
    return {
      name: page.names[node],
      text: of === null || of === undefined ? value : `${value} of ${amount(of, page.type)} (${of ? Math.round((page.values[node] / of) * 100) : 0} %)`,
      share: layout.share[node],
      pods: page.pods[node],
      notes: notes.filter(Boolean).join(", "),
    };
  }

  return {
    element,
    path: () => `page/nodes?by=${encodeURIComponent(by)}`,
    close: () => resized.disconnect(),
    fail: (message) => {
      setText(detail, message);
      by = "cpu";
    },
    update(_overview, next) {
      const choices = [...next.resources, ...next.metrics];
      if (choices.join("\n") !== select.choices) {
        select.choices = choices.join("\n");
        select.replaceChildren(
          el("optgroup", { label: "requested" }, ...next.resources.map((name) => el("option", { value: name }, name))),
          el("optgroup", { label: "measured" }, ...next.metrics.map((name) => el("option", { value: name }, name))));
      }
      if (document.activeElement !== select) select.value = next.by;
      const stale = next.flags.filter((flags) => flags & STALE).length;
      setText(title.lastChild, `${count(next.names.length)} nodes${stale ? `, ${count(stale)} with a stale sample` : ""}`);
      const changed = page !== next;
      page = next;
      if (changed) {
        draw();
        const order = layout ? layout.share.map((_, index) => index).filter((index) => layout.share[index] !== null) : [];
        order.sort((a, b) => layout.share[b] - layout.share[a] || a - b);
        fullest.show(order.slice(0, 20).map(described));
      }
      showDetail();
    },
  };
}

function* chunkMax(values) {
  for (let at = 0; at < values.length; at += 1000) yield Math.max(...values.slice(at, at + 1000));
}

function hatch(paint, x, y, size, colour) {
  paint.strokeStyle = colour;
  paint.lineWidth = 1;
  paint.beginPath();
  for (let offset = 4; offset < 2 * size; offset += 5) {
    paint.moveTo(x + Math.max(0, offset - size), y + Math.min(size, offset));
    paint.lineTo(x + Math.min(size, offset), y + Math.max(0, offset - size));
  }
  paint.stroke();
}

function frame(paint, x, y, size, colour) {
  paint.strokeStyle = colour;
  paint.lineWidth = 2;
  paint.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
}
