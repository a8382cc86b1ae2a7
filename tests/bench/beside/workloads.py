"""Workloads as in kube-scheduler's own benchmarks: what pods have in addition to requests of 100m
and 64 MiB.

Pods with the same number modulo `GROUPS` form a group for affinity, anti-affinity and spreading.
"""

from collections.abc import Callable

from tests.controlplane.api import Json

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


WORKLOADS: dict[str, Callable[[int], Json]] = {
    "plain": lambda _: {},
    "zone spread": _spread,
    "required anti-affinity": _apart,
    "required affinity": _together,
    "preferred affinity": _rather_together,
}
"""Further fields of the spec of the pod with this number, by workload name."""
