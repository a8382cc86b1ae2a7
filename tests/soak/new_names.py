"""A cluster in which every name is new: of namespaces, nodes, pods, controllers, claims, and of all that pods name.

Each round creates objects with other names, changes some and deletes all of them. What the scheduler keeps for a name that
is gone shows as a container whose entries grow with the rounds. Caches have small bounds, so that they are full early.
"""

import asyncio
import gc
import re
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import orjson

from policysched.cluster.change_log import ChangeLog
from policysched.cluster.devices import cel_selectors, search_outcomes, selector_results
from policysched.evaluate.columns import namespace_scopes, term_table
from policysched.evaluate.plan import gang_terms
from policysched.kube.client.transport import ApiRequest, ApiResponse
from policysched.kube.decode import pod_resources
from policysched.kube.watch import known_objects
from policysched.sandbox.apiserver.kinds import POD_GROUP_KINDS
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.kubelet import Kubelet
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler import group_problems, pod_group_events
from tests.simulation.churn import Churn
from tests.simulation.policy_texts import BAD, GOOD, SCHEDULERS
from tests.simulation.replica import POLICIES
from tests.simulation.team_texts import TEAM_TEXTS
from tests.simulation.virtual_time import run_virtual
from tests.soak.held_memory import roots_of, walk
from tests.soak.world import BOUNDS, EPOCH_S, Soak, expire_events, quiet, write_policies

Json = dict[str, Any]

FORGOTTEN_AFTER_S = 1_900.0
"""What is remembered for a time is forgotten by then."""
MORE_BOUNDS: tuple[tuple[Any, str, int], ...] = (
    (known_objects, "TOMBSTONES_MAX", 4),
    (pod_resources, "_CACHE_MAX", 16),
    (search_outcomes, "_SPECS_CACHED_MIN", 1),
    (search_outcomes, "_SPECS_CACHED_MAX", 4),
    (selector_results, "SELECTORS_CACHED_MAX", 4),
    (cel_selectors, "COMPILED_MAX", 4),
    (group_problems, "_LOGGED_MAX", 4),
    (pod_group_events, "_NAMESPACES_MAX", 4),
    (gang_terms, "_KEPT_GROUPS_MAX", 4),
    (term_table, "_KINDS_MIN", 0),
    (namespace_scopes, "_GONE_MIN", 0),
)
_REFUSALS = (
    (re.compile(r"/api/v1/namespaces/[^/]+/pods/refused-[a-z]+-\d+/binding"), 403),
    (re.compile(r"/api/v1/namespaces/[^/]+/pods/failing-\d+/binding"), 500),
    (re.compile(r"/api/v1/namespaces/[^/]+/pods/kept-\d+(/eviction)?"), 403),
)
"""What webhooks deny, or fail at: some binds, and evictions of a pod."""

THETA = """\
policy theta version 1
input kind: string = pod.labels["kind"] default "none"
quota space by pod.namespace {
  "somewhere" { cpu = 3 borrow 1 }
  others { cpu = 500m borrow any, pods = 3 }
}
state trust: float {
  key = kind
  on = any
  when = container.terminated
  value = 1.0
  keep = 50%
  start = 0.0
}
queue by pod.quota_share.space, namespace.share.cpu, pod.created asc
include kube_default
filter few require count(pods where other.namespace == pod.namespace and other.labels["kind"] == kind) < 50
  says "no room for {kind}"
filter trusted require trust < 0.99 says "no trust in {kind}"
canary strict 50% by pod.owner.name guard pending < 20% for 30s else rollback {
  filter nowhere require node.labels["nowhere"] else "x" != "y"
}
preemption never
"""
"""Beside the policies of the simulation: what is counted and kept by names of namespaces, labels and owners."""


class RefusingTransport(MemoryTransport):
    async def request(self, request: ApiRequest) -> ApiResponse:
        code = next((code for path, code in _REFUSALS if path.fullmatch(request.path)), 0)
        if not code or request.method not in ("POST", "DELETE"):
            return await super().request(request)
        status = {"kind": "Status", "status": "Failure", "message": "admission webhook denied the request"}
        return ApiResponse(code, orjson.dumps({**status, "code": code}))


