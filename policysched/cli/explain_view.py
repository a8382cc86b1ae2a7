"""Prints an explanation (the JSON of `schemas/explain.json`) for people: of files, or of a running scheduler."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from policysched.cli.tables import print_table
from policysched.lang.types.kinds import Type, TypeKind
from policysched.lang.types.units import format_value
from policysched.text.abbreviate import abbreviate_names

if TYPE_CHECKING:
    from rich.console import Console

Record = Mapping[str, Any]

NODES_SHOWN = 12
_RULE_COLUMNS_MAX = 40
_MARGIN_COLUMNS = 8


def print_explanation(console: "Console", record: Record, *, in_full: bool = False) -> None:
    """The answer first, then the evidence: what rejects the nodes, the nearest one, what would help, the scores. With
    `in_full` also the filters that reject no node, and all nodes."""
    suffix = _common_suffix(record) if console.is_terminal else ""
    _print_heading(console, record)
    _print_paragraph(console, record["message"], style="bold")
    if record["gang"] is not None:
        _print_gang(console, record["gang"], is_live="waiting" in record)
    if record["nodes"] and (record["rejected"] or record["rejected_omitted"] or record["feasible"]):
        _print_filters(console, record, in_full=in_full)
        _print_closest(console, record["closest"])
        _print_would_fit(console, record)
        if suffix:
            console.print()
            console.print(f"nodes below are shown without {suffix}", style="dim", markup=False)
        _print_rejected(console, record, suffix, in_full=in_full)
        _print_omitted(console, record["rejected_omitted"], in_full=in_full)
        _print_scores(console, record, suffix, in_full=in_full)
        _print_shadows(console, record)
        _print_samples(console, record, suffix, in_full=in_full)


def _common_suffix(record: Record) -> str:
    """The domain that all nodes share, such as `.eu-central-1.compute.internal`."""
    names = {*record["totals"], *record["rejected"]}
    suffixes = {name[name.index(".") :] if "." in name else "" for name in names}
    return next(iter(suffixes)) if len(suffixes) == 1 and len(names) > 1 else ""


def _print_heading(console: "Console", record: Record) -> None:
    from rich.text import Text

    policy, waiting = record["policy"], record.get("waiting")
    console.print("pod    ", Text(record["pod"], style="bold"))
    console.print(f"policy  {policy['name']}  sha {policy['sha256'][:12]}", markup=False)
    if record["placed_on"] is not None:
        console.print(f"node    {record['placed_on']}", markup=False)
    if waiting is not None:
        attempts = f"{waiting['attempts']} attempt{'' if waiting['attempts'] == 1 else 's'}"
        console.print(f"queue   {waiting['queue']}, {attempts}, queued {waiting['queued']}", markup=False)
    console.print()


def _print_gang(console: "Console", gang: Record, *, is_live: bool) -> None:
    """A running scheduler says what it found at the gang's last attempt; the rest is evaluated now."""
    below = "The rules below are those for this member"
    existing = gang["placed"] + gang["pending"]
    needed = f"needs {gang['minimum']} members at once"
    console.print(
        f"gang {gang['name']} {needed}: {existing} exist, {gang['placed']} placed, {gang['pending']} pending. "
        + (f"The message is that of the last attempt. {below}, now." if is_live else f"{below}."),
        markup=False,
    )


def _print_filters(console: "Console", record: Record, *, in_full: bool) -> None:
    """Each filter over all nodes and after those above it; without `in_full` only those that reject a node."""
    total = record["nodes"]
    shown = [row for row in record["filters"] if in_full or row["alone"] < total]
    passing = len(record["filters"]) - len(shown)
    if shown:
        last = next((number for number, row in enumerate(shown) if row["left"] == 0), None)
        rows = [
            (
                row["rule"],
                f"{row['alone']}/{total}",
                str(row["left"]),
                ("" if row["included_by"] else row["location"])
                + ("  <- no node left" if number == last else ""),
            )
            for number, row in enumerate(shown)
        ]
        console.print()
        print_table(console, ("filter", "alone", "left", ""), rows, right=(1, 2))
    if passing and console.is_terminal:
        passing_text = (
            f"{passing} other filter{'' if passing == 1 else 's'}" if shown else f"All {passing} filters"
        )
        console.print(
            f"{passing_text} pass{'es' if passing == 1 else ''} every node; --all lists them", style="dim"
        )


