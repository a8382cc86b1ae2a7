"""No undefined at run time: where a checked rule says nothing of `missing`, its condition always has a value."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from policysched.lang.ir.expr import Expr
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import FilterRule, ScoreRule
from policysched.model.pods import QueuedPodInfo
from tests import builders
from tests.evaluate.clusters import Scene, scenes
from tests.language.check.checking import program
from tests.reference import MISSING, ExpressionContext, value
from tests.reference.context import CandidateNodes
from tests.reference.evaluate import cluster_facts
from tests.strategies import programs

SEARCH = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


def undefined(program: Program, scene: Scene) -> list[str]:
    """The rules that have no value for some pod and node, though nothing was said of it."""
    problems = []
    around = cluster_facts(scene.cache)
    for pod in scene.pods:
        space = scene.cache.namespaces.get(pod.namespace)
        if space is None:
            continue
        alone = ExpressionContext(
            program, pod, space, scene.now_ns, scene.facts, scene.samples, {}, cache=scene.cache
        )
        nodes = {
            name: alone._replace(node=node, usage=scene.cache.ledger.usage(name), cluster_facts=around)
            for name, node in scene.cache.nodes.items()
        }
        among = CandidateNodes(nodes)
        for at in nodes.values():
            context = at._replace(candidates=among)
            for rule in (*program.rules.filters, *program.rules.scores):
                if rule.when is not None and value(rule.when, context) is MISSING:
                    problems.append(f"{rule.name} when")
                if rule.when is not None and value(rule.when, context) is not True:
                    continue
                match rule:
                    case FilterRule(missing=None, rejects=False, condition=tested):
                        pass
                    case ScoreRule(missing=None, value=tested):
                        pass
                    case _:
                        continue
                if value(tested, context) is MISSING:
                    problems.append(rule.name)
    return problems


def without_required_inputs(program: Program) -> bool:
    """A pod or node that lacks a required input, or has an invalid one, is refused before any rule is asked."""
    return all(
        input_.required_text is None
        and input_.invalid_text is None
        and (input_.default or input_.type.optional)
        for input_ in program.inputs.values()
    )


@SEARCH
@given(programs(layers=False).filter(without_required_inputs), scenes())
def test_a_checked_rule_without_a_missing_clause_always_has_a_value(program: Program, scene: Scene) -> None:
    assert undefined(program, scene) == []


def test_traffic_within_a_rack_is_looked_for_in_the_whole_cluster() -> None:
    racks = program(
        'metric talk: bandwidth { query = "q" unit = "B/s" from = ["source"] to = ["sink"] every = 15s stale = 90s }',
        'gang by pod.labels["group"] { min = 2, timeout = 5m }',
        'filter calm require (traffic_to(gang, "rack") else 0bps) < 1Gbps',
    )
    member = builders.pod("first", labels={"group": "g"})
    world = builders.world(
        nodes=[builders.node("a", labels={"rack": "r1"}), builders.node("b", labels={"rack": "r1"})]
    )

    assert undefined(racks, Scene(world, (member,), QueuedPodInfo(0, 0), {}, 10**18)) == []


def no_holes_at_all(expr: Expr, known: frozenset[Expr]) -> Iterator[Expr]:
    return iter(())


def test_a_checker_that_overlooks_a_missing_value_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: nothing is ever missing."""
    monkeypatch.setattr("policysched.lang.check.shared_clauses.possibly_missing", no_holes_at_all)
    loads = 'metric load: ratio { query = "q" unit = "1" join = instance every = 15s stale = 90s }'
    careless = program(
        loads, "filter cool require load < 50%", "score idle weight 1 lower load normalize max"
    )
    bare = Scene(
        builders.world(nodes=[builders.node("a")]), (builders.pod(),), QueuedPodInfo(0, 0), {}, 10**18
    )

    assert undefined(careless, bare) == ["cool", "idle"]
