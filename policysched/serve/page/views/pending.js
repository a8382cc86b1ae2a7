// What the pending pods wait for, the most frequent cause first.

import { el, heading, setText, table, track } from "../dom.js";
import { count, duration, nothingPending, podLink } from "../format.js";

export function pendingView() {
  const title = el("h1", {}, "Pending pods by cause", el("small"));
  const causes = el("div");
  const freed = table("Rules", [
    { head: "rule", class: "tight mono", cell: (row) => row.rule },
    { head: "pods that would have a node without it", class: "", cell: (row) => ({ text: count(row.pods), share: row.pods / most }) },
  ], (row) => row.rule);
  const freedHead = heading("Without one rule alone", "each pod by itself, with the capacity that is free now");
  let most = 1;
  let shown = null;
  const element = el("section", {}, title, causes, freedHead, freed);
  return {
    element,
    path: () => "page/pending",
    update(overview, page, now) {
      const more = page.omitted_causes ? `; ${count(page.omitted_causes)} more causes` : "";
      setText(title.lastChild, `${count(page.pods)} pods, ${count(page.binding)} being bound${more}`);
      if (shown !== page) {
        causes.replaceChildren(...page.causes.map((cause) => card(cause, page.pods)));
        if (!page.causes.length) causes.append(el("p", { class: "empty" }, nothingPending(overview)));
        shown = page;
      }
      page.causes.forEach((cause, index) => setText(causes.children[index].age, `oldest ${duration(now - cause.oldest_ms)}`));
      most = Math.max(1, ...page.would_free.map((row) => row.pods));
      freed.show(page.would_free);
      freed.hidden = freedHead.hidden = page.would_free.length === 0;
    },
  };
}

function card(cause, total) {
  const age = el("span");
  const requests = cause.requests.map(({ resource, amount }) => `${amount} ${resource}`).join(", ");
  const names = cause.examples.flatMap(({ pod }, index) => [index ? ", " : "", el("a", { href: podLink(pod), class: "mono" }, pod)]);
  const more = cause.pods - cause.examples.length;
  const message = cause.examples[0]?.message;
  const bar = track(cause.pods / Math.max(1, total));
  bar.className = "gauge";
  const element = el("article", { class: "cause" },
    el("div", { class: "pods" }, count(cause.pods), el("small", {}, cause.pods === 1 ? "pod" : "pods")),
    el("div", {},
      el("div", { class: "what" }, cause.cause),
      el("div", { class: "facts" }, age, el("span", {}, requests ? `requests ${requests}` : "requests nothing"), el("span", {}, cause.sole_rules.length ? `only ${cause.sole_rules.join(" or ")} keeps them from a node` : "")),
      el("div", {}, ...names, el("span", { class: "soft" }, more > 0 ? ` and ${count(more)} more` : "")),
      message && message !== cause.cause ? el("div", { class: "soft" }, message) : null),
    bar);
  element.age = age;
  return element;
}