def entries_after(rounds: int, readings: int = 3) -> list[Counter[str]]:
    """How many entries all containers of the scheduler have, by path, each time after so many rounds."""
    found: list[Counter[str]] = []
    with ExitStack() as stack:
        stack.enter_context(quiet())
        for module, name, most in (*BOUNDS, *MORE_BOUNDS):
            stack.enter_context(patch.object(module, name, most))
        stack.enter_context(patch.dict(ChangeLog.record.__kwdefaults__, {"keys_max": 16}))
        run_virtual(_read(rounds, readings, found))
    return found


def grown(found: list[Counter[str]], rounds: int) -> list[str]:
    """The containers that have more entries with each reading, at least one for nearly each round."""
    return [
        f"{path}: {[entries[path] for entries in found]}"
        for path in found[-1]
        if all(after[path] - before[path] > 0.7 * rounds for before, after in pairwise(found))
    ]


async def _read(rounds: int, readings: int, found: list[Counter[str]]) -> None:
    loop, soak = asyncio.get_running_loop(), Soak(span_s=0.0)
    server = ApiServer(
        now=lambda: EPOCH_S + loop.time(), history_changes_max=500, extra_kinds=POD_GROUP_KINDS[:2]
    )
    kubelet = Kubelet(LocalClient(server), start_s=0.3, stop_s=0.5)
    churn = Churn(
        server,
        soak.random_stream("churn"),
        schedulers=SCHEDULERS,
        good=GOOD,
        bad=BAD,
        config_map=(POLICIES.namespace, POLICIES.name),
        kubelet=kubelet,
        pods_max=0,
        small_nodes=False,
        log=lambda _: None,
    )
    churn.populate(nodes=5, pods=0)
    teams = {key: texts[0] for key, texts in TEAM_TEXTS.items()}
    write_policies(server, {**churn.policies(), **teams, "theta.policy": THETA})
    app, telemetry = soak.app(server, RefusingTransport)
    tasks = [asyncio.create_task(task) for task in (kubelet.run(), app.run(), expire_events(server))]
    try:
        names = NewNames(LocalClient(server))
        for _ in range(readings):
            for _ in range(rounds):
                await names.play_round()
            await asyncio.sleep(FORGOTTEN_AFTER_S)
            assert not any(task.done() for task in tasks), tasks
            assert not app.scheduler.cache.pods, "all pods are deleted"
            counts = app.binder.counts
            assert min(counts.confirmed, counts.refused, counts.lost) > 0, counts
            telemetry.registry.render()
            found.append(_entries(app))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _entries(app: object) -> Counter[str]:
    gc.collect()
    counts: Counter[str] = Counter()
    for path, obj in walk(roots_of(app)):
        if isinstance(obj, dict | list | set | deque):
            counts[path] += len(obj)
    return counts


class NewNames:
    def __init__(self, local: LocalClient) -> None:
        self._local = local
        self._round = 0

    async def play_round(self) -> None:
        self._round += 1
        number, namespace = self._round, f"space-{self._round}"
        created = [
            (plural, self._local.create(plural, body["metadata"].get("namespace", ""), body))
            for plural, body in objects(number, namespace)
        ]
        await asyncio.sleep(12.0)
        for plural, obj in created:
            if plural in ("namespaces", "pods"):
                self._local.update(plural, obj, lambda obj: _relabelled(obj, f"late-{number}"))
        await asyncio.sleep(8.0)
        for plural, obj in reversed(created):
            self._local.delete(plural, obj, grace_period_s=0)
        for obj in self._local.list("resourceclaims", namespace):
            self._local.delete("resourceclaims", obj)
        self._local.update("namespaces", created[0][1], _finalized, subresource="finalize")
        await asyncio.sleep(3.0)


def _relabelled(obj: Json, label: str) -> Json:
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), label: "1"}}}


def _finalized(namespace: Json) -> Json:
    return {**namespace, "spec": {**namespace["spec"], "finalizers": []}}


