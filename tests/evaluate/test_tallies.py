"""Counts of the pods that selectors match, of a tenant with very many pods that are no two alike, and as many selectors."""

from collections.abc import Sequence

import pytest

from policysched.evaluate.columns import pod_changes
from policysched.evaluate.columns import tallies as tallies_module
from policysched.evaluate.columns.placed_pods import HypotheticalPlacedPods, PlacedPods
from policysched.evaluate.columns.pod_changes import PodChanges
from policysched.evaluate.columns.pod_classes import PodClass, PodMatcher
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from tests.builders import pod
from tests.evaluate.clusters import ClusterRandom
from tests.evaluate.test_hostile import calls_of

ROWS = 8
NAMESPACES = ("tenant", "friend", "other")
ANY = {"number": "any"}


def matching_all(number: int, namespaces: Sequence[str] = ("tenant",)) -> PodMatcher:
    """Each number another selector, which selects every pod with another value."""
    requirement = SelectorRequirement("number", "NotIn", (f"none-{number}",))
    return PodMatcher(((frozenset(namespaces), LabelSelector((requirement,))),))


def counted_pods(class_count: int) -> PlacedPods:
    """With a tally, as in a cluster that runs for a while."""
    placed = PlacedPods({}, ROWS, ())
    for number in range(class_count):
        placed.adjust(number % ROWS, pod(f"p{number}", namespace="tenant", labels={"number": str(number)}), 1)
    placed.tally(matching_all(0))
    return placed


# ── cost ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def new_tally_calls(class_count: int) -> int:
    placed = counted_pods(class_count)
    return calls_of(lambda: placed.tally(matching_all(1)))


def test_a_new_tally_visits_no_class_of_pods() -> None:
    assert new_tally_calls(300) == new_tally_calls(3)


def eviction_calls(class_count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(tallies_module, "_TALLIES_MAX", 20)
    placed = counted_pods(class_count)
    for number in range(1, 30):
        placed.tally(matching_all(number))
    return calls_of(placed.evict_unused)


def test_an_eviction_of_tallies_visits_no_class_of_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    assert eviction_calls(300, monkeypatch) == eviction_calls(3, monkeypatch)


def placing_calls(tally_count: int) -> int:
    placed = counted_pods(3)
    for number in range(tally_count):
        placed.tally(matching_all(number))
    new_pod = pod("new", namespace="tenant", labels={"number": "new"})
    return calls_of(lambda: placed.adjust(0, new_pod, 1))


def test_a_pod_that_comes_visits_no_tally() -> None:
    assert placing_calls(300) == placing_calls(3)


def overlay_calls(tally_count: int) -> int:
    """Of a decision about a pod of another namespace, with an overlay of pods that all those tallies match."""
    placed = counted_pods(3)
    for number in range(tally_count):
        placed.tally(matching_all(number))
    others = placed.tally(matching_all(0, ("friend",)))
    overlay = HypotheticalPlacedPods(lambda: placed)
    for number in range(50):
        nominated = pod(f"m{number}", namespace="tenant", labels={"number": f"m{number}"})
        overlay.adjust(number % ROWS, nominated, 1)
    return calls_of(lambda: overlay.row_counts(others))


def test_pods_of_an_overlay_are_compared_with_no_tally_that_is_not_read() -> None:
    assert overlay_calls(300) == overlay_calls(3)


def test_few_and_many_pods_of_an_overlay_are_counted_alike() -> None:
    placed = counted_pods(3)
    tally, expected = placed.tally(matching_all(0)), placed.tally(matching_all(0)).row_counts.copy()
    overlay = HypotheticalPlacedPods(lambda: placed)

    for batch in (1, 40, 2):
        for number in range(batch):
            namespace = NAMESPACES[number % 2]
            overlay.adjust(number % ROWS, pod(f"m{batch}-{number}", namespace=namespace, labels=ANY), 1)
            if namespace == "tenant":
                expected.adjust(number % ROWS, 1)
        assert overlay.row_counts(tally).array(ROWS).tolist() == expected.array(ROWS).tolist()
    assert tally.row_counts.array(ROWS).sum() == 3, "the cluster is as before"


# ── meaning ────────────────────────────────────────────────────────────────────────────────────────────────────────


def tallies_agree_with_recounts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods come and go, also so many that arrays and the table are made anew, while tallies come and are evicted."""
    monkeypatch.setattr(tallies_module, "_TALLIES_MAX", 6)
    monkeypatch.setattr(pod_changes, "_SPARE", 12)
    monkeypatch.setattr("policysched.evaluate.columns.placed_pods._EMPTY_SIZE_MAX", 4)
    rng, placed = ClusterRandom(f"tallies {seed}"), PlacedPods({}, ROWS, ())
    on_rows: list[tuple[int, Pod]] = []
    for step in range(80):
        if on_rows and rng.one_in(3):
            row, gone = on_rows.pop(rng.randint(0, len(on_rows) - 1))
            placed.adjust(row, gone, -1)
        else:
            labels = {"number": f"none-{rng.randint(0, 9)}"}
            new_pod = pod(f"p{step}", namespace=rng.choice(NAMESPACES), labels=labels)
            on_rows.append((rng.randint(0, ROWS - 1), new_pod))
            placed.adjust(*on_rows[-1], 1)
        if rng.one_in(2):
            namespaces = rng.some(NAMESPACES, 3) or NAMESPACES
            placed.tally(matching_all(rng.randint(0, 9), namespaces))
        if rng.one_in(4):
            placed.evict_unused()
        read = [each for each in placed._tallies.by_matcher.items() if rng.one_in(2)]
        for matcher, tally in read:
            expected = [0] * ROWS
            for row, each in on_rows:
                expected[row] += matcher.matches(PodClass(each))
            assert tally.row_counts.array(ROWS).tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_tallies_agree_with_recounts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tallies_agree_with_recounts(seed, monkeypatch)


def test_a_tally_that_misses_changes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodChanges, "since", lambda self, _: self._from(len(self._numbers)))

    with pytest.raises(AssertionError):
        for seed in range(20):
            tallies_agree_with_recounts(seed, monkeypatch)


def test_a_log_that_forgets_changes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PodChanges,
        "since",
        lambda self, position: self._from(max(0, len(self._numbers) - self.end + position)),
    )

    with pytest.raises(AssertionError):
        for seed in range(20):
            tallies_agree_with_recounts(seed, monkeypatch)


def test_counts_that_are_summed_up_anew_have_another_version_if_they_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_changes, "_SPARE", 2)
    placed = counted_pods(3)
    tally = placed.tally(matching_all(0))
    versions = [tally.row_counts.version]

    for namespace in ("friend", "tenant"):
        for number in range(5):
            placed.adjust(0, pod(f"{namespace}{number}", namespace=namespace, labels=ANY), 1)
            placed.evict_unused()
        versions.append(tally.row_counts.version)

    assert versions[0] == versions[1] != versions[2]
