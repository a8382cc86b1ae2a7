"""Whatever wakes parked pods, eight times a second: the new pods of their namespace, which owes time, are bound all the same.

Forty unequal pods of one namespace fit nowhere, and an attempt for one takes 5 ms. They are parked so that every event can help
them. Each case is something that a tenant, or a program of the cluster, can do all the time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from policysched.cluster.metric_samples import MetricSamples
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pod_status import ContainerEvent
from policysched.model.pods import Pod
from policysched.scheduler import events as e
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.late_wake_ups import LateWakeUps
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from tests import devices, volumes
from tests.builders import finished, node, pending, placed, pod, rejected, service, too_little
from tests.scheduler.rig import Rig

POLICY = """\
policy test version 1
filter node_resources_fit
state reward: float {
  key = pod.labels["app"] else pod.name
  on = terminated
  value = 1.0
  keep = 50%
  start = 1.0
  most = 100
}
score learnt weight 1 higher reward normalize range(0, 1)
preemption never
"""
PARKED, EVENTS_A_SECOND, SECONDS = 40, 8, 6
PARKED_ATTEMPT_NS, OTHER_ATTEMPT_NS = 5_000_000, 200_000

Change = Callable[[Rig, int], list[e.Event]]
"""What the rig is told the next time."""


def other(name: str = "x", **more: Any) -> Pod:
    return pod(name, namespace="other", cpu="1", **more)


def uid(name: str) -> PodUid:
    return other(name).uid


def in_turns(*events: e.Event) -> Change:
    return lambda _, index: [events[index % len(events)]]


def node_in_turns(**changed: Any) -> Change:
    return in_turns(e.NodeUpdated(node("b", cpu="1", **changed)), e.NodeUpdated(node("b", cpu="1")))


def storage_in_turns(*objects: Any) -> Change:
    return in_turns(*map(e.StorageObjectUpdated, objects))


def device_in_turns(*objects: Any) -> Change:
    return in_turns(*map(e.DeviceObjectUpdated, objects))


def pods_of_a_job(_: Rig, index: int) -> list[e.Event]:
    """It ends, and is deleted later."""
    observed = finished(other(f"job-{index}"), "a")
    return [e.PodUpdated(observed), e.PodDeleted(uid(f"job-{index - 4}"))]


def nominated(_: Rig, index: int) -> list[e.Event]:
    """By another scheduler, to one node and the next."""
    at = NodeName("ab"[index % 2])
    return [e.PodUpdated(replace(pending(other(scheduler="else")), nominated_node=at))]


def readiness(_: Rig, index: int) -> list[e.Event]:
    observed = placed(other(), "a")
    return [e.PodUpdated(replace(observed, pod=replace(observed.pod, ready=bool(index % 2))))]


def state_fed(_: Rig, index: int) -> list[e.Event]:
    run = ContainerEvent("c", f"run-{index}", True, index, 1, "Error", 5 * SECOND_NS)
    return [e.PodUpdated(replace(placed(other(labels={"app": "x"}), "a"), container_events=(run,)))]


def refused_bind(rig: Rig, _: int) -> list[e.Event]:
    """A webhook of the namespace denies it."""
    binds = [bind for bind in rig.in_flight_binds() if bind.namespace == "other"]
    return [e.PodUpdated(pending(other())), *[e.BindRefused(bind.uid, "denied") for bind in binds]]


def kubelet_rejection(_: Rig, index: int) -> list[e.Event]:
    large, before = pod(f"r{index}", namespace="other", cpu="10"), uid(f"r{index - 1}")
    answer = rejected(large, "a", "OutOfcpu", too_little("cpu", 10_000, 45_000, 50_000))
    return [e.PodDeleted(before), e.PodUpdated(placed(large, "a")), e.PodUpdated(answer)]


def samples(rig: Rig, _: int) -> list[e.Event]:
    return [e.SamplesArrived("test", "load", MetricSamples({}, rig.now_ns))]


def attachments(_: Rig, index: int) -> list[e.Event]:
    """Of an inline volume, which is no PersistentVolume."""
    added = e.StorageObjectUpdated(volumes.attachment(f"t{index}", node="a", volume="inline"))
    return [added, e.StorageObjectDeleted("VolumeAttachment", "", f"t{index}")]


def device_claims(_: Rig, index: int) -> list[e.Event]:
    allocated = devices.claim("c", namespace="other", status=devices.given("g0"))
    return [
        e.DeviceObjectUpdated(replace(allocated, version=2 * index + 2)),
        e.DeviceObjectUpdated(devices.claim("c", namespace="other", version=2 * index + 3)),
    ]


CASES: dict[str, Change] = {
    "pods come and go": in_turns(e.PodUpdated(placed(other(), "a")), e.PodDeleted(uid("x"))),
    "pods of a job end and are deleted": pods_of_a_job,
    "a pod is relabelled": in_turns(*[e.PodUpdated(placed(other(labels={"l": v}), "a")) for v in "ab"]),
    "a pod is ready and not": readiness,
    "a pod is nominated": nominated,
    "a state is fed": state_fed,
    "a bind is refused": refused_bind,
    "a kubelet rejects pods": kubelet_rejection,
    "node annotations": node_in_turns(annotations={"load": "1"}),
    "node labels": node_in_turns(labels={"l": "1"}),
    "node allocatable": node_in_turns(memory="1Gi"),
    "node taints": node_in_turns(taints=["a=b:NoSchedule"]),
    "node conditions": node_in_turns(ready=False),
    "node images": node_in_turns(images={"app:1": 5}),
    "node features": node_in_turns(features=["f"]),
    "nodes come and go": in_turns(e.NodeUpdated(node("c", cpu="1")), e.NodeDeleted(NodeName("c"))),
    "node objects": in_turns(*[e.NodeObjectUpdated("nrt", NodeName("a"), text) for text in ("{}", "[]")]),
    "node objects come and go": in_turns(
        e.NodeObjectUpdated("nrt", NodeName("a"), "{}"), e.NodeObjectDeleted("nrt", NodeName("a"))
    ),
    "namespaces are relabelled": in_turns(
        *[e.NamespaceUpdated(Namespace("other", {"l": v}, {})) for v in "ab"]
    ),
    "namespaces come and go": in_turns(
        e.NamespaceUpdated(Namespace("other", {}, {})), e.NamespaceDeleted("other")
    ),
    "services": in_turns(*[e.SelectorOwnerUpdated(service(namespace="other", app=v)) for v in "ab"]),
    "free volumes": storage_in_turns(*[volumes.volume(labels={"l": v}) for v in "ab"]),
    "free volumes come and go": in_turns(
        e.StorageObjectUpdated(volumes.volume()), e.StorageObjectDeleted("PersistentVolume", "", "v")
    ),
    "claims of volumes": storage_in_turns(*[volumes.claim(size=size) for size in ("1Gi", "2Gi")]),
    "storage classes": storage_in_turns(*[volumes.storage_class(zones=(zone,)) for zone in "ab"]),
    "storage classes come and go": in_turns(
        e.StorageObjectUpdated(volumes.storage_class()), e.StorageObjectDeleted("StorageClass", "", "local")
    ),
    "CSI drivers": storage_in_turns(
        *[volumes.csi_driver(tracks_capacity=tracks) for tracks in (True, False)]
    ),
    "CSI nodes": storage_in_turns(*[volumes.csi_node(limits={"d": limit}) for limit in (1, 2)]),
    "CSI nodes come and go": in_turns(
        e.StorageObjectUpdated(volumes.csi_node(limits={"d": 1})), e.StorageObjectDeleted("CSINode", "", "a")
    ),
    "storage capacities": storage_in_turns(*[volumes.capacity(size=size) for size in ("1Gi", "2Gi")]),
    "storage capacities come and go": in_turns(
        e.StorageObjectUpdated(volumes.capacity()),
        e.StorageObjectDeleted("CSIStorageCapacity", "kube-system", "room"),
    ),
    "inline volumes are detached": attachments,
    "claims of devices": device_claims,
    "slices": device_in_turns(*[devices.device_slice("a", devices.gpu(name)) for name in ("g0", "g1")]),
    "slices come and go": in_turns(
        e.DeviceObjectUpdated(devices.device_slice("a", devices.gpu("g0"), name="s")),
        e.DeviceObjectDeleted("ResourceSlice", "", "s"),
    ),
    "device classes": device_in_turns(devices.device_class(), devices.device_class("gpu", "true")),
    "device classes come and go": in_turns(
        e.DeviceObjectUpdated(devices.device_class()), e.DeviceObjectDeleted("DeviceClass", "", "gpu")
    ),
    "samples": samples,
}


class ParkedForAll:
    """Forty pods that were tried, whose namespace owes time. `causes` are the events that reached the queue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, valid_ns: int | None = None) -> None:
        self.causes = set[ClusterEvent]()
        park, requeue = SchedulingQueue.park, SchedulingQueue.requeue

        def park_for_all(queue: SchedulingQueue, *of: Any, **more: Any) -> None:
            until = {} if valid_ns is None else {"valid_until_ns": more["now_ns"] + valid_ns}
            park(queue, *of, **{**more, **until, "requeue_events": frozenset(ClusterEvent)})

        def requeue_by_others(queue: SchedulingQueue, events: Any, *of: Any, **more: Any) -> None:
            """What the namespace does itself wakes its pods at once."""
            if more.get("cause") != "tenant":
                self.causes.update(events := tuple(events))
                requeue(queue, events, *of, **more)

        monkeypatch.setattr(SchedulingQueue, "park", park_for_all)
        monkeypatch.setattr(SchedulingQueue, "requeue", requeue_by_others)
        parked = [pod(f"parked-{index}", namespace="tenant", cpu=str(100 + index)) for index in range(PARKED)]
        self.rig = Rig(POLICY, node("a", cpu="50"), node("b", cpu="1"), *parked)

    def bound(self, change: Change) -> dict[str, int]:
        """Of one new pod a second of the namespace, and one of another without a debt."""
        rig, began_ns = self.rig, self.rig.now_ns
        changes = created = 0
        while (since_ns := rig.now_ns - began_ns) < SECONDS * SECOND_NS:
            if since_ns * EVENTS_A_SECOND >= changes * SECOND_NS:
                rig.handle(*change(rig, changes))
                changes += 1
            if since_ns >= created * SECOND_NS:
                at = f"2027-01-01T00:00:{created:02}Z"
                for space in ("tenant", "friendly"):
                    rig.observe(pod(f"new-{space}-{created}", namespace=space, cpu="10m", created=at))
                created += 1
            self._decide()
        return {
            space: sum(name.startswith(f"new-{space}") for name in rig.placements())
            for space in ("tenant", "friendly")
        }

    def _decide(self) -> None:
        """The next decision, or some milliseconds pass."""
        rig = self.rig
        if not rig.scheduler.ready(rig.now_ns):
            rig.now_ns += 5_000_000
            return
        rig.commands += rig.scheduler.decide(rig.now_ns)
        run = rig.scheduler._attempts._last_run
        if run is None:
            rig.now_ns += 10_000
            return
        is_parked = run.entry.representative_pod.name.startswith("parked-")
        elapsed_ns = PARKED_ATTEMPT_NS if is_parked else OTHER_ATTEMPT_NS
        rig.scheduler.account_time(elapsed_ns)
        rig.now_ns += elapsed_ns


