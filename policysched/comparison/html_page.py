"""The comparison as one HTML file with plots: no script, no link, no other file.

The page is built as XML elements and serialised as a whole, so names of pods, nodes and labels are always text.
"""

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from policysched.comparison.comparison import Comparison
from policysched.comparison.measures import HISTOGRAM_BINS
from policysched.comparison.plots import before_and_after, stacked_bar
from policysched.comparison.report_texts import (
    KIND_WORDS,
    Record,
    before_and_after_texts,
    cause_numbers,
    cause_text,
    count_text,
    examples,
    headline,
    kinds_text,
    measure_rows,
    pods_by_kind,
)
from policysched.text.sanitize import escape_unprintable

_PODS_MAX = 5000
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #57606a; --paper: #fff; --rule: #d0d7de;
  --before: #8c959f; --after: #0969da; --bad: #d1242f; --warn: #bc4c00; --good: #1a7f37; --other: #6e7781; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9198a1; --paper: #0d1117; --rule: #3d444d;
  --before: #656c76; --after: #4493f8; --bad: #f85149; --warn: #db6d28; --good: #3fb950; --other: #9198a1; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 920px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .25em .8em .25em 0;
  border-bottom: 1px solid var(--rule); vertical-align: top; overflow-wrap: anywhere; } td.number { text-align: right; }
pre { margin: 0; white-space: pre-wrap; font: 13px/1.4 ui-monospace, monospace; }
.old { color: var(--bad); } .new { color: var(--good); } .dim, figcaption { color: var(--dim); }
.plots { display: flex; flex-wrap: wrap; gap: 1em; } figure { margin: 0; flex: 1 1 400px; } figure.wide { flex-basis: 100%; }
.plot { width: 100%; } .plot text { font-size: 10px; fill: var(--dim); } .plot line { stroke: var(--rule); }
rect.before { fill: var(--before); } rect.after { fill: var(--after); } rect.unchanged { fill: var(--rule); }
rect.newly_pending, rect.newly_evicted { fill: var(--bad); } rect.moved { fill: var(--warn); }
rect.newly_placed, rect.no_longer_evicted { fill: var(--good); } rect.reordered { fill: var(--other); }
"""


def render_page(comparison: Comparison, notes: Sequence[str]) -> str:
    """A complete document."""
    record = comparison.record()
    page = Element("html", {"lang": "en"})
    head = SubElement(page, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"})
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": policy})
    SubElement(head, "title").text = _clean(f"{record['old']['name']}: {headline(record)}")
    SubElement(head, "style").text = _STYLE
    body = SubElement(page, "body")
    _text(body, "h1", headline(record))
    old, new = record["old"], record["new"]
    _text(
        body, "p", f"{old['source']} (sha {old['sha256'][:12]}) → {new['source']} (sha {new['sha256'][:12]})"
    )
    for note in notes:
        _text(body, "p", f"Note: {note}", "dim")
    unchanged = record["pods"] - len(record["changed_pods"])
    body.append(
        stacked_bar(
            "What happens to the pods", record["counts"] | {"unchanged": max(0, unchanged)}, record["pods"]
        )
    )
    _text(body, "p", kinds_text(record["counts"]) or "every pod keeps its node and its order", "dim")
    _add_causes(body, record)
    _add_cluster(body, record)
    _add_pods(body, record)
    return "<!DOCTYPE html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _add_causes(body: Element, record: Record) -> None:
    _text(body, "h2", "Changes of the policy")
    table = _table(body, ("", "location", "statement", "pods"))
    for change in record["changes"]:
        alone = sum(cause["pods"] for cause in record["causes"] if [change["number"]] in cause["changes"])
        row = SubElement(table, "tr")
        _text(row, "td", str(change["number"]))
        _text(row, "td", change["location"])
        cell = SubElement(row, "td")
        if change["old"] is not None:
            _text(cell, "pre", f"- {change['old']}", "old")
        if change["new"] is not None:
            _text(cell, "pre", f"+ {change['new']}", "new")
        _text(row, "td", str(alone), "number")
    _text(body, "h2", "Causes")
    for cause in record["causes"]:
        _text(body, "p", f"{count_text(cause['pods'], 'pod')} by {cause_text(record, cause['changes'])}")
        listed = SubElement(body, "ul")
        _text(listed, "li", kinds_text(cause["counts"]))
        for text in examples(cause, 3):
            _text(listed, "li", text, "dim")


def _add_cluster(body: Element, record: Record) -> None:
    _text(body, "h2", "The cluster before and after")
    table = _table(body, ("", "before", "after", ""))
    for cells in measure_rows(record):
        _add_row(table, cells, numbers=(1, 2, 3))
    plots = SubElement(body, "div", {"class": "plots"})
    tenths = [f"{100 * number // HISTOGRAM_BINS}%" for number in range(HISTOGRAM_BINS)]
    before, after = record["before"], record["after"]
    for group, title in (
        ("utilisation", "{} requested, of the node"),
        ("link_headroom", "{} free, of the node"),
    ):
        for name in before[group].keys() & after[group].keys():
            bins = [measures[group][name]["histogram"] for measures in (before, after)]
            plots.append(
                before_and_after(f"Nodes by {title.format(_clean(name))}", tenths, *bins, unit="nodes")
            )
    for key in before["spread"]:
        pods = [measures["spread"][key]["pods"] for measures in (before, after)]
        domains = sorted({*pods[0], *pods[1]})[:20]
        if 1 < before["spread"][key]["domains"] <= 20:
            counts = [[measures.get(domain, 0) for domain in domains] for measures in pods]
            labels = [_clean(domain) for domain in domains]
            plots.append(before_and_after(f"Pods by {_clean(key)}", labels, *counts, unit="pods"))


def _add_pods(body: Element, record: Record) -> None:
    pods = pods_by_kind(record)
    if not pods:
        return
    _text(body, "h2", "Pods")
    table = _table(body, ("pod", "what happens", "before", "after", "changes", "why it waits"))
    for pod in pods[:_PODS_MAX]:
        label = KIND_WORDS[pod["change"]]
        reason = pod["after"]["message"] or ""
        _add_row(table, (pod["pod"], label, *before_and_after_texts(pod), cause_numbers(pod), reason))
    if len(pods) > _PODS_MAX:
        _text(body, "p", f"and {len(pods) - _PODS_MAX:,} more; --output-format json has all of them", "dim")


def _table(body: Element, headings: Iterable[str]) -> Element:
    table = SubElement(body, "table")
    row = SubElement(table, "tr")
    for heading in headings:
        _text(row, "th", heading)
    return table


def _add_row(table: Element, cells: Iterable[str], numbers: Sequence[int] = ()) -> None:
    row = SubElement(table, "tr")
    for index, cell in enumerate(cells):
        _text(row, "td", cell, "number" if index in numbers else "")


def _text(parent: Element, tag: str, text: str, style: str = "") -> None:
    SubElement(parent, tag, {"class": style} if style else {}).text = _clean(text)


def _clean(text: str) -> str:
    return escape_unprintable(text)
