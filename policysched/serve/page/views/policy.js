// The text of a policy with what each rule has done, and the texts before it.

import { el, heading, setText } from "../dom.js";
import { count, hash, time } from "../format.js";
import { tokenAt } from "../policy_syntax.js";

const LINES_MAX = 10000; // a text has at most 256 KiB, which can be as many lines
const COLOURED_MAX = 2000; // characters of a line

export function policyView(argument) {
  let name = argument;
  let shown = null;
  let gutters = new Map();
  let times = new Map();
  const title = el("h1", {}, "Policy", el("small"));
  const tabs = el("div", { class: "tabs", role: "group", "aria-label": "Policies" });
  const code = el("div", { class: "code", role: "table", "aria-label": "Text with counts", tabindex: "0" });
  const past = el("div");
  const edit = el("a", { href: "#try" }, "Try a change of this text");
  const legend = el("p", { class: "soft" }, "In the margin, since this process started: failed attempts whose nearest nodes the rule rejects, and those in which it alone does. Filters without a number have not kept a pod pending. Then the µs that each rule takes for one pod on all nodes if nothing is cached, measured now.");
  const element = el("section", {}, title, tabs, legend, el("p", {}, edit), code, heading("History", "since this process started; formatted, with includes"), past);

  function choose(page) {
    const policies = page.policies;
    const policy = policies.find((each) => each.name === name) ?? policies[0];
    if (!policy) {
      code.replaceChildren(el("p", { class: "empty" }, "No policy runs."));
      return;
    }
    const signature = `${policies.map((each) => each.name)}|${policy.name}|${policy.sha256}|${policy.text.length}`;
    if (signature !== shown) {
      shown = signature;
      tabs.replaceChildren(...policies.map((each) => {
        const button = el("button", { type: "button", "aria-pressed": String(each.name === policy.name) }, each.name);
        button.addEventListener("click", () => {
          name = each.name;
          history.replaceState(null, "", `#policy/${encodeURIComponent(name)}`);
          choose(page);
        });
        return button;
      }));
      setText(title.lastChild, `${policy.name} ${hash(policy.sha256)}`);
      edit.href = `#try/${encodeURIComponent(policy.name)}`;
      gutters = new Map();
      times = new Map();
      const lines = policy.text.split("\n");
      code.replaceChildren(...lines.slice(0, LINES_MAX).map((line, index) => row(line, index + 1)));
      if (lines.length > LINES_MAX) code.append(el("p", { class: "soft" }, `and ${count(lines.length - LINES_MAX)} more lines`));
      past.replaceChildren(...policy.history.flatMap(version));
    }
    count_rules(policy.rules);
  }

  function row(line, number) {
    const gutter = el("span", { class: "gutter", role: "cell" });
    const time = el("span", { class: "gutter", role: "cell" });
    gutters.set(number, gutter);
    times.set(number, time);
    return el("div", { class: "row", role: "row" }, gutter, time, el("span", { class: "line", role: "rowheader" }, String(number)), el("span", { role: "cell" }, ...coloured(line)));
  }

  function count_rules(rules) {
    const byLine = new Map();
    const timed = new Map();
    const add = (lines, rule) => lines.set(rule.line, [...(lines.get(rule.line) ?? []), rule]);
    for (const rule of rules) {
      if (rule.line === null) continue;
      if (rule.kind === "filter") add(byLine, rule);
      if (rule.us !== null) add(timed, rule);
    }
    for (const [line, cell] of times) {
      const here = timed.get(line) ?? [];
      setText(cell, here.length ? `${count(Math.round(here.reduce((total, rule) => total + rule.us, 0)))} µs` : "");
      cell.title = here.map((rule) => `${rule.name}: ${rule.us} µs`).join("\n");
    }
    for (const [line, gutter] of gutters) {
      const here = byLine.get(line) ?? [];
      const fired = here.filter((rule) => rule.blocked);
      const sum = (key) => fired.reduce((total, rule) => total + rule[key], 0);
      const text = !here.length ? "" : !fired.length ? (here.length > 1 ? `${here.length} never` : "never") : `${count(sum("blocked"))} · ${count(sum("blocked_alone"))} alone`;
      if (gutter.textContent === text) continue;
      gutter.replaceChildren(fired.length ? el("b", {}, text) : text);
      gutter.title = here.map((rule) => `${rule.name}: ${rule.blocked} (${rule.blocked_alone} alone)`).join("\n");
    }
  }

  return { element, path: () => "page/policies", update: (_overview, page) => choose(page) };
}

function coloured(line) {
  if (line.length > COLOURED_MAX) return [line];
  const parts = [];
  for (let start = 0; start < line.length;) {
    const { end, kind } = tokenAt(line, start);
    const text = line.slice(start, end);
    parts.push(kind ? el("span", { class: kind }, text) : text);
    start = end;
  }
  return parts.length ? parts : [" "];
}

function version(each) {
  const head = el("p", {}, el("span", { class: "mono" }, hash(each.sha256)), el("span", { class: "soft" }, `  seen ${time(each.seen_ms)} UTC${each.diff.length ? "" : "  ·  the first text"}`));
  if (!each.diff.length) return [head];
  const kinds = { "+": "plus", "-": "minus", "@": "at" };
  return [head, el("div", { class: "diff" }, ...each.diff.map((line) => el("div", { class: kinds[line[0]] ?? "" }, line || " ")))];
}
