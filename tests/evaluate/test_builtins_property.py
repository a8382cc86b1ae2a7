"""Each built-in's kernel agrees with its reference implementation on every node of random clusters."""

from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policysched import evaluate
from policysched.builtins.declaration import BuiltinParameter
from policysched.builtins.registry import BUILTINS
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter, BuiltinParamValue, BuiltinScore, RuleSet
from policysched.lang.ir.verdict import PlacementExplanation
from tests import reference
from tests.conformance.kube_default import kube_default
from tests.evaluate.clusters import QUANTITIES, Scene, scenes

FILTERS = [name for name, declaration in BUILTINS.items() if declaration.filters]
SCORES = [name for name, declaration in BUILTINS.items() if declaration.scores]

weights = st.dictionaries(st.sampled_from(tuple(QUANTITIES)), st.integers(1, 5), min_size=1).map(
    lambda drawn: tuple(drawn.items())
)
shapes = st.dictionaries(
    st.sampled_from((0, 20, 33, 50, 90, 100)), st.integers(0, 10), min_size=1, max_size=4
).map(lambda drawn: tuple(sorted(drawn.items())))


keys = st.sampled_from(("kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack"))
skews = st.dictionaries(keys, st.integers(1, 5), min_size=1).map(lambda drawn: tuple(drawn.items()))


def draw_params(
    data: st.DataObject, parameters: tuple[BuiltinParameter, ...]
) -> tuple[tuple[str, BuiltinParamValue], ...]:
    drawn: list[tuple[str, BuiltinParamValue]] = []
    for parameter in parameters:
        match parameter.kind:
            case "choice":
                drawn.append((parameter.name, data.draw(st.sampled_from(parameter.choices))))
            case "int":
                drawn.append((parameter.name, data.draw(st.integers(parameter.low, parameter.high))))
            case "weights":
                limited = [(resource, min(weight, parameter.high)) for resource, weight in data.draw(weights)]
                drawn.append((parameter.name, tuple(limited)))
            case "shape":
                drawn.append((parameter.name, data.draw(shapes)))
            case "names":
                names = st.sampled_from(
                    ("nvidia.com/gpu", "nvidia.com", "example.com", "cpu", "example.com/fpga")
                )
                drawn.append((parameter.name, data.draw(st.frozensets(names))))
            case "constraints":
                drawn.append(
                    (parameter.name, data.draw(st.one_of(st.sampled_from(parameter.choices), skews)))
                )
    return tuple(drawn)


def only(filters: tuple[BuiltinFilter, ...], scores: tuple[BuiltinScore, ...]) -> Program:
    return replace(kube_default(), rules=RuleSet(filters, scores))


def explanation_pairs(
    program: Program, scene: Scene
) -> list[tuple[PlacementExplanation, PlacementExplanation]]:
    """Evaluation and reference for each pod of the scene."""
    evaluator, compiled = evaluate.Evaluator(scene.cache), evaluate.compile(program)
    evaluator.build_columns(compiled)
    arguments = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}
    return [
        (
            evaluator.explain(compiled, pod, **arguments),
            reference.evaluate(program, pod, scene.cache, **arguments),
        )
        for pod in scene.pods
    ]


def differences(planned: PlacementExplanation, plain: PlacementExplanation) -> list[str]:
    names = [field.name for field in fields(PlacementExplanation) if field.compare]
    pairs = [(name, getattr(planned, name), getattr(plain, name)) for name in names]
    return [f"{name}: vectorized {fast}, reference {slow}" for name, fast, slow in pairs if fast != slow]


def agree(program: Program, scene: Scene) -> None:
    for planned, plain in explanation_pairs(program, scene):
        assert differences(planned, plain) == []


@pytest.mark.parametrize("name", FILTERS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), scene=scenes())
def test_a_filter_and_its_kernel_agree_on_every_node(name: str, data: st.DataObject, scene: Scene) -> None:
    params = draw_params(data, BUILTINS[name].filter_parameters)
    rule = BuiltinFilter(name, name, params, None, False, kube_default().queue[0].value.span)

    agree(only((rule,), ()), scene)


@pytest.mark.parametrize("name", SCORES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), scene=scenes())
def test_a_score_and_its_kernel_agree_on_every_node(name: str, data: st.DataObject, scene: Scene) -> None:
    params, weight = draw_params(data, BUILTINS[name].parameters), data.draw(st.integers(0, 10))
    rule = BuiltinScore(name, name, weight, params, None, False, kube_default().queue[0].value.span)

    agree(only((), (rule,)), scene)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scene=scenes(pods=3))
def test_the_default_profile_and_its_reference_agree(scene: Scene) -> None:
    agree(kube_default(), scene)