ALL_BOUND = {"tenant": SECONDS, "friendly": SECONDS}


@pytest.mark.parametrize("case", CASES)
def test_new_pods_are_bound_whatever_happens_all_the_time(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ParkedForAll(monkeypatch).bound(CASES[case]) == ALL_BOUND


@pytest.mark.parametrize("valid_ms", [125, 1_000])
def test_new_pods_are_bound_although_verdicts_expire_all_the_time(
    valid_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that read the clock do so once a second, others more often."""
    assert ParkedForAll(monkeypatch, valid_ms * 1_000_000).bound(lambda *_: []) == ALL_BOUND


def test_every_event_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """But those of the pod itself, and of policies, quotas and the clock (`test_decision_time`, and above)."""
    causes = set[ClusterEvent]()
    for change in CASES.values():
        with monkeypatch.context() as patch:
            cluster = ParkedForAll(patch)
            cluster.causes.clear()
            for index in range(8):
                cluster.rig.handle(*change(cluster.rig, index))
            causes |= cluster.causes

    assert set(ClusterEvent) - causes == {
        ClusterEvent.UNSCHEDULED_POD_ADD,
        ClusterEvent.UNSCHEDULED_POD_UPDATE,
        ClusterEvent.QUOTA,
        ClusterEvent.TIME,
        ClusterEvent.POLICY,
    }


def test_planted_events_that_wake_at_once_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateWakeUps, "delays", lambda *_: False)

    assert ParkedForAll(monkeypatch).bound(CASES["samples"])["tenant"] < SECONDS / 2