def _print_closest(console: "Console", closest: Record | None) -> None:
    if closest is None:
        return
    console.print()
    console.print(f"closest miss: {closest['node']}", style="bold", markup=False)
    for rejection in closest["rejections"]:
        _print_paragraph(
            console, f"{rejection['rule']}: {rejection['reason']}{_gap_text(rejection)}", indent=2
        )


def _gap_text(rejection: Record) -> str:
    gap = rejection.get("gap")
    if gap is None:
        return ""
    if rejection["reason"].startswith("Insufficient"):
        return f" (requests {gap['limit']}, {gap['actual']} free: {gap['by']} short)"
    return f" ({gap['subject']} is {gap['actual']}, the limit {gap['limit']}: misses by {gap['by']})"


def _print_would_fit(console: "Console", record: Record) -> None:
    if record["selected"] is not None or record["would_fit"] is None:
        return
    gang = record["gang"]
    is_blocked = gang is not None and gang["blocked"]
    console.print()
    if not record["would_fit"]:
        helped = "the gang start" if is_blocked else "it fit"
        console.print(f"No single change that was tried makes {helped}.", style="bold")
        return
    subject = "The gang would start" if is_blocked else "It would fit"
    console.print(f"{subject} after any one of these:", style="bold")
    for proposal in record["would_fit"]:
        text = proposal["text"]
        where = f" (goes to {proposal['node']})" if proposal["kind"] not in ("node", "uncordon") else ""
        if proposal["node"] is None:
            where = " (this member stays pending)"
        elif is_blocked and proposal["kind"] != "node":
            where = f" (this member goes to {proposal['node']})"
        _print_paragraph(console, f"- {text}{where}", indent=2)


def _print_shadows(console: "Console", record: Record) -> None:
    """What each shadow rule would change, were it used."""
    if not record["shadows"]:
        return
    console.print()
    console.print("Shadow rules, which are not used:", style="bold")
    for effect in record["shadows"]:
        match effect["change"]:
            case "error":
                text = f"failed: {effect['error']}"
            case "pending":
                text = f"would reject all {effect['rejected']} candidates: the pod would stay pending"
            case "moved":
                text = f"the pod would go to {effect['selected']} instead"
            case _:
                text = "changes nothing"
        if effect["kind"] == "filter" and effect["change"] in ("moved", "unchanged"):
            text = f"would reject {effect['rejected']} of {len(record['feasible'])} candidates; {text}"
        _print_paragraph(console, f"- shadow {effect['kind']} {effect['rule']}: {text}", indent=2)


def _print_rejected(console: "Console", record: Record, suffix: str, *, in_full: bool) -> None:
    """Nodes that are rejected for the same reasons together."""
    if not record["rejected"]:
        return
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node, rejections in record["rejected"].items():
        groups.setdefault(tuple((each["rule"], each["reason"]) for each in rejections), []).append(node)
    console.print()
    if not console.is_terminal:
        rows = [
            (node, each["rule"], each["reason"])
            for node, rejections in record["rejected"].items()
            for each in rejections
        ]
        print_table(console, ("node", "rejected by", "reason"), rows)
        return
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    shown = ordered if in_full else ordered[:NODES_SHOWN]
    rows = []
    for reasons, nodes in shown:
        short = [node.removesuffix(suffix) for node in nodes]
        names = ", ".join(short) if in_full else abbreviate_names(short)
        rows += [(names if row == 0 else "", rule, reason) for row, (rule, reason) in enumerate(reasons)]
    print_table(console, ("rejected", "by", "reason"), rows)
    if len(ordered) > len(shown):
        hidden_count = sum(len(nodes) for _, nodes in ordered[len(shown) :])
        console.print(f"and {hidden_count} nodes for other reasons; --all shows them", style="dim")


def _print_omitted(console: "Console", omitted: Record | None, *, in_full: bool) -> None:
    """What a running scheduler counts and does not list."""
    if omitted is None:
        return
    causes = omitted["causes"] if in_full else omitted["causes"][:NODES_SHOWN]
    rows = [(str(cause["nodes"]), ", ".join(cause["rules"])) for cause in causes]
    other = omitted["nodes"] - sum(cause["nodes"] for cause in causes)
    if other:
        rows.append((str(other), "other rules"))
    console.print()
    console.print(f"and {omitted['nodes']} more nodes, which are counted and not listed", style="bold")
    print_table(console, ("nodes", "rejected by"), rows, right=(0,))


