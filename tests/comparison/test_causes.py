"""Each changed pod is attributed to the edited lines, as brute force over all mixtures of the edited text says."""

import random
from collections.abc import Mapping
from itertools import combinations

import pytest

from policysched.comparison import causes
from policysched.comparison.comparison import Comparison, compare
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.simulate import simulate
from tests.comparison.clusters import (
    EDITS,
    NOW_NS,
    POLICY,
    Edit,
    compared,
    edited,
    line_of,
    policy,
    random_files,
)

Causes = Mapping[str, frozenset[frozenset[int]]]


def simulated(text: str, files: ClusterFiles) -> dict[str, str]:
    """What happens to each pod: its node, `pending` or `evicted`."""
    result = simulate(policy(text), files, samples={}, scope="named", now_ns=NOW_NS)
    return {
        **{placement.pod: placement.node for placement in result.placements},
        **{pod: "pending" for pod, _ in result.pending},
        **dict.fromkeys(result.preempted, "evicted"),
    }


def brute_force(chosen: tuple[Edit, ...], files: ClusterFiles) -> Causes:
    """By pod, the smallest sets of lines of the new text that alone give the pod its new outcome."""
    new_text = edited(chosen)
    lines = {edit: line_of(edit, new_text) for edit in chosen}
    results = {
        subset: simulated(edited(subset), files)
        for size in range(len(chosen) + 1)
        for subset in combinations(chosen, size)
    }
    before, after = results[()], results[chosen]
    causes_by_pod: dict[str, frozenset[frozenset[int]]] = {}
    for pod in before.keys() | after.keys():
        if before.get(pod) == after.get(pod):
            continue
        enough = [subset for subset, result in results.items() if result.get(pod) == after.get(pod)]
        smallest = min(len(subset) for subset in enough)
        causes_by_pod[pod] = frozenset(
            frozenset(lines[edit] for edit in subset) for subset in enough if len(subset) == smallest
        )
    return causes_by_pod


def attributed(comparison: Comparison) -> Causes:
    line_by_number = {change.number: int(change.location.rpartition(":")[2]) for change in comparison.changes}
    return {
        pod: frozenset(
            frozenset(line_by_number[number] for number in numbers) for numbers in comparison.causes[pod]
        )
        for pod, change in comparison.changed.items()
        if change.kind != "reordered"
    }


def check_attribution(seed: int) -> int:
    """The number of changed pods."""
    chosen = tuple(random.Random(seed).sample(EDITS, 3))
    files = random_files(seed)

    comparison = compare(policy(POLICY), policy(edited(chosen)), compared(files))

    expected = brute_force(chosen, files)
    assert attributed(comparison) == expected
    return len(expected)


def test_three_planted_edits_are_attributed_to_their_lines_as_brute_force_says() -> None:
    assert sum(check_attribution(seed) for seed in range(2)) > 20


def test_a_cause_that_is_not_the_smallest_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted bug: only single changes and all of them together are considered, in the wrong order."""
    original = causes.is_same_change
    monkeypatch.setattr(
        causes,
        "is_same_change",
        lambda first, other: (first is None) == (other is None) or original(first, other),
    )

    with pytest.raises(AssertionError):
        for seed in range(2):
            check_attribution(seed)


def test_processes_and_one_process_find_the_same() -> None:
    files, new = random_files(3), policy(edited(EDITS[:3]))

    alone = compare(policy(POLICY), new, compared(files))
    forked = compare(policy(POLICY), new, compared(files, workers=2))

    assert forked.record() == alone.record()


def test_a_rule_and_the_let_that_only_it_reads_are_one_cause() -> None:
    new = POLICY.replace(
        "filter few", "let most: int = 1\nfilter fewer require node.pods <= most\nfilter few"
    )

    comparison = compare(policy(POLICY), policy(new), compared(random_files(1)))

    by_number = {change.number: change.statement for change in comparison.changes}
    causes_by_pod = {
        frozenset(by_number[number] for number in numbers)
        for pod_causes in comparison.causes.values()
        for numbers in pod_causes
    }
    assert causes_by_pod == {frozenset({"let most", "filter fewer"})}


def test_causes_beyond_the_allowed_simulations_are_unknown() -> None:
    comparison = compare(policy(POLICY), policy(edited(EDITS)), compared(random_files(2)), runs_max=0)

    assert comparison.changed
    assert set(comparison.causes.values()) == {()}


def test_the_removal_of_a_rule_is_shown_where_the_old_policy_has_it() -> None:
    without = "\n".join(line for line in POLICY.split("\n") if not line.startswith("filter roomy"))

    comparison = compare(
        policy(POLICY, "old.policy"), policy(without, "new.policy"), compared(random_files(1))
    )

    removed = {change.statement: (change.kind, change.location) for change in comparison.changes}
    assert removed["filter roomy"] == ("removed", "old.policy:12")


def test_an_edited_library_is_shown_at_its_own_line() -> None:
    from policysched.lang.check import check_text

    library = "library base version 1\n\nfilter few require node.pods < 5\n"
    text = 'policy test version 1\ninclude "base.policy"\ninclude kube_default\n'
    programs = [
        check_text(text, "test.policy", {"base.policy": content}).program
        for content in (library, library.replace("< 5", "< 1"))
    ]
    assert programs[0] is not None and programs[1] is not None

    comparison = compare(programs[0], programs[1], compared(random_files(1)))

    assert [(change.statement, change.location) for change in comparison.changes] == [
        ("filter few", "base.policy:3")
    ]