def objects(n: int, namespace: str) -> list[tuple[str, Json]]:
    """The objects of a round with their resources, the namespace first."""
    labels = {"app": f"app-{n}"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    workload = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    device = {"cel": {"expression": f'device.driver == "driver-{n}"'}}
    request = {"name": "r", "exactly": {"deviceClassName": f"devices-{n}"}}
    storage_class = {"provisioner": f"disks-{n}.example.com", "volumeBindingMode": "WaitForFirstConsumer"}

    def namespaced(plural: str, name: str, **fields: Any) -> tuple[str, Json]:
        return plural, {"metadata": {"name": f"{name}-{n}", "namespace": namespace}, **fields}

    def claim(name: str, storage_class: str) -> tuple[str, Json]:
        size = {"requests": {"storage": "1Gi"}}
        spec = {"storageClassName": storage_class, "accessModes": ["ReadWriteOnce"], "resources": size}
        return namespaced("persistentvolumeclaims", name, spec=spec)

    return [
        (
            "namespaces",
            {"metadata": {"name": namespace, "labels": {f"team-{n}": f"t-{n}", "tier": f"tier-{n}"}}},
        ),
        ("nodes", node(n)),
        ("storageclasses", {"metadata": {"name": f"disks-{n}"}, **storage_class}),
        ("deviceclasses", {"metadata": {"name": f"devices-{n}"}, "spec": {"selectors": [device]}}),
        namespaced("services", "web", spec={"selector": labels, "ports": [{"port": 80}]}),
        namespaced("replicasets", "web", spec=workload),
        namespaced("statefulsets", "web", spec={**workload, "serviceName": f"web-{n}"}),
        namespaced("replicationcontrollers", "web", spec={**workload, "selector": labels}),
        namespaced(
            "poddisruptionbudgets", "web", spec={"minAvailable": 1, "selector": {"matchLabels": labels}}
        ),
        namespaced("podgroups", "group", spec={"schedulingPolicy": {"gang": {"minCount": 2}}}),
        namespaced("resourceclaims", "devices", spec={"devices": {"requests": [request]}}),
        claim("late", f"disks-{n}"),
        claim("lost", f"no-disks-{n}"),
        claim("standard", "standard"),
        *[("pods", pod(n, namespace, *each)) for each in pods(n, namespace)],
    ]


def node(n: int) -> Json:
    labels = {"zone": f"zone-{n}", "kubernetes.io/hostname": f"machine-{n}", f"key-{n}": "v"}
    resources = {"cpu": "2", "memory": "4Gi", "pods": "50", f"example.com/device-{n}": "4"}
    conditions = [{"type": "Ready", "status": "True"}, {"type": f"Condition{n}", "status": "True"}]
    return {
        "metadata": {"name": f"machine-{n}", "labels": labels, "annotations": {f"note-{n}": "1"}},
        "spec": {"taints": [{"key": f"taint-{n}", "effect": "PreferNoSchedule"}]},
        "status": {
            "allocatable": resources,
            "images": [{"names": [f"image-{n}:1"], "sizeBytes": 10_000_000}],
            "conditions": conditions,
        },
    }


def pod(
    n: int,
    namespace: str,
    name: str,
    scheduler: str,
    spec: Json,
    requests: Mapping[str, str],
    labels: Mapping[str, str],
) -> Json:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"web-{n}", "uid": f"uid-web-{n}"}
    limits = {resource: amount for resource, amount in requests.items() if "/" in resource}
    return {
        "metadata": {
            "name": f"{name}-{n}",
            "namespace": namespace,
            "labels": {"app": f"app-{n}", f"key-{n}": f"value-{n}", "rank": str(n), **labels},
            "annotations": {f"note-{n}": "1"},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {
            "schedulerName": scheduler,
            "containers": [
                {
                    "name": f"c-{n}",
                    "image": f"image-{n}:1",
                    "resources": {"requests": {"cpu": "100m", **requests}, "limits": limits},
                    "ports": [{"containerPort": 80, "hostPort": 1_000 + n}] if name == "port" else [],
                }
            ],
            **spec,
        },
    }


_Pod = tuple[str, str, Json, Mapping[str, str], Mapping[str, str]]


def pods(n: int, namespace: str) -> list[_Pod]:
    """Name, schedulerName, spec, requests and labels of each: those that fit, and those that do not."""
    key, selector = f"key-{n}", {"matchLabels": {f"key-{n}": f"value-{n}"}}
    there = {"nodeSelector": {key: "v"}}
    near = {
        "topologyKey": key,
        "labelSelector": selector,
        "namespaceSelector": {"matchLabels": {f"team-{n}": f"t-{n}"}},
    }
    apart = {"topologyKey": key, "labelSelector": selector, "namespaces": [namespace, f"gone-{n}"]}
    spread = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector,
    }

    def volume(**source: Any) -> Json:
        return {"volumes": [{"name": "v", **source}]}

    def claimed(name: str) -> Json:
        return volume(persistentVolumeClaim={"claimName": f"{name}-{n}"})

    specs: dict[str, Json] = {
        "plain": {},
        "selected": there,
        "unselected": {"nodeSelector": {f"nowhere-{n}": "v"}},
        "near": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}},
        "apart": {
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
        },
        "spread": {"topologySpreadConstraints": [spread]},
        "tolerant": {"tolerations": [{"key": f"taint-{n}", "operator": "Exists"}]},
        "port": {},
        **{name: claimed(name) for name in ("late", "lost", "standard", "absent")},
        "disk": volume(gcePersistentDisk={"pdName": f"disk-{n}"}),
        "devices": {"resourceClaims": [{"name": "d", "resourceClaimName": f"devices-{n}"}]},
        "no-devices": {"resourceClaims": [{"name": "d", "resourceClaimName": f"absent-{n}"}]},
        "gated": {"schedulingGates": [{"name": f"example.com/gate-{n}"}]},
        "refused-alone": {},
        "failing": {},
        "ghost": {"nodeName": f"ghost-{n}"},
    }
    group = {"schedulingGroup": {"podGroupName": f"group-{n}"}}
    no_group = {"schedulingGroup": {"podGroupName": f"absent-{n}"}}
    gang, lonely = {"group": f"gang-{n}", "least": "2"}, {"group": f"lonely-{n}", "least": "2"}
    team, other_team = {"org": "x", "team": f"team-{n}"}, {"org": f"org-{n}", "team": f"team-{n}"}
    kind, cpu = {"kind": f"kind-{n}"}, {"cpu": "20"}
    return [
        *[
            (name, ("beta", "alpha", "epsilon")[at % 3], spec, {}, {})
            for at, (name, spec) in enumerate(specs.items())
        ],
        ("device", "beta", {}, {f"example.com/device-{n}": "1"}, {}),
        ("nothing", "beta", {}, {f"example.com/nothing-{n}": "1"}, {}),
        ("odd", "beta", {"nodeName": f"machine-{n}"}, {f"example.com/odd-{n}": "1"}, {}),
        ("huge", "beta", {"nodeName": f"machine-{n}"}, cpu, {}),
        ("kept", "beta", there, {"cpu": "1600m"}, {}),
        ("urgent", "beta", {**there, "priorityClassName": "system-node-critical"}, {"cpu": "1500m"}, {}),
        ("strange", f"unknown-{n}", {}, {}, {}),
        *[(f"member{at}", "gamma", {}, {}, gang) for at in range(2)],
        *[(f"gate{at}", "delta", {}, {}, gang) for at in range(2)],
        ("lonely", "gamma", {}, {}, lonely),
        ("lonely-gate", "delta", {}, {}, lonely),
        ("quota", "zeta", {}, {}, team),
        ("no-quota", "zeta", {}, {}, other_team),
        ("quota-member", "zeta", {}, {}, {**team, **gang}),
        ("refused-member", "zeta", {}, {}, {**team, **gang}),
        ("kind", "theta", {}, {}, kind),
        ("large-kind", "theta", {}, cpu, kind),
        *[(f"grouped{at}", "eta", group, {}, {}) for at in range(2)],
        ("no-group", "eta", no_group, {}, {}),
    ]
