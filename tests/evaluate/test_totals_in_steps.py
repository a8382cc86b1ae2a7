"""Totals built in steps, while pods come and go and nodes change, equal totals built at once."""

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policysched.cluster import cache
from policysched.evaluate import Evaluator, NotCounted
from policysched.evaluate import compile as compile_program
from policysched.evaluate.columns import columns, placed_pod_totals, pod_counter
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.placed_pod_totals import PlacedPodTotals
from policysched.evaluate.columns.pod_counter import _FollowedPods
from policysched.evaluate.columns.pod_totals import DomainTotals, PodTotals, _Group, _Result
from policysched.evaluate.plan import totals_needed
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from tests.builders import placed
from tests.evaluate.clusters import ClusterRandom, Scene, random_node, random_pod, scene_of, scenes
from tests.evaluate.evaluation import evaluated, later
from tests.evaluate.histories import play, seeds, twin
from tests.evaluate.policies import corner
from tests.reference.checked import program

SEARCH = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
HUNT = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    derandomize=True,  # a planted bug is found by the same example each time
    database=None,
)
OTHER_TOTALS = program(
    "filter folded require count(placed pods where other.priority > 1 + 2) < 100",
    "filter folded_pods require count(pods where other.priority > 1 + 2) < 100",
    "let others: int = count(pods where other.priority > 3 + 4)",
    'filter in_message require node.pods < 1 says "{others} pods"',
    "layer busy when count(all pods where other.priority > 5 + 6) > 0 {"
    ' filter layered require (count(pods in "pool" where other.priority > 7 + 8) else 0) >= 0 }',
)


@pytest.fixture(autouse=True)
def smallest_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (columns, placed_pod_totals, pod_counter):
        monkeypatch.setattr(module, "PODS_PER_STEP", 1)
    monkeypatch.setattr(cache, "_FEW_CHANGED_NODES", 0)


def steps_equal_at_once(plan: Plan, scene: Scene, seed: int) -> None:
    rng, evaluator = Random(seed), Evaluator(scene.cache)
    steps: Iterator[None] = evaluator.build_totals_in_steps(plan)
    for _ in play(scene.cache, seed, changes=12):
        for _ in range(rng.randrange(4)):
            next(steps, None)
        if rng.randrange(2):
            _ = evaluator.version  # refreshes, as a decision of another policy does
    for _ in steps:
        pass
    for number, _ in enumerate(play(scene.cache, seed + 1, changes=4)):
        evaluator.refresh_slice()
        now, fresh = later(scene, number * 40), Evaluator(twin(scene.cache))
        for pod in scene.pods:
            warm_up = evaluator.warm_up(plan, pod, now_ns=now.now_ns, facts=now.facts, samples=now.samples)
            for _ in islice(warm_up, rng.randrange(20)):
                pass  # the attempt may end before it is through
            assert evaluated(evaluator, plan, pod, now) == evaluated(fresh, plan, pod, now)
    assert built_while_deciding(evaluator) == 0


def built_while_deciding(evaluator: Evaluator) -> int:
    counter = evaluator._snapshots.pod_counter
    return len(counter._others) + len(counter._columns.placed_totals._others)


def search(policy: Program, how: settings) -> None:
    plan = compile_program(policy)

    @how
    @given(scene=scenes(placed_max=6), seed=seeds)
    def check(scene: Scene, seed: int) -> None:
        steps_equal_at_once(plan, scene, seed)

    check()


@pytest.mark.parametrize("name", ["counts", "placed counts"])
def test_totals_built_in_steps_equal_totals_built_at_once(name: str) -> None:
    search(corner(name), SEARCH)


def test_totals_of_layers_and_messages_and_with_constants_are_built_before_they_are_read() -> None:
    search(OTHER_TOTALS, SEARCH)


def test_a_node_with_pods_that_comes_at_any_step_is_counted() -> None:
    plan, scene = compile_program(corner("placed counts")), scene_of(3)
    count = sum(1 for _ in Evaluator(twin(scene.cache)).build_totals_in_steps(plan))
    assert count > len(plan.pod_totals)

    for at_step in range(count + 1):
        cluster = twin(scene.cache)
        evaluator = Evaluator(cluster)
        steps = evaluator.build_totals_in_steps(plan)
        for _ in islice(steps, at_step):
            pass
        cluster.put_node(random_node(ClusterRandom(at_step), NodeName("new")))
        for number in range(3):
            new_pod = random_pod(ClusterRandom(number), f"new-{number}")
            cluster.put_pod(placed(new_pod, "new"))
        _ = evaluator.version  # refreshes
        for _ in steps:
            pass

        fresh = Evaluator(twin(cluster))
        for pod in scene.pods:
            assert evaluated(evaluator, plan, pod, scene) == evaluated(fresh, plan, pod, scene), at_step


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def _counts_rows_twice(totals: PlacedPodTotals, row: int) -> list[PodTotals]:
    return totals._complete + [preparation.totals for preparation in totals._in_preparation]


def _follows_no_changes(totals: PlacedPodTotals, row: int) -> list[PodTotals]:
    return totals._complete


def _forgets_changes(self: _FollowedPods, index: object) -> Iterator[None]:
    for uid in list(index.pods):  # type: ignore[attr-defined]
        self._count_again(uid, index)  # type: ignore[arg-type]
        yield
    self._version = index.version  # type: ignore[attr-defined]


def _keeps_first(
    self: PodTotals, group: _Group, values: tuple[object, ...], context: EvalContext
) -> Iterator[int]:
    result = group.results[values] = _Result(DomainTotals(), group.position, context.now_ns)
    for class_key, pod_class in group.classes.items():
        amount = self._counted_amount(result, class_key, pod_class, values, context)
        for domain, number in pod_class.counts.items():
            result.totals.add(domain, amount * number)
        yield 1


BUGS: dict[str, tuple[object, str, Callable[..., object], str]] = {
    "changes of rows that are not visited yet count": (
        PlacedPodTotals,
        "_counting",
        _counts_rows_twice,
        "placed counts",
    ),
    "changes of visited rows do not count": (
        PlacedPodTotals,
        "_counting",
        _follows_no_changes,
        "placed counts",
    ),
    "nodes that a slice did not come to are forgotten": (
        Columns,
        "refresh_slice",
        lambda self, *_: self._update_rows(sorted(self._cache.changed_nodes())[:1]),
        "placed counts",
    ),
    "a result is kept before it is complete": (PodTotals, "_new_result", _keeps_first, "placed counts"),
    "changes between two steps are forgotten": (
        _FollowedPods,
        "catch_up_in_steps",
        _forgets_changes,
        "counts",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, name, planted, policy = BUGS[bug]
    monkeypatch.setattr(holder, name, planted)

    with pytest.raises((AssertionError, NotCounted)):
        search(corner(policy), HUNT)


@pytest.mark.parametrize("part", ["layer_rules", "_of_field"])
def test_totals_that_no_plan_lists_are_caught(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals_needed, part, lambda _: ())

    with pytest.raises(AssertionError):
        search(OTHER_TOTALS, HUNT)
