"""Rules about other pods, at 5,000 nodes and 10,000 bound pods; each decision is followed by its placement."""

from collections.abc import Iterable, Mapping
from typing import Any

from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from policysched.model.workloads import SelectorOwner
from tests.bench.clusters import DEFAULT, FACTS, NOW_NS, cluster, program
from tests.bench.measuring import Row, median_s, shown
from tests.builders import pod, service

_BOUND, _ASKED = 10_000, 1_000
_HOST, _ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
_WEB = {"labelSelector": {"matchLabels": {"app": "web"}}}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _affinity(kind: str, **terms: Any) -> dict[str, Any]:
    return {"affinity": {kind: terms}}


def _spread(when_unsatisfiable: str, *keys: str) -> dict[str, Any]:
    constraint = {**_WEB, "maxSkew": 1, "whenUnsatisfiable": when_unsatisfiable}
    return {"topologySpreadConstraints": [{**constraint, "topologyKey": key} for key in keys]}


_ZONE_TERM = {**_WEB, "topologyKey": _ZONE}
_WANTED: Mapping[str, tuple[dict[str, Any], str]] = {
    "nothing of other pods": ({}, "300 µs"),
    "required anti-affinity by host": (
        _affinity("podAntiAffinity", **{_REQUIRED: [{**_WEB, "topologyKey": _HOST}]}),
        "300 µs",
    ),
    "zone spreading": (_spread("DoNotSchedule", _ZONE), "300 µs"),
    "preferred affinity by zone": (
        _affinity("podAffinity", **{_PREFERRED: [{"weight": 10, "podAffinityTerm": _ZONE_TERM}]}),
        "300 µs",
    ),
    "required affinity by zone": (_affinity("podAffinity", **{_REQUIRED: [_ZONE_TERM]}), ""),
    "spreading where possible, by zone and host": (_spread("ScheduleAnyway", _ZONE, _HOST), ""),
}


def measure() -> Iterable[Row]:
    for words, (spec, target) in _WANTED.items():
        seconds = _decision_s(spec, [])
        yield Row(f"decision and assume, {words}, 5,000 nodes, 10,000 pods", shown(seconds), target)
    seconds = _decision_s(
        {}, [service(f"s{index}", app="web" if not index else f"app-{index}") for index in range(1000)]
    )
    yield Row(
        "decision and assume, spread by default over one of 1,000 Services, 5,000 nodes, 10,000 pods",
        shown(seconds),
        "",
    )


def _decision_s(spec: dict[str, Any], services: Iterable[SelectorOwner]) -> float:
    cache = cluster(pods=_BOUND)
    for owner in services:
        cache.put_selector_owner(owner)
    plan, evaluator = compile_program(program(DEFAULT)), Evaluator(cache)
    evaluator.build_columns(plan)
    alike = [
        pod(f"web-{index}", cpu="100m", memory="64Mi", labels={"app": "web"}, spec=spec, image="app-1:1")
        for index in range(_ASKED + 1)
    ]

    def decide() -> None:
        waiting = alike.pop()
        verdict = evaluator.evaluate(plan, waiting, now_ns=NOW_NS, facts=FACTS, samples={})
        assert verdict.selected is not None, f"{waiting.full_name} found no node"
        cache.assume(waiting, verdict.selected)

    decide()
    return median_s(decide, _ASKED)
