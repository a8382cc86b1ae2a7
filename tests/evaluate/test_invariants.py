"""Invariants of every policy: the order of nodes decides nothing, a filter only removes nodes, lowering changes no result."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator, evaluation_cache
from policysched.evaluate import compile as compile_program
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.plan import lowering
from policysched.evaluate.plan.lowering import LoweringOptions
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.plan.specialize import SpecializedRules
from policysched.evaluate.vector.machine import VectorMachine
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import FilterRule, ScoreRule
from policysched.lang.types.kinds import BOOL, INT
from tests.evaluate.clusters import Scene, scenes
from tests.evaluate.evaluation import evaluated, explained, without_filter
from tests.evaluate.policies import CORNERS, corner

SEARCH = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
HUNT = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    derandomize=True,  # a planted bug is found by the same example each time
    database=None,
)
OUTAGES = ("outage", "waiting for metrics")
LOWERINGS = [
    LoweringOptions(fold_constants=fold, share_subexpressions=share)
    for fold in (False, True)
    for share in (False, True)
]

Property = Callable[[Program], Callable[[Scene], None]]
"""Compiles a program once, and returns what checks it on one scene."""


# ── the properties ─────────────────────────────────────────────────────────────────────────────────────────────────


def the_order_of_nodes_decides_nothing(program: Program) -> Callable[[Scene], None]:
    plan = compile_program(program)

    def check(scene: Scene) -> None:
        reordered = _reordered(scene.cache)
        for pod in scene.pods:
            assert explained(Evaluator(scene.cache), plan, pod, scene) == explained(
                reordered, plan, pod, scene
            )

    return check


def a_filter_only_removes_nodes(program: Program) -> Callable[[Scene], None]:
    full = compile_program(program)
    reduced_plans = [
        compile_program(without_filter(program, index)) for index in range(len(program.rules.filters))
    ]

    def check(scene: Scene) -> None:
        for pod in scene.pods:
            complete = explained(Evaluator(scene.cache), full, pod, scene)
            for fewer in reduced_plans:
                reduced = explained(Evaluator(scene.cache), fewer, pod, scene)
                assert set(complete.feasible) <= set(reduced.feasible)

    return check


def lowering_changes_no_result(program: Program) -> Callable[[Scene], None]:
    verbose = _verbose(program)
    plans = [Plan(verbose, options) for options in LOWERINGS]

    def check(scene: Scene) -> None:
        for pod in scene.pods:
            results = [
                (
                    explained(Evaluator(scene.cache), plan, pod, scene),
                    evaluated(Evaluator(scene.cache), plan, pod, scene),
                )
                for plan in plans
            ]
            assert results == [results[0]] * len(results)

    return check


def _reordered(cache: ClusterCache) -> Evaluator:
    """An evaluator of the same cluster whose nodes were added in another order, on other rows."""
    reordered = ClusterCache()
    evaluator = Evaluator(reordered)
    for namespace in cache.namespaces.values():
        reordered.put_namespace(namespace)
    for selector_owner in cache.selector_owners.by_key.values():
        reordered.put_selector_owner(selector_owner)
    for name in sorted(cache.nodes, reverse=True):
        reordered.put_node(cache.nodes[name])
        evaluator.overlay()  # refreshes the columns
    for pod in cache.pods.values():
        reordered.put_pod(pod)
    return evaluator


def _verbose(program: Program) -> Program:
    """The program with constants around every condition, which folding removes."""
    filters = tuple(
        replace(rule, condition=_verbose_condition(rule.condition)) if isinstance(rule, FilterRule) else rule
        for rule in program.rules.filters
    )
    scores = tuple(
        replace(rule, when=None if rule.when is None else _verbose_condition(rule.when))
        if isinstance(rule, ScoreRule)
        else rule
        for rule in program.rules.scores
    )
    return replace(program, rules=replace(program.rules, filters=filters, scores=scores))


def _verbose_condition(condition: e.Expr) -> e.Expr:
    span = condition.span
    first, two = e.Const(1, INT, span), e.Const(2, INT, span)
    total = e.Arith("+", first, first, INT, False, span)
    always = e.Compare("==", total, two, span)
    never = e.Const(False, BOOL, span)
    return e.Or((never, e.And((always, e.Not(e.Not(condition, span), span)), span)), span)


@pytest.mark.parametrize("name", CORNERS)
def test_the_order_of_nodes_changes_no_verdict(name: str) -> None:
    _search(the_order_of_nodes_decides_nothing(corner(name)), scenes())


@pytest.mark.parametrize("name", [name for name in CORNERS if name not in OUTAGES])
def test_adding_a_filter_never_adds_a_feasible_node(name: str) -> None:
    # Under `outage` a filter can: with fewer candidates, another fraction of them lacks the metric.
    _search(a_filter_only_removes_nodes(corner(name)), scenes(pods=2))


@pytest.mark.parametrize("name", CORNERS)
def test_folding_and_sharing_change_no_result(name: str) -> None:
    _search(lowering_changes_no_result(corner(name)), scenes())


def _search(check: Callable[[Scene], None], of: st.SearchStrategy[Scene]) -> None:
    @SEARCH
    @given(scene=of)
    def search(scene: Scene) -> None:
        check(scene)

    search()


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def _caught(holds: Property) -> bool:
    @HUNT
    @given(name=st.sampled_from([name for name in CORNERS if name not in OUTAGES]), scene=scenes())
    def hunt(name: str, scene: Scene) -> None:
        holds(corner(name))(scene)

    try:
        hunt()
    except AssertionError:
        return True
    return False


def test_a_planted_tie_that_the_first_row_wins_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(self: Evaluation, pod_hash: int, name_hash: object) -> int | None:
        return int(self.total.argmax()) if self.feasible_count else None

    monkeypatch.setattr(Evaluation, "best_row", first)

    assert _caught(the_order_of_nodes_decides_nothing)


def test_a_planted_loss_of_filters_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    specialize = evaluation_cache.specialize

    def forgetful(*args: object) -> SpecializedRules:
        rules = specialize(*args)  # type: ignore[arg-type]
        return replace(rules, filters=rules.filters[:1] if len(rules.filters) > 2 else rules.filters)

    monkeypatch.setattr(evaluation_cache, "specialize", forgetful)

    assert _caught(a_filter_only_removes_nodes)


def test_a_planted_wrong_fold_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "fold_constants", lambda expr: e.Const(True, BOOL, expr.span))

    assert _caught(lowering_changes_no_result)


def test_a_planted_sharing_of_different_steps_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    add = VectorMachine.add

    def confused(self: VectorMachine, expr: e.Expr) -> int:
        if self._share and isinstance(expr, e.Compare):
            alike = [step for step, other in enumerate(self.exprs) if isinstance(other, e.Compare)]
            if alike:
                return alike[0]
        return add(self, expr)

    monkeypatch.setattr(VectorMachine, "add", confused)

    assert _caught(lowering_changes_no_result)