def _print_scores(console: "Console", record: Record, suffix: str, *, in_full: bool) -> None:
    """One column per node, the first one that the pod is on or would go to. A cell is what the rule adds to the total,
    `lead` the difference between the first two."""
    first = record["placed_on"] if record["placed_on"] in record["totals"] else record["selected"]
    selected = record["selected"]  # it can tie with others
    totals = sorted(
        record["totals"].items(), key=lambda item: (item[0] != first, -item[1], item[0] != selected, item[0])
    )
    if not totals:
        return
    labels = {
        rule: f"{rule} × {max((cell['weight'] for cell in cells.values()), default=0)}"
        for rule, cells in record["scores"].items()
    }
    count = (
        len(totals)
        if in_full or not console.is_terminal
        else _columns_that_fit(console, labels, totals, suffix)
    )
    columns = totals[:count]
    has_lead = len(columns) > 1
    rows = []
    for rule, cells in record["scores"].items():
        amounts = [cells[node]["weighted"] if node in cells else None for node, _ in columns]
        lead = (amounts[0] or 0) - (amounts[1] or 0) if has_lead else 0
        texts = ["" if amount is None else str(amount) for amount in amounts]
        rows.append((labels[rule], *texts, *([_signed(lead)] if has_lead else [])))
    margin = columns[0][1] - columns[1][1] if has_lead else 0
    rows.append(("total", *(str(total) for _, total in columns), *([_signed(margin)] if has_lead else [])))
    headings = (
        "score × weight",
        *(node.removesuffix(suffix) for node, _ in columns),
        *(["lead"] if has_lead else []),
    )
    console.print()
    print_table(console, headings, rows, right=range(1, len(headings)), bold=(len(rows) - 1,))
    if len(totals) > len(columns):
        console.print(f"and {len(totals) - len(columns)} more nodes; --all shows them", style="dim")
    if has_lead:
        _print_paragraph(console, _comparison(record, columns[0][0], columns[1][0], margin))


def _comparison(record: Record, first: str, second: str, margin: int) -> str:
    if margin == 0:
        return f"{first} ties with {second}; the hash of their names and of the pod's UID breaks the tie."
    if margin < 0:
        return f"{first} is {-margin} behind {second}, where the pod would go now."
    leads = {
        rule: cells[first]["weighted"] - cells[second]["weighted"]
        for rule, cells in record["scores"].items()
        if first in cells and second in cells
    }
    rule = max(leads, key=lambda name: leads[name], default="")
    most = f", most of it by {rule}" if rule and leads[rule] > 0 else ""
    return f"{first} leads {second} by {margin}{most}."


def _columns_that_fit(
    console: "Console", labels: Mapping[str, str], totals: Sequence[tuple[str, int]], suffix: str
) -> int:
    """At least two: the first node and the one that it is compared with."""
    used = min(max(map(len, labels.values()), default=0), _RULE_COLUMNS_MAX) + _MARGIN_COLUMNS
    count = 0
    for node, _ in totals:
        used += max(len(node.removesuffix(suffix)), 6) + 2
        if used > console.width and count >= 2:
            break
        count += 1
    return count


def _signed(amount: int) -> str:
    return f"{amount:+d}" if amount else "0"


def _print_samples(console: "Console", record: Record, suffix: str, *, in_full: bool) -> None:
    """The samples with their ages; of metrics between pods those of the other pods."""
    types = {name: _type_of(text) for name, text in record["metric_types"].items()}
    nodes = sorted({*record["totals"], *record["rejected"]})
    for name, samples in record["samples"].items():
        is_between_pods = any("/" in key for key in samples)
        keys = list(samples) if is_between_pods else nodes
        if not keys:
            continue
        shown = keys if in_full or not console.is_terminal else keys[:NODES_SHOWN]
        rows = [(key.removesuffix(suffix), *_sample_text(types[name], samples.get(key))) for key in shown]
        console.print()
        print_table(console, ("pod" if is_between_pods else "node", name, "age", ""), rows, right=(1, 2))
        if len(keys) > len(shown):
            console.print(f"and {len(keys) - len(shown)} more; --all shows them", style="dim")


def _sample_text(type_: Type, sample: Record | None) -> tuple[str, str, str]:
    if sample is None:
        return "missing", "", ""
    value = sample["value"] if type_.is_float64 else int(sample["value"])
    return (
        format_value(value, type_),
        f"{sample['age_s']:g} s",
        "stale, counts as missing" if sample["stale"] else "",
    )


def _type_of(text: str) -> Type:
    return Type(TypeKind(text))


def _print_paragraph(console: "Console", text: str, *, indent: int = 0, style: str = "") -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Padding(Text(text, style=style), (0, 0, 0, indent), expand=False))
