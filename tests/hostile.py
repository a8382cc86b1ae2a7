"""Pods of a tenant that wants to slow the scheduler: each about as large as the API server takes (1.5 MiB of JSON)."""

from collections.abc import Callable, Mapping
from typing import Any

from policysched.model.pods import Pod
from tests.builders import pod

TERMS = 5_000
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
EVERYBODY: dict[str, Any] = {"labelSelector": {}, "namespaceSelector": {}}


def not_in(number: int) -> dict[str, Any]:
    """Selects nearly every pod of the cluster, each number with another selector."""
    requirement = {"key": "app", "operator": "NotIn", "values": [f"none-{number}"]}
    return {"labelSelector": {"matchExpressions": [requirement]}, "namespaceSelector": {}}


def selects_nothing(number: int) -> dict[str, Any]:
    """Selects no pod, which no index of label values can tell."""
    requirements = [
        {"key": "app", "operator": "DoesNotExist"},
        {"key": f"none-{number}", "operator": "Exists"},
    ]
    return {"labelSelector": {"matchExpressions": requirements}, "namespaceSelector": {}}


def anti_affinity(terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {REQUIRED: terms}}}


def hostile_pod(kind: str, name: str = "hostile", *, count: int = TERMS, **more: Any) -> Pod:
    """`kind`: a key of `HOSTILE_SPECS`."""
    return pod(name, namespace="tenant", spec=HOSTILE_SPECS[kind](count), **more)


def _own_keys(count: int) -> dict[str, Any]:
    return anti_affinity([{**EVERYBODY, "topologyKey": f"tenant.example/key-{i}"} for i in range(count)])


def _one_key(count: int) -> dict[str, Any]:
    return anti_affinity([{**selects_nothing(i), "topologyKey": HOST} for i in range(count)])


def _preferred(count: int) -> dict[str, Any]:
    terms = [
        {"weight": 1 + i % 100, "podAffinityTerm": {**not_in(i), "topologyKey": ZONE}} for i in range(count)
    ]
    return {"affinity": {"podAffinity": {PREFERRED: terms}}}


def _ports(count: int) -> dict[str, Any]:
    ports = [{"containerPort": 10_000 + i, "hostPort": 10_000 + i} for i in range(count)]
    return {"containers": [{"name": "c", "image": "app:1", "ports": ports}]}


def _resources(count: int) -> dict[str, Any]:
    requests = {f"tenant.example/resource-{i}": "1" for i in range(count)}
    return {"containers": [{"name": "c", "image": "app:1", "resources": {"requests": requests}}]}


def _tolerations(count: int) -> dict[str, Any]:
    return {"tolerations": [{"key": f"key-{i}", "operator": "Exists"} for i in range(10 * count)]}


def _spread(when: str) -> Callable[[int], dict[str, Any]]:
    def spec(count: int) -> dict[str, Any]:
        constraint = {"maxSkew": 1, "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": "a"}}}
        return {
            "topologySpreadConstraints": [
                {**constraint, "topologyKey": f"tenant.example/key-{i}"} for i in range(count)
            ]
        }

    return spec


def _node_affinity(count: int) -> dict[str, Any]:
    terms = [
        {"weight": 1, "preference": {"matchExpressions": [{"key": f"key-{i}", "operator": "Exists"}]}}
        for i in range(count)
    ]
    return {"affinity": {"nodeAffinity": {PREFERRED: terms}}}


def _claims(count: int) -> dict[str, Any]:
    return {
        "volumes": [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": f"c{i}"}} for i in range(count)]
    }


def _disks(count: int) -> dict[str, Any]:
    return {"volumes": [{"name": f"v{i}", "gcePersistentDisk": {"pdName": f"d{i}"}} for i in range(count)]}


HOSTILE_SPECS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "anti-affinity on its own topology keys": _own_keys,
    "anti-affinity by host that selects nothing": _one_key,
    "preferred affinity by zone": _preferred,
    "host ports": _ports,
    "tolerations": _tolerations,
    "resources": _resources,
    "hard spread constraints": _spread("DoNotSchedule"),
    "soft spread constraints": _spread("ScheduleAnyway"),
    "preferred node affinity": _node_affinity,
    "volume claims": _claims,
    "disks": _disks,
}
"""By kind, the spec with so many items; ten times as many tolerations, which are shorter."""
