"""Invariants that hold after every change, recomputed from the server's objects.

The requests of our pods fit on their node, and no host port is used twice. Our pods are bound and
evicted only by our decisions; victims have a lower priority, satisfy the policy and are not
protected by the settings. A bound pod is never reported as unschedulable. Pods of other schedulers are not changed.

Only our own pods count, because another scheduler can fill a node between our decision and our
bind. A node that shrinks, or returns smaller, counts with its largest size, because binds may have
been in flight.
"""

from collections.abc import Callable, Collection
from typing import Any

from policysched.cluster.node_usage import NodeUsage
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.pods import decode_pod
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import StoreChange
from policysched.sandbox.local_client import LocalClient
from policysched.scheduler.commands import Bind, Evict, Prebind
from tests.simulation.churn import OTHER_SCHEDULER, PROTECTED_LABEL

Json = dict[str, Any]
GANG_FAILED_MESSAGE = "recreate its pods to retry"
"""In the condition of a member of a failed gang (`on_timeout = fail`)."""

GangKey = tuple[str, str, str]
"""schedulerName, namespace and the label `group`."""


class SafetyChecker:
    """`own_schedulers` are the schedulerNames of our policies. `fail` gets a message for each violation. No
    gang fails within `gang_timeout_s`. No policy evicts pods with the label `keep`; only those in
    `evicts_anybody` evict pods of other schedulers, and those in `reclaims` take quota back from pods of any priority. `served_namespaces`: those that the settings let our
    policies serve (None: all).
    """

    def __init__(
        self,
        server: ApiServer,
        own_schedulers: Collection[str],
        fail: Callable[[str], None],
        *,
        gang_timeout_s: float = 0.0,
        evicts_anybody: Collection[str] = (),
        reclaims: Collection[str] = (),
    ) -> None:
        self._local = LocalClient(server)
        self._gang_timeout_s = gang_timeout_s
        self._cross_scheduler_preemptors = evicts_anybody
        self.reclaiming_schedulers = reclaims
        self._own_schedulers = own_schedulers
        self._fail = fail
        self._allocatable_max: dict[str, dict[str, int]] = {}
        self._pods: dict[str, Pod] = {}
        self._decided_nodes: dict[str, dict[str, str]] = {}
        self._last_decider = ""
        self._victims: set[str] = set()
        self._gang_since_s: dict[GangKey, float] = {}
        self.bound_at_s: dict[PodUid, float] = {}
        self.served_namespaces: Collection[str] | None = None
        self.disturbed_gangs: set[GangKey] = set()
        self.refused_gangs: set[GangKey] = set()
        self._local.listen("nodes", self._node_changed)
        self._local.listen("pods", self._pod_changed)

    def record_decision(self, decision: Bind | Prebind, by: str) -> None:
        """Called for each decision with the identity of the process."""
        self._decided_nodes.setdefault(decision.uid, {})[decision.node] = self._last_decider = by

    def record_eviction(self, evict: Evict) -> None:
        """Called for each preemption decision."""
        pods = {obj["metadata"]["uid"]: obj for obj in self._local.list("pods")}
        preemptor = pods.get(evict.uid)
        for victim in evict.victims:
            self._victims.add(victim.uid)
            obj = pods.get(victim.uid)
            if obj is None or preemptor is None:
                continue
            prefix = f"{_name(obj)} is a victim of {_name(preemptor)}"
            of_own_gang = evict.node is None  # after a refused bind, whatever `preemption` says
            reclaims = (
                preemptor["spec"]["schedulerName"] in self.reclaiming_schedulers
            )  # see the quota checker
            if not of_own_gang and not reclaims and obj["spec"]["priority"] >= preemptor["spec"]["priority"]:
                self._fail(f"{prefix}, whose priority is not higher")
            scheduler = preemptor["spec"]["schedulerName"]
            if (
                scheduler not in self._cross_scheduler_preemptors
                and obj["spec"]["schedulerName"] != scheduler
            ):
                self._fail(f"{prefix} and has scheduler {obj['spec']['schedulerName']}")
            if not of_own_gang and PROTECTED_LABEL in (obj["metadata"].get("labels") or {}):
                self._fail(f"{prefix}, and its label {PROTECTED_LABEL} protects it")
            if _is_protected_by_default(obj):
                self._fail(f"{prefix}, which the settings protect")

    def mark_disturbed(self, pod: Pod) -> None:
        """Exempt the pod's gang: a deletion or a failed process can leave it incomplete."""
        if "group" in pod.labels:
            self.disturbed_gangs.add((pod.scheduler, pod.namespace, pod.labels["group"]))

    def note_refused_bind(self, pod: Pod) -> None:
        """The pod's bind was refused, and with `on_bind_failure = keep` its gang may stay incomplete."""
        if "group" in pod.labels:
            self.refused_gangs.add((pod.scheduler, pod.namespace, pod.labels["group"]))

    def _node_changed(self, change: StoreChange) -> None:
        if change.type == "DELETED":
            return
        node = wire.decode_node(change.entry.obj)
        most = self._allocatable_max.setdefault(node.name, {})
        for resource, amount in node.allocatable.items():
            most[resource] = max(most.get(resource, 0), amount)

    def _pod_changed(self, change: StoreChange) -> None:
        obj = change.entry.obj
        if is_preempted(obj) and obj["metadata"]["uid"] not in self._victims:
            self._fail(f"{_name(obj)} was evicted without a decision")
        if obj["spec"]["schedulerName"] not in self._own_schedulers:
            self._check_foreign_pod(change)
            return
        self._check_gang_timeout(obj)
        if (
            change.type == "DELETED"
            or obj["metadata"].get("deletionTimestamp")
            or obj["status"].get("phase") in ("Succeeded", "Failed")
        ):
            self.mark_disturbed(self._pod(obj))
        node = obj["spec"].get("nodeName")
        if change.type != "MODIFIED" or not node:
            return
        if change.previous is not None and not change.previous.obj["spec"].get("nodeName"):
            self._check_bind(obj, node)
        if scheduled_condition(obj).get("status") != "True":
            self._fail(f"{_name(obj)} is on {node} and its PodScheduled is {scheduled_condition(obj)}")

    def _check_gang_timeout(self, obj: Json) -> None:
        """A gang fails only after its timeout, counted from its first member."""
        labels = obj["metadata"].get("labels") or {}
        if "group" not in labels:
            return
        gang = (obj["spec"]["schedulerName"], obj["metadata"]["namespace"], labels["group"])
        age_s = self._local.now() - self._gang_since_s.setdefault(gang, self._local.now())
        if (
            GANG_FAILED_MESSAGE in scheduled_condition(obj).get("message", "")
            and age_s < self._gang_timeout_s
        ):
            self._fail(f"{_name(obj)} reports its gang as failed after {age_s:.1f} s")

    def _check_bind(self, obj: Json, node: str) -> None:
        uid = obj["metadata"]["uid"]
        self.bound_at_s[uid] = self._local.now()
        namespace = obj["metadata"]["namespace"]
        if self.served_namespaces is not None and namespace not in self.served_namespaces:
            self._fail(f"{_name(obj)} is bound, and no policy serves namespace {namespace}")
        ordered = self._decided_nodes.get(uid, {})
        if node not in ordered:
            self._fail(f"{_name(obj)} is on {node}, our decision was {sorted(ordered) or 'nothing'}")
        elif ordered[node] != self._last_decider:
            self._fail(
                f"{_name(obj)} is on {node} by {ordered[node]}, after a decision of {self._last_decider}"
            )
        usage = NodeUsage()
        for other in self._local.list("pods"):
            finished = other["status"].get("phase") in ("Succeeded", "Failed")
            is_own = other["spec"]["schedulerName"] in self._own_schedulers
            if is_own and not finished and other["spec"].get("nodeName") == node:
                usage.add(self._pod(other))
        self._check_capacity(NodeName(node), usage)

    def _check_capacity(self, node: NodeName, usage: NodeUsage) -> None:
        has = self._allocatable_max.get(node)
        if has is None:
            self._fail(f"a pod is bound to {node}, which never existed")
            return
        wanted = {**usage.requested, "pods": len(usage.pods)}
        for resource, amount in wanted.items():
            if amount > has.get(resource, 0):
                self._fail(f"{node} holds {amount} of {resource} in our pods and has {has.get(resource, 0)}")
        ports = [port for pod in usage.pods.values() for port in pod.host_ports]
        if len(set(ports)) < len(ports):
            self._fail(f"{node} has a host port twice: {ports}")

    def _check_foreign_pod(self, change: StoreChange) -> None:
        obj = change.entry.obj
        if obj["spec"].get("nodeName") and obj["spec"]["schedulerName"] != OTHER_SCHEDULER:
            self._fail(f"{_name(obj)} has an unknown scheduler and was bound to {obj['spec']['nodeName']}")
        condition = scheduled_condition(obj)
        if condition.get("status") == "False" and condition.get("reason") != "SchedulingGated":
            self._fail(f"{_name(obj)} has an unknown scheduler and its condition is {condition}")

    def _pod(self, obj: Json) -> Pod:
        uid = obj["metadata"]["uid"]
        pod = self._pods.get(uid)
        if pod is None:
            pod = self._pods[uid] = decode_pod(obj).pod
        return pod


def scheduled_condition(obj: Json) -> Json:
    """The PodScheduled condition of a pod; empty if it has none."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})


def _is_protected_by_default(obj: Json) -> bool:
    """Whether the pod is in kube-system, a static pod or a DaemonSet's."""
    metadata = obj["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return (
        metadata["namespace"] == "kube-system"
        or "kubernetes.io/config.mirror" in (metadata.get("annotations") or {})
        or any(owner.get("controller") and owner["kind"] == "DaemonSet" for owner in owners)
    )


def is_preempted(obj: Json) -> bool:
    """Whether a scheduler marked the pod as a preemption victim."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(condition.get("reason") == "PreemptionByScheduler" for condition in conditions)


def _name(obj: Json) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
