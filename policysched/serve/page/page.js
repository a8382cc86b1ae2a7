// The frame: views by the fragment of the address, one request a second for what is shown, keys.

import { el, setText } from "./dom.js";
import { NotShown, fetchDocument, serverNow } from "./feed.js";
import { count } from "./format.js";
import { healthView, record } from "./views/health.js";
import { pendingView } from "./views/pending.js";
import { queueView } from "./views/queue.js";
import { nodesView } from "./views/nodes.js";
import { podView } from "./views/pod.js";
import { policyView } from "./views/policy.js";
import { tryView } from "./views/try.js";

const VIEWS = [
  { id: "health", title: "Health", make: healthView },
  { id: "pending", title: "Pending", make: pendingView },
  { id: "queue", title: "Queue", make: queueView },
  { id: "nodes", title: "Nodes", make: nodesView },
  { id: "policy", title: "Policy", make: policyView },
  { id: "pod", title: "Pod", make: podView },
  { id: "try", title: "Try", make: tryView },
];
const INTERVAL_MS = 1000;

const main = document.getElementById("main");
const notice = document.getElementById("notice");
const connection = document.getElementById("connection");
const links = new Map();
let view = null;
let timer = null;
let turn = 0;

// For whoever measures: the work of the main thread for each update, in ms.
export const updates = [];
globalThis.policyschedUpdates = updates;

VIEWS.forEach(({ id, title }, index) => {
  const badge = el("span", { class: "count", hidden: true });
  const link = el("a", { href: `#${id}`, title: `${title} (key ${index + 1})` }, title, badge);
  link.badge = badge;
  links.set(id, link);
  document.getElementById("views").append(link);
});

function route() {
  const [id, argument = ""] = location.hash.slice(1).split("/", 2);
  const chosen = VIEWS.find((each) => each.id === id) ?? VIEWS[0];
  for (const [name, link] of links) {
    if (name === chosen.id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view?.close?.();
  let decoded = "";
  try {
    decoded = decodeURIComponent(argument);
  } catch {
    // a fragment that somebody typed
  }
  view = chosen.make(decoded, refresh);
  document.title = `${chosen.title} · policysched`;
  main.replaceChildren(view.element);
  refresh();
}

function refresh() {
  clearTimeout(timer);
  turn += 1;
  update(turn);
}

async function update(mine) {
  const shown = view;
  try {
    const overview = (await fetchDocument("page/overview")).value;
    const path = shown.path?.();
    const own = path ? await fetchDocument(path) : { value: null, changed: true };
    if (mine !== turn) return;
    const began = performance.now();
    record(overview, serverNow());
    frame(overview, own.value);
    shown.update(overview, own.value, serverNow());
    updates.push(performance.now() - began);
    if (updates.length > 600) updates.shift();
    document.body.classList.remove("late");
    setText(connection, `updated ${new Date().toLocaleTimeString("en-GB")}`);
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof NotShown && shown.fail) shown.fail(error.message);
    else if (error instanceof NotShown) show(error.message);
    else {
      setText(connection, "no answer; retrying");
      document.body.classList.add("late");
      if (!(error instanceof TypeError) && error.name !== "TimeoutError") console.error(error);
    }
  }
  if (mine === turn && !document.hidden) timer = setTimeout(refresh, shown.intervalMs ?? INTERVAL_MS);
}

function frame(overview, own) {
  const { active, backoff, unschedulable, gated } = overview.queue;
  const pending = active + backoff + unschedulable + gated;
  const badge = links.get("pending").badge;
  badge.hidden = pending === 0;
  setText(badge, count(pending));
  const hidden = own?.hidden_rows ? `${count(own.hidden_rows)} rows of namespaces whose pods you may not list are not shown.` : "";
  show([overview.note, overview.api_problem, hidden].filter(Boolean).join(" · "));
}

function show(text) {
  notice.hidden = !text;
  setText(notice, text ?? "");
}

const input = document.getElementById("pod-name");
document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  if (input.value.trim()) location.hash = `pod/${encodeURIComponent(input.value.trim())}`;
  input.blur();
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const [target] = event.composedPath(); // `event.target` is outside the editor's shadow root
  if (["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName) || target.isContentEditable) {
    if (event.key === "Escape") target.blur();
    return;
  }
  const chosen = VIEWS[Number(event.key) - 1];
  if (chosen) location.hash = chosen.id;
  else if (event.key === "/") {
    event.preventDefault();
    input.select();
  }
});
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
route();
