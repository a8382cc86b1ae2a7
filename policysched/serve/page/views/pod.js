// One pod's story: why it waits and what would make it fit, or why it is on its node.

import { el, heading, setText, table } from "../dom.js";
import { count, duration, hash, podLink } from "../format.js";

export function podView(pod) {
  const title = el("h1", {}, pod || "One pod", el("small"));
  const body = el("div");
  if (!pod) {
    body.append(el("p", { class: "empty" }, "Type the name of a pod above (key /), or follow a name from another view."));
    return { element: el("section", {}, title, body), update() {} };
  }
  let shown = null;
  return {
    element: el("section", {}, title, body),
    intervalMs: 10000,
    path: () => `page/pod?pod=${encodeURIComponent(pod)}`,
    fail(message) {
      shown = null;
      body.replaceChildren(el("p", { class: "story" }, message));
    },
    update(_overview, page, now) {
      if (page === shown) return;
      shown = page;
      if (page.matches) body.replaceChildren(matches(page.matches, page.hidden_rows));
      else if (!page.explained.length) this.fail("You may not list the pods of this namespace.");
      else {
        const story = page.explained[0];
        setText(title.lastChild, story.placed_on ? `on ${story.placed_on}` : "pending");
        body.replaceChildren(...parts(story, now));
      }
    },
  };
}

function goesTo(node, kind) {
  if (node === null) return "  (this member stays pending)";
  return kind === "node" ? "" : `  (goes to ${node})`;
}

function matches(pods) {
  if (!pods.length) return el("p", { class: "story" }, "No pod has this name.");
  if (pods.length === 1) location.replace(podLink(pods[0].pod));
  return el("ul", {}, ...pods.map(({ pod }) => el("li", {}, el("a", { href: podLink(pod), class: "mono" }, pod))));
}

function parts(story, now) {
  const facts = [`policy ${story.policy.name} ${hash(story.policy.sha256)}`, `${count(story.feasible_count)} of ${count(story.nodes)} nodes fit`];
  const waiting = story.waiting;
  if (waiting) facts.push(`${waiting.queue}, ${waiting.attempts} attempt${waiting.attempts === 1 ? "" : "s"}, waits ${duration(now - Date.parse(waiting.queued))}`);
  if (story.gang) facts.push(`gang ${story.gang.name}: ${story.gang.placed}/${story.gang.minimum} placed, ${story.gang.pending} pending`);
  if (story.gang?.blocked && waiting?.attempts) facts.push("the message is that of the last attempt");
  const found = [el("p", { class: "story" }, story.message), el("p", { class: "soft" }, facts.join("  ·  "))];
  for (const note of story.notes) found.push(el("p", { class: "warn" }, `▲ ${note}`));
  if (story.would_fit?.length) {
    const title = story.gang?.blocked ? "What would make the gang start" : "What would make it fit";
    found.push(heading(title, "any one of these; each was evaluated"),
      el("ul", { class: "fits" }, ...story.would_fit.map(({ text, node, kind }) => el("li", {}, text, el("span", { class: "soft" }, goesTo(node, kind))))));
  }
  if (story.closest) {
    found.push(heading("Closest node", story.closest.node),
      el("ul", { class: "fits" }, ...story.closest.rejections.map(({ rule, reason, gap }) =>
        el("li", {}, el("span", { class: "mono" }, rule), `: ${reason}${gap ? ` (has ${gap.actual}, needs ${gap.limit}: short by ${gap.by})` : ""}`))));
  }
  const filters = table("Filters", [
    { head: "filter", class: "tight mono", cell: (f) => f.rule },
    { head: "nodes that pass it alone", class: "tight", cell: (f) => ({ text: count(f.alone), share: f.alone / Math.max(1, story.nodes) }) },
    { head: "nodes left", class: "tight", cell: (f) => ({ text: count(f.left), share: f.left / Math.max(1, story.nodes) }) },
    { head: "where", class: "soft", cell: (f) => `${f.location}${f.included_by ? ` (${f.included_by})` : ""}` },
  ], (f) => f.rule);
  const refusing = story.filters.filter((f) => f.alone < story.nodes);
  filters.show(refusing);
  found.push(heading("Filters that reject nodes", `${refusing.length} of ${story.filters.length}, in their order`), refusing.length ? filters : el("p", { class: "empty" }, "None rejects a node."));
  if (story.best.length) {
    const rules = Object.entries(story.scores);
    const scores = table("Scores", [
      { head: "score", class: "tight mono", cell: ([rule]) => rule },
      ...story.best.map((node) => ({ head: node === story.placed_on ? `● ${node}` : node, class: "tight num", cell: ([, cells]) => (cells[node] === undefined ? "" : count(cells[node])) })),
      { head: "", class: "", cell: () => "" },
    ], ([rule]) => rule);
    scores.show([...rules, ["total", story.totals]]);
    found.push(heading(story.placed_on ? "Why this node" : "Best nodes", story.placed_on ? "points of the rules now, weighted; the pod itself is left out of the count" : "points of the rules, weighted"), scores);
  }
  return found;
}
