"""What must hold after every change of the server's objects, recounted from them alone.

No node holds more of our pods than it has room for, and no port twice; a pod of ours is on a node only because we said
so, and ends for another only because we said so, who has a higher priority and whose policy allows it; a bound pod is
never again said to be unschedulable; pods that are none of ours stay as they are.

Room is counted among our own pods, since another scheduler may fill a node between our decision and our bind. A node
that is made smaller, or comes back smaller, counts with the most that it ever had, since pods may have been on the road.
"""

from collections.abc import Callable, Collection
from typing import Any

from policysched.cluster.usage import Usage
from policysched.kube.decode import pods as wire
from policysched.model.objects import NodeName, Pod, PodUid
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import Change
from policysched.sandbox.local import Local
from policysched.scheduler.commands import Bind, Evict
from tests.simulation.churn import SPARED, STRANGER

Json = dict[str, Any]
FAILED_FOR_GOOD = "recreate its pods to try again"
"""What a member of a gang says whose policy does not try again (`on_timeout = fail`)."""

GangName = tuple[str, str, str]
"""schedulerName, namespace and the label `group`."""


class Watchman:
    """`ours` are the schedulerNames of our policies. `fail` gets a sentence for each thing that must not be.
    `gang_timeout_s`: no gang fails for good before that. No policy lets pods be evicted that have the label `keep`,
    and only those of `evicts_anybody` pods of another schedulerName."""

    def __init__(
        self,
        server: ApiServer,
        ours: Collection[str],
        fail: Callable[[str], None],
        *,
        gang_timeout_s: float = 0.0,
        evicts_anybody: Collection[str] = (),
    ) -> None:
        self._local = Local(server)
        self._patience_s = gang_timeout_s
        self._evicts_anybody = evicts_anybody
        self._ours = ours
        self._fail = fail
        self._most: dict[str, dict[str, int]] = {}
        self._pods: dict[str, Pod] = {}
        self._ordered: dict[str, dict[str, str]] = {}
        self._decider = ""
        self._told_to_end: set[str] = set()
        self._gang_since_s: dict[GangName, float] = {}
        self.landed_s: dict[PodUid, float] = {}
        self.disturbed: set[GangName] = set()
        self._local.listen("nodes", self._node_changed)
        self._local.listen("pods", self._pod_changed)

    def ordered(self, bind: Bind, by: str) -> None:
        """One of us decided this, in the life of that name."""
        self._ordered.setdefault(bind.uid, {})[bind.node] = self._decider = by

    def evicting(self, evict: Evict) -> None:
        """One of us decided this."""
        pods = {obj["metadata"]["uid"]: obj for obj in self._local.list("pods")}
        preemptor = pods.get(evict.uid)
        for victim in evict.victims:
            self._told_to_end.add(victim.uid)
            obj = pods.get(victim.uid)
            if obj is None or preemptor is None:
                continue
            who = f"{_name(obj)} is to end for {_name(preemptor)}"
            if obj["spec"]["priority"] >= preemptor["spec"]["priority"]:
                self._fail(f"{who}, whose priority is not higher")
            scheduler = preemptor["spec"]["schedulerName"]
            if scheduler not in self._evicts_anybody and obj["spec"]["schedulerName"] != scheduler:
                self._fail(f"{who} and is of {obj['spec']['schedulerName']}")
            if SPARED in (obj["metadata"].get("labels") or {}):
                self._fail(f"{who}, and its label {SPARED} forbids that")

    def disturb(self, pod: Pod) -> None:
        """Something happened to the pod, or to who was binding it, that may leave its gang incomplete."""
        if "group" in pod.labels:
            self.disturbed.add((pod.scheduler, pod.namespace, pod.labels["group"]))

    def _node_changed(self, change: Change) -> None:
        if change.type == "DELETED":
            return
        node = wire.node(change.entry.obj)
        most = self._most.setdefault(node.name, {})
        for resource, amount in node.allocatable.items():
            most[resource] = max(most.get(resource, 0), amount)

    def _pod_changed(self, change: Change) -> None:
        obj = change.entry.obj
        if preempted(obj) and obj["metadata"]["uid"] not in self._told_to_end:
            self._fail(f"{_name(obj)} was evicted, and we decided nothing of the kind")
        if obj["spec"]["schedulerName"] not in self._ours:
            self._left_alone(change)
            return
        self._see_to_gang(obj)
        if (
            change.type == "DELETED"
            or obj["metadata"].get("deletionTimestamp")
            or obj["status"].get("phase") in ("Succeeded", "Failed")
        ):
            self.disturb(self._pod(obj))
        node = obj["spec"].get("nodeName")
        if change.type != "MODIFIED" or not node:
            return
        if change.before is not None and not change.before.obj["spec"].get("nodeName"):
            self._landed(obj, node)
        if scheduled_condition(obj).get("status") != "True":
            self._fail(f"{_name(obj)} is on {node} and its PodScheduled is {scheduled_condition(obj)}")

    def _see_to_gang(self, obj: Json) -> None:
        """A gang that fails for good has had its time, counted from its first member ever."""
        labels = obj["metadata"].get("labels") or {}
        if "group" not in labels:
            return
        gang = (obj["spec"]["schedulerName"], obj["metadata"]["namespace"], labels["group"])
        age_s = self._local.now() - self._gang_since_s.setdefault(gang, self._local.now())
        if FAILED_FOR_GOOD in scheduled_condition(obj).get("message", "") and age_s < self._patience_s:
            self._fail(f"{_name(obj)} was told that its gang has failed for good after {age_s:.1f} s")

    def _landed(self, obj: Json, node: str) -> None:
        uid = obj["metadata"]["uid"]
        self.landed_s[uid] = self._local.now()
        ordered = self._ordered.get(uid, {})
        if node not in ordered:
            self._fail(f"{_name(obj)} is on {node}, we decided on {sorted(ordered) or 'nothing'}")
        elif ordered[node] != self._decider:
            self._fail(f"{_name(obj)} is on {node} by {ordered[node]}, after {self._decider} has decided")
        usage = Usage()
        for other in self._local.list("pods"):
            finished = other["status"].get("phase") in ("Succeeded", "Failed")
            ours = other["spec"]["schedulerName"] in self._ours
            if ours and not finished and other["spec"].get("nodeName") == node:
                usage.add(self._pod(other))
        self._recount(NodeName(node), usage)

    def _recount(self, node: NodeName, usage: Usage) -> None:
        has = self._most.get(node)
        if has is None:
            self._fail(f"a pod is bound to {node}, which never was")
            return
        wanted = {**usage.requested, "pods": len(usage.pods)}
        for resource, amount in wanted.items():
            if amount > has.get(resource, 0):
                self._fail(
                    f"{node} holds {amount} of {resource} in pods of ours and has {has.get(resource, 0)}"
                )
        ports = [port for pod in usage.pods.values() for port in pod.host_ports]
        if len(set(ports)) < len(ports):
            self._fail(f"{node} has a host port twice: {ports}")

    def _left_alone(self, change: Change) -> None:
        obj = change.entry.obj
        if obj["spec"].get("nodeName") and obj["spec"]["schedulerName"] != STRANGER:
            self._fail(f"{_name(obj)} is nobody's and was bound to {obj['spec']['nodeName']}")
        condition = scheduled_condition(obj)
        if condition.get("status") == "False" and condition.get("reason") != "SchedulingGated":
            self._fail(f"{_name(obj)} is not ours and was told {condition}")

    def _pod(self, obj: Json) -> Pod:
        uid = obj["metadata"]["uid"]
        found = self._pods.get(uid)
        if found is None:
            found = self._pods[uid] = wire.pod(obj).pod
        return found


def scheduled_condition(obj: Json) -> Json:
    """A pod's condition PodScheduled; empty where it has none."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def preempted(obj: Json) -> bool:
    """Whether a scheduler has marked the pod to end for another."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(one.get("reason") == "PreemptionByScheduler" for one in conditions)


def _name(obj: Json) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
