// Who leads, what runs, how much waits. The charts begin when the page is opened.

import uPlot from "../vendor/uplot.min.js";
import { el, heading, setText, table } from "../dom.js";
import { count, duration, hash, rate, time } from "../format.js";

const KEPT_S = 900;
const series = { at: [], pending: [], unschedulable: [], decisions: [], failures: [], binds: [] };
let last = null;

// Every overview, whichever view is open.
export function record(overview, now) {
  const at = now / 1000;
  const total = { ok: overview.attempts.scheduled ?? 0, failed: (overview.attempts.unschedulable ?? 0) + (overview.attempts.error ?? 0), bound: overview.binds.confirmed };
  if (last && at - last.at < 0.5) return;
  const elapsed = last ? at - last.at : 0;
  const perS = (name) => (last && elapsed < 30 ? Math.max(0, total[name] - last.total[name]) / elapsed : 0);
  const { active, backoff, unschedulable, gated } = overview.queue;
  const values = [at, active + backoff + unschedulable + gated, unschedulable, perS("ok"), perS("failed"), perS("bound")];
  Object.values(series).forEach((column, index) => column.push(values[index]));
  while (series.at[0] < at - KEPT_S) for (const column of Object.values(series)) column.shift();
  last = { at, total };
}

const latest = (name) => series[name].at(-1) ?? 0;

export function healthView() {
  const figures = new Map();
  const list = el("dl", { class: "figures" });
  for (const name of ["leader", "pending", "oldest pending", "decisions/s", "binds/s", "in flight", "metrics", "cluster"]) {
    const value = el("dd");
    const note = el("dd", { class: "note" });
    list.append(el("div", { class: "figure" }, el("dt", {}, name), value, note));
    figures.set(name, (text, below = "", status = "") => {
      setText(value, text);
      setText(note, below);
      if (below) note.title = below;
      note.className = `note ${status}`;
      value.className = status;
    });
  }
  const waiting = chart("Pending pods", [["pending", "--accent"], ["unschedulable", "--bad"]], ["pending", "unschedulable"]);
  const speed = chart("Decisions and binds a second", [["placed", "--accent"], ["not placed", "--bad"], ["bound", "--ok"]], ["decisions", "failures", "binds"]);
  const policies = table("Policies", [
    { head: "policy", class: "tight mono", cell: (p) => ({ text: p.name, href: `#policy/${encodeURIComponent(p.name)}` }) },
    { head: "state", class: "tight", cell: (p) => (p.phase === "active" ? { text: "● active", class: "ok" } : { text: `▲ ${p.phase.replaceAll("_", " ")}`, class: "bad" }) },
    { head: "text", class: "tight mono", cell: (p) => ({ text: hash(p.sha256), title: p.sha256 ?? "" }) },
    { head: "active for", class: "tight num", cell: (p) => ({ text: duration(now - p.since_ms), title: `since ${time(p.since_ms)} UTC` }) },
    { head: "", class: "", cell: (p) => ({ text: p.errors.join("; "), class: "bad" }) },
  ], (p) => p.name);
  const metrics = table("Metrics", [
    { head: "metric", class: "tight mono", cell: (m) => ({ text: `${m.policy}/${m.metric}`, href: `#nodes/${encodeURIComponent(`${m.policy}/${m.metric}`)}` }) },
    { head: "source", class: "tight", cell: (m) => m.source ?? "none" },
    { head: "age of the last poll", class: "tight", cell: (m) => age(m, now) },
    { head: "nodes", class: "num", cell: (m) => `${count(m.nodes)} of ${count(nodes)}` },
    { head: "", class: "", cell: (m) => ({ text: m.problem, class: "bad" }) },
  ], (m) => `${m.policy}/${m.metric}`);
  let now = 0;
  let nodes = 0;
  const noMetrics = el("p", { class: "empty" }, "No policy reads a metric.");
  const element = el("section", {}, el("h1", { class: "unseen" }, "Health"), list,
    el("div", { class: "charts" }, waiting.element, speed.element),
    el("div", { class: "pair" }, el("div", {}, heading("Policies"), policies), el("div", {}, heading("Metrics"), metrics, noMetrics)));
  element.querySelector(".charts").style.marginTop = "18px";
  return {
    element,
    close() {
      waiting.close();
      speed.close();
    },
    update(overview, _own, at) {
      now = at;
      nodes = overview.nodes;
      const leader = overview.leader;
      figures.get("leader")(leader.leads ? "● leads" : "○ follows", leader.holder || (leader.leads ? "no leader election" : "leader unknown"), leader.leads ? "ok" : "warn");
      const { active, backoff, unschedulable, gated } = overview.queue;
      figures.get("pending")(count(active + backoff + unschedulable + gated), gated ? `of them ${count(gated)} gated` : `${count(unschedulable)} unschedulable`);
      const oldest = overview.oldest_pending_ms;
      figures.get("oldest pending")(oldest === null ? "none" : duration(at - oldest), oldest === null ? "" : `since ${time(oldest).slice(11)} UTC`);
      figures.get("decisions/s")(rate(latest("decisions") + latest("failures")), `${count(overview.attempts.unschedulable ?? 0)} found no node`);
      const { confirmed, refused, lost } = overview.binds;
      const broken = refused + lost;
      figures.get("binds/s")(rate(latest("binds")), broken ? `${count(refused)} refused, ${count(lost)} lost` : `${count(confirmed)} confirmed`, broken ? "warn" : "");
      figures.get("in flight")(count(overview.binds_in_flight), overview.waiting_for_volumes ? `${count(overview.waiting_for_volumes)} wait for volumes` : "binds");
      const stale = overview.metrics.filter((m) => isStale(m, at)).length;
      figures.get("metrics")(stale ? `▲ ${stale} stale` : `${overview.metrics.length} fresh`, `of ${overview.metrics.length} read by rules`, stale ? "bad" : "");
      figures.get("cluster")(count(overview.nodes), `nodes, ${count(overview.pods)} pods`);
      policies.show(overview.policies);
      metrics.show(overview.metrics);
      metrics.hidden = overview.metrics.length === 0;
      noMetrics.hidden = !metrics.hidden;
      waiting.draw();
      speed.draw();
    },
  };
}

