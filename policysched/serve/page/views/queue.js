// The first pods of the queue, gangs that are not complete, quotas.

import { el, heading, setText, table } from "../dom.js";
import { count, duration, nothingPending, podLink } from "../format.js";

export function queueView() {
  let now = 0;
  const gangs = table("Gangs", [
    { head: "gang", class: "tight mono", cell: (g) => g.name },
    { head: "members", class: "tight", cell: members },
    { head: "state", class: "tight", cell: (g) => g.state },
    { head: "waits", class: "tight num", cell: (g) => duration(now - g.queued_ms) },
    { head: "policy", class: "tight", cell: (g) => g.policy },
    { head: "why", class: "", cell: (g) => g.message.replace(`gang ${g.name}: `, "") },
  ], (g) => `${g.policy} ${g.name}`);
  const quotas = table("Quotas", [
    { head: "quota", class: "tight", cell: (q) => `${q.policy}/${q.quota}` },
    { head: "entity", class: "tight mono", cell: (q) => q.entity.join("/") },
    { head: "largest share", class: "tight", cell: (q) => ({ text: `${Math.round(q.dominant_share * 100)} %`, share: q.dominant_share, class: q.dominant_share > 1 ? "warn" : "" }) },
    { head: "pods", class: "tight num", cell: (q) => count(q.pods) },
    { head: "used of its amount", class: "", cell: (q) => Object.entries(q.resources).map(([name, r]) => `${name} ${r.used}/${r.amount}${r.borrowed !== "0" && r.borrowed !== 0 ? ` (${r.borrowed} borrowed)` : ""}`).join(", ") },
  ], (q) => `${q.policy} ${q.quota} ${q.entity.join("/")}`);
  const pods = table("Queue", [
    { head: "#", class: "tight num", cell: (p) => String(p.position) },
    { head: "pod", class: "tight mono", cell: (p) => ({ text: p.pod, href: podLink(p.pod) }) },
    { head: "state", class: "tight", cell: (p) => p.state },
    { head: "attempts", class: "tight num", cell: (p) => count(p.attempts) },
    { head: "waits", class: "tight num", cell: (p) => duration(now - p.queued_ms) },
    { head: "policy", class: "tight", cell: (p) => p.policy },
    { head: "why", class: "clip", cell: (p) => ({ text: p.message, title: p.message }) },
  ], (p) => p.pod);
  const gangHead = heading("Gangs that wait");
  const quotaHead = heading("Quotas");
  const podHead = heading("Order");
  const none = el("p", { class: "empty" });
  const title = el("h1", {}, "Queue", el("small"));
  return {
    element: el("section", {}, title, gangHead, gangs, quotaHead, quotas, podHead, pods, none),
    path: () => "page/queue",
    update(overview, page, at) {
      now = at;
      setText(title.lastChild, Object.entries(page.counts).map(([name, n]) => `${count(n)} ${name}`).join(" · "));
      gangHead.hidden = gangs.hidden = page.gangs.length === 0;
      gangHead.note(page.omitted_gangs ? `and ${count(page.omitted_gangs)} more` : "");
      quotaHead.hidden = quotas.hidden = page.quotas.length === 0;
      gangs.show(page.gangs);
      quotas.show(page.quotas);
      pods.show(page.pods.map((pod, index) => ({ ...pod, position: index + 1 })));
      podHead.hidden = pods.hidden = page.pods.length === 0;
      none.hidden = !pods.hidden;
      setText(none, nothingPending(overview));
      podHead.note(page.omitted ? `the first ${count(page.pods.length)} of ${count(page.pods.length + page.omitted)}` : "in which each policy tries its pods");
    },
  };
}

// A gang is placed as a whole, so more members can fit than are placed. Its message says how many fit, and where.
function members(gang) {
  const [, fit = gang.placed, of = gang.minimum] = /(\d+) of (\d+) members fit now/.exec(gang.message) ?? [];
  const what = Number(fit) === gang.placed ? "placed" : "fit";
  return { text: `${fit}/${of} ${what}`, share: fit / Math.max(1, of), title: `at its last attempt; ${gang.placed} placed, ${gang.pending} pending, ${gang.minimum} needed` };
}
