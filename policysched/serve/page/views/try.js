// The playground: a changed text of a policy, its diagnostics, and the pods that would move. Nothing is saved.

import { el, heading, setText, table } from "../dom.js";
import { policyEditor } from "../editor.js";
import { NotShown, postDocument } from "../feed.js";
import { podLink } from "../format.js";

const CHECK_AFTER_MS = 700;
const drafts = new Map();
const MARKS = { error: "✕", warning: "△", info: "·", note: "·" };

export function tryView(argument) {
  let name = argument;
  let running = null;
  let typed = 0;
  let timer = null;
  let closed = false;
  const title = el("h1", {}, "Try a change", el("small"));
  const tabs = el("div", { class: "tabs", role: "group", "aria-label": "Policies" });
  const editor = policyEditor("Text of the policy", { changed: edited, submitted: () => ask(true) });
  const simulate = el("button", { type: "button", class: "primary" }, "Simulate");
  const again = el("input", { type: "checkbox", id: "placed-again" });
  const revert = el("button", { type: "button" }, "Back to the running text");
  const status = el("span", { class: "soft", role: "status" });
  const list = el("div", { class: "diagnostics", role: "list", "aria-label": "Diagnostics" });
  const result = heading("Pods that would change");
  const summary = el("p", { class: "soft" }, "Simulate to see them.");
  const rows = table("Pods that would change", [
    { head: "pod", class: "mono", cell: (row) => ({ text: row.pod, href: podLink(row.pod) }) },
    { head: "", cell: (row) => row.change },
    { head: "before", class: "mono", cell: (row) => row.before },
    { head: "after", class: "mono", cell: (row) => row.after },
    { head: "by", class: "mono", cell: (row) => row.cause },
    { head: "why it waits", cell: (row) => row.message },
  ], (row) => row.pod);
  rows.hidden = true;
  const controls = el("div", { class: "controls" }, simulate, el("label", {}, again, " also place the policy's last 500 placed pods again"), revert, status);
  const element = el("section", {}, title, tabs, editor.element, controls, list, result, summary, rows);

  function choose(page) {
    const policy = page.policies.find((each) => each.name === name) ?? page.policies[0];
    if (!policy) {
      setText(summary, "No policy runs.");
      return;
    }
    tabs.replaceChildren(...page.policies.map((each) => {
      const button = el("button", { type: "button", "aria-pressed": String(each.name === policy.name) }, each.name);
      button.addEventListener("click", () => {
        name = each.name;
        history.replaceState(null, "", `#try/${encodeURIComponent(name)}`);
        choose(page);
      });
      return button;
    }));
    name = policy.name;
    running = policy.text;
    setText(title.lastChild, `${name}: nothing is saved`);
    editor.load(drafts.get(name) ?? running);
    edited();
  }

  function edited() {
    if (running === null) return;
    drafts.set(name, editor.text());
    typed += 1;
    clearTimeout(timer);
    timer = setTimeout(() => ask(false), CHECK_AFTER_MS);
  }

  async function ask(simulates) {
    if (running === null) return;
    const asked = typed;
    const body = { policy: name, text: editor.text(), simulate: simulates, placed: again.checked };
    if (simulates) simulate.disabled = true;
    setText(status, simulate.disabled ? "simulating…" : "checking…"); // a check may run beside a simulation
    try {
      const answer = await postDocument("page/try", body);
      if (closed) return;
      if (asked === typed) show(answer);
      if (simulates) {
        outcome(answer);
        simulate.disabled = false;
      }
      setText(status, simulate.disabled ? "simulating…" : "");
    } catch (error) {
      if (closed) return;
      if (simulates) simulate.disabled = false;
      setText(status, error instanceof NotShown ? error.message : "no answer");
    }
  }

  function show({ diagnostics }) {
    editor.mark(diagnostics);
    list.replaceChildren(...diagnostics.map((each) => {
      const line = each.line ? `line ${each.line}` : "";
      const button = el("button", { type: "button", class: `diagnostic ${each.severity}`, role: "listitem" }, el("b", {}, `${MARKS[each.severity] ?? "·"} ${each.severity} ${each.code} ${line}`), ` ${each.message}`, each.help ? el("span", { class: "soft" }, ` ${each.help}`) : null);
      button.addEventListener("click", () => {
        if (each.line) editor.select(each.start, each.end);
      });
      return button;
    }));
    if (!diagnostics.length) list.replaceChildren(el("p", { class: "ok" }, "✓ the text is valid"));
  }

  function outcome({ comparison, failure }) {
    rows.hidden = !comparison?.pods.length;
    if (!comparison) {
      setText(summary, failure ?? "The text has errors; the running policy is unchanged.");
      return;
    }
    const parts = [comparison.headline, comparison.kinds];
    if (comparison.placed_again) parts.push(`placed again: ${comparison.placed_again}`);
    if (comparison.omitted) parts.push(`${comparison.omitted} more are not listed`);
    setText(summary, parts.filter(Boolean).join(" · "));
    rows.show(comparison.pods);
  }

  simulate.addEventListener("click", () => ask(true));
  revert.addEventListener("click", () => editor.replace(running ?? ""));

  return {
    element,
    path: () => (running === null ? "page/policies" : null),
    update: (_overview, page) => page && running === null && choose(page),
    close: () => {
      closed = true;
      clearTimeout(timer);
      editor.close();
    },
  };
}