const isStale = (m, now) => m.polled_ms === null || now - m.polled_ms > m.stale_after_ms;

function age(m, now) {
  if (m.polled_ms === null) return { text: "never", class: "bad" };
  const share = (now - m.polled_ms) / m.stale_after_ms;
  const text = `${duration(now - m.polled_ms)} of ${duration(m.stale_after_ms)}`;
  return share > 1 ? { text: `▲ ${text}: stale`, share: 1, class: "bad" } : { text, share: Math.round(share * 45) / 45 };
}

const clock = (at) => (at === null || at === undefined ? "" : new Date(at * 1000).toLocaleTimeString("en-GB"));

function chart(title, lines, columns) {
  const plotArea = el("div");
  const element = el("div", { class: "chart" }, el("h2", {}, title), plotArea);
  let plot = null;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const data = () => [series.at, ...columns.map((name) => series[name])];
  function make() {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, 'DejaVu Sans'", size: 30 };
    plot?.destroy();
    plot = new uPlot({
      width: Math.max(300, plotArea.clientWidth),
      height: 180,
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { x: { range: (_u, min, max) => [Math.min(min, max - 120), max] }, y: { range: (_u, _min, max) => [0, Math.max(1, max * 1.1)] } },
      axes: [{ ...axis, space: 90, values: (_u, ticks) => ticks.map(clock) }, { ...axis, size: 46, values: (_u, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? count(tick) : String(tick))) }],
      series: [{ label: "", value: (_u, at, _s, index) => clock(at ?? (index === null ? series.at.at(-1) : null)) },
        ...lines.map(([label, name], index) => ({ label, stroke: colour(name), width: 1.5, dash: [[], [6, 3], [2, 2]][index], points: { show: false }, value: (_u, v) => rate(v ?? latest(columns[index])) }))],
    }, data(), plotArea);
  }
  const resized = new ResizeObserver(() => plot && plot.setSize({ width: Math.max(300, plotArea.clientWidth), height: 180 }));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  resized.observe(element);
  dark.addEventListener("change", make);
  return {
    element,
    draw: () => (plot ? plot.setData(data()) : make()),
    close() {
      resized.disconnect();
      dark.removeEventListener("change", make);
      plot?.destroy();
    },
  };
}
