"""What may be missing, and what rules that out."""

from collections.abc import Iterable

import pytest

from policysched.lang.check import presence
from policysched.lang.ir.expr import Expr
from policysched.lang.ir.rules import FilterRule
from tests.language.check.checking import codes, program

ZONE = 'input zone: string = pod.labels["zone"] optional\n'
NET = 'metric net: bandwidth { query = "q" unit = "B/s" join = node every = 15s stale = 90s }\n'


@pytest.mark.parametrize(
    "line",
    [
        'filter f require has zone and zone == "a"',
        'filter f require not has zone or zone == "a"',
        'filter f require not (not has zone) and zone == "a"',
        'filter f require not (not has zone or zone == "b")',
        'filter f when has zone require zone == "a"',
        'filter f require (zone else "none") == "a"',
        'filter f require has zone and has node.labels["z"] and zone == node.labels["z"]',
        'filter f require (has zone and pod.priority > 1 or has zone and pod.priority < 0) and zone == "a"',
        'layer l when has zone { filter f require zone == "a" }',
        "queue by zone",
        'gang by zone { min = rank(zone, ["a", "b"]) timeout = 5m }',
        'filter f require count(pods on node where other.labels["app"] == zone) == 0',
    ],
)
def test_asking_first_is_enough(line: str) -> None:
    assert codes(ZONE + line) == []


@pytest.mark.parametrize(
    "line",
    [
        'filter f require zone == "a"',
        'filter f reject zone == "a"',
        'filter f require has zone or zone == "a"',
        'filter f require (has zone or pod.priority > 1) and zone == "a"',
        'filter f require not has zone and zone == "a"',
        'filter f when zone == "a" require node.ready',
        'filter f require (node.labels["z"] else zone) == "a"',
        'layer l when zone == "a" { drop image_locality }',
        'score s weight 1 prefer node.ready and zone == "a"',
    ],
)
def test_not_asking_is_an_error(line: str) -> None:
    assert codes(ZONE + line) == ["PS201"]


def test_a_metric_that_is_always_given_a_value_needs_no_missing_clause() -> None:
    for tested in ("(net else 0bps) < 1Gbps", "has net and net < 1Gbps", "not has net or net < 1Gbps"):
        rule = program(NET + f"filter f require {tested}").rules.filters[-1]

        assert isinstance(rule, FilterRule)
        assert rule.missing is None


def test_in_reject_an_absent_label_of_the_node_needs_no_asking_and_one_of_the_pod_does() -> None:
    assert codes('filter f reject node.labels["rack"] == "r17"') == []
    assert codes('filter f reject pod.labels["rack"] == "r17"') == ["PS201"]


def test_a_fold_of_the_divisor_shows_that_it_is_not_zero() -> None:
    assert codes("filter f require node.free.cpu / (1 + 2) > 100m") == []
    assert codes("filter f require node.free.cpu / (2 - 2) > 100m") == ["PS218"]


def any_of_them(items: Iterable[Expr], value: bool, *, every: bool) -> presence.PresentReads:
    return frozenset().union(*(presence.implied_present(item, value) for item in items))


def test_a_has_that_guards_too_much_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: either side of an `or` counts as asked for."""
    monkeypatch.setattr(presence, "_combine_implied", any_of_them)

    with pytest.raises(AssertionError):
        test_not_asking_is_an_error('filter f require (has zone or pod.priority > 1) and zone == "a"')
