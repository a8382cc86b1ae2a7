"""Workloads as in kube-scheduler's own benchmarks: what pods have in addition to requests of 100m
and 64 MiB.

Pods with the same number modulo `GROUPS` form a group for affinity, anti-affinity and spreading.
"""

from collections.abc import Callable, Mapping

from tests.controlplane.api import Json
from tests.hostile import HOSTILE_SPECS, TERMS

GROUPS = 10
ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def _group(number: int) -> Json:
    return {"matchLabels": {"group": label(number)}}


def label(number: int) -> str:
    return f"g{number % GROUPS}"


def _term(number: int, key: str) -> Json:
    return {"topologyKey": key, "labelSelector": _group(number)}


def _spread(number: int) -> Json:
    constraint = {"maxSkew": 5, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**constraint, "labelSelector": _group(number)}]}


def _apart(number: int) -> Json:
    return _affinity("podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution", _term(number, HOST))


def _together(number: int) -> Json:
    return _affinity("podAffinity", "requiredDuringSchedulingIgnoredDuringExecution", _term(number, ZONE))


def _rather_together(number: int) -> Json:
    weighted = {"weight": 1, "podAffinityTerm": _term(number, HOST)}
    return _affinity("podAffinity", "preferredDuringSchedulingIgnoredDuringExecution", weighted)


def _affinity(kind: str, strength: str, term: Json) -> Json:
    return {"affinity": {kind: {strength: [term]}}}


HOSTILE = "plain beside hostile pods"
HOSTILE_PODS = 10

WORKLOADS: dict[str, Callable[[int], Json]] = {
    "plain": lambda _: {},
    "zone spread": _spread,
    "required anti-affinity": _apart,
    "required affinity": _together,
    "preferred affinity": _rather_together,
    HOSTILE: lambda _: {},
    "PodGroups of 3": lambda _: {},
    "PodGroups of 1,000": lambda _: {},
}
"""Further fields of the spec of the pod with this number, by workload name."""


GANG_SIZES: Mapping[str, int] = {"PodGroups of 3": 3, "PodGroups of 1,000": 1000}
"""By workload, how many pods a PodGroup has; all of them start together."""


def _hostile() -> Json:
    spec: Json = HOSTILE_SPECS["anti-affinity on its own topology keys"](TERMS)
    return {**spec, "schedulerName": "other"}


PLACED_BEFORE: Mapping[str, Callable[[], Json]] = {HOSTILE: _hostile}
"""By workload, the spec of ten pods that are on nodes before the others come. 100 pods of such a workload are many."""
