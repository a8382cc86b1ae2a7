"""The sentences of a comparison, from its record: the same on a terminal and on the page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from policysched.lang.types.kinds import Type, TypeKind
from policysched.lang.types.units import format_value

Record = Mapping[str, Any]

KIND_WORDS = {
    "newly_pending": "become pending",
    "newly_evicted": "are evicted",
    "moved": "go to another node",
    "newly_placed": "become schedulable",
    "no_longer_evicted": "are no longer evicted",
    "reordered": "change their order",
}


def count_text(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def headline(record: Record) -> str:
    changed, pods = len(record["changed_pods"]), count_text(record["pods"], "pod")
    if changed:
        return f"{changed:,} of {pods} {'changes' if changed == 1 else 'change'}"
    differing = count_text(len(record["changes"]), "statement")
    return f"No pod changes, of {pods}; {differing} of the policy {'differs' if len(record['changes']) == 1 else 'differ'}."


def cause_text(record: Record, causes: Sequence[Sequence[int]]) -> str:
    """`filter link_cool (quiet.policy:13)`; `A and B` where both are needed, `A, or B` where each is enough."""
    if not causes:
        return f"several of {len(record['changes'])} changes (not separated: see --max-simulations)"
    by_number = {change["number"]: change for change in record["changes"]}

    def name(number: int) -> str:
        change = by_number[number]
        removed = ", removed" if change["change"] == "removed" else ""
        return f"{change['statement']} ({change['location']}{removed})"

    return ", or ".join(" and ".join(name(number) for number in numbers) for numbers in causes)


def kinds_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[kind]} {label}" for kind, label in KIND_WORDS.items() if counts.get(kind))


def examples(cause: Record, most: int) -> list[str]:
    """The pods that the policy decides differently on the same cluster come before those that follow others."""
    in_order = sorted(cause["examples"], key=lambda example: example["decided_by"] == "earlier decisions")
    texts = []
    for example in in_order[:most]:
        at = f" ({example['policy']} {example['location']})" if example["location"] else ""
        rule = f"{example['rule']}{at} " if example["rule"] else ""
        texts.append(f"{example['pod']}: {rule}{example['text']}")
    return texts


def cause_numbers(pod: Record) -> str:
    """`2`, `1+3` or `1 or 3`: numbers of changes."""
    return " or ".join("+".join(str(number) for number in numbers) for numbers in pod["causes"]) or "?"


def before_and_after_texts(pod: Record) -> tuple[str, str]:
    """Before and after: the node, the position in the order, or what happens instead."""
    before, after = pod["before"], pod["after"]
    if pod["change"] == "reordered":
        return f"order {before['order']}", f"order {after['order']}"
    return before["node"] or before["outcome"], after["node"] or after["outcome"]


def pods_by_kind(record: Record) -> list[Record]:
    kinds = list(KIND_WORDS)
    return sorted(record["changed_pods"], key=lambda pod: (kinds.index(pod["change"]), pod["pod"]))


def measure_rows(record: Record) -> Iterator[tuple[str, str, str, str]]:
    """What is measured, before, after and the difference."""
    before, after = record["before"], record["after"]
    for group, title, extreme in (
        ("utilisation", "{} requested", "of the fullest node"),
        ("link_headroom", "{} free", "of the node with least"),
    ):
        for name in {**before[group], **after[group]}:
            parts = (
                ("total", "of all nodes"),
                ("highest" if group == "utilisation" else "lowest", extreme),
                ("deviation", "deviation between nodes"),
            )
            for part, label in parts:
                values = [measures[group].get(name, {}).get(part) for measures in (before, after)]
                yield _measure_row(f"{title.format(name)}, {label}", values, "{:.1%}")
    for key in before["spread"]:
        values = [measures["spread"][key]["skew"] for measures in (before, after)]
        if values != [None, None]:
            yield _measure_row(f"skew over {key.rpartition('/')[2]}, mean of controllers", values, "{:.2f}")
    yield _measure_row("empty nodes", [before["empty_nodes"], after["empty_nodes"]], "{:d}")
    yield _measure_row(
        "pods that wait", [measures["waiting"]["pods"] for measures in (before, after)], "{:d}"
    )
    if before["waiting"]["pods"] or after["waiting"]["pods"]:
        times = [_duration(measures["waiting"]["oldest_s"]) for measures in (before, after)]
        yield "longest wait so far", times[0], times[1], ""
    waits = [measures["placement_waits"] for measures in (before, after)]
    if waits != [None, None]:
        for part, part_label in (("mean_s", "mean"), ("p99_s", "99 %"), ("longest_s", "longest")):
            seconds = [None if measures is None else measures[part] for measures in waits]
            yield _measure_row(f"wait of placed pods, {part_label}", seconds, "{:.3f} s")


def recorded_note(record: Record) -> str | None:
    """How far the old policy does what was recorded; None: nothing was."""
    compared = record["as_recorded"]
    if compared is None or not compared["pods"]:
        return None
    return (
        f"with the old policy {compared['same']:,} of {count_text(compared['pods'], 'pod')} "
        f"{'gets' if compared['pods'] == 1 else 'get'} the node of the recording"
    )


def _duration(seconds: float) -> str:
    return format_value(round(seconds) * 10**9, Type(TypeKind.DURATION))


def _measure_row(title: str, values: Sequence[float | None], form: str) -> tuple[str, str, str, str]:
    before, after = values
    texts = ["-" if value is None else form.format(value) for value in values]
    if before is None or after is None or texts[0] == texts[1]:
        return title, texts[0], texts[1], ""
    sign = "+" if after > before else "-"
    return title, texts[0], texts[1], sign + form.format(abs(after - before))
