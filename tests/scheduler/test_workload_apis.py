"""Pods with the labels, annotations, gates and node selectors of JobSet 0.12, LeaderWorkerSet 0.9 and Kueue 0.17 start whole.

The names are those of their API packages (`jobset_types.go`, `leaderworkerset_types.go`, `pod/constants.go`). Their
controllers run in `tests/workloads`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from policysched.kube.decode.pods import decode_pod
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from tests.builders import node, pod_manifest
from tests.scheduler.rig import Rig

HOST = "kubernetes.io/hostname"
GATE = "kueue.x-k8s.io/admission"
BACKOFF_S = 15.0
ALONE = "policy test version 1\ninclude kube_default\n"


@dataclass(frozen=True)
class WorkloadApi:
    """`policy` makes gangs of what the API labels; `member` is a pod as its controller or webhook makes it."""

    policy: str
    member: Callable[[int], ObservedPod]


def jobset_member(index: int) -> ObservedPod:
    """Of three Jobs with one pod each."""
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/global-replicas": "3",
        "jobset.sigs.k8s.io/job-global-index": str(index),
    }
    return decode_pod(pod_manifest(f"p{index}", cpu="1", labels=labels))


def leader_worker_member(index: int) -> ObservedPod:
    labels = {
        "leaderworkerset.sigs.k8s.io/name": "serve",
        "leaderworkerset.sigs.k8s.io/group-index": "0",
        "leaderworkerset.sigs.k8s.io/worker-index": str(index),
        "leaderworkerset.sigs.k8s.io/group-key": "5f1a9c",
    }
    annotations = {"leaderworkerset.sigs.k8s.io/size": "3"}
    return decode_pod(pod_manifest(f"p{index}", cpu="1", labels=labels, annotations=annotations))


def kueue_member(index: int, *, gates: Iterable[str] = (), host: str | None = None) -> ObservedPod:
    manifest = pod_manifest(
        f"p{index}",
        cpu="1",
        labels={"kueue.x-k8s.io/pod-group-name": "group", "kueue.x-k8s.io/queue-name": "batch"},
        annotations={"kueue.x-k8s.io/pod-group-total-count": "3"},
        gates=gates,
        node_selector={HOST: host} if host else None,
    )
    return decode_pod(manifest)


APIS = {
    "JobSet": WorkloadApi(
        ALONE
        + 'input jobs: int = pod.labels["jobset.sigs.k8s.io/global-replicas"] default 1 invalid default\n'
        + 'gang by pod.labels["jobset.sigs.k8s.io/jobset-name"] { min = jobs }\n',
        jobset_member,
    ),
    "LeaderWorkerSet": WorkloadApi(
        ALONE
        + 'input size: int = pod.annotations["leaderworkerset.sigs.k8s.io/size"] default 1 invalid default\n'
        + 'gang by pod.labels["leaderworkerset.sigs.k8s.io/group-key"] { min = size }\n',
        leader_worker_member,
    ),
    "Kueue": WorkloadApi(
        ALONE
        + 'input size: int = pod.annotations["kueue.x-k8s.io/pod-group-total-count"] default 1 invalid default\n'
        + 'gang by pod.labels["kueue.x-k8s.io/pod-group-name"] { min = size }\n',
        kueue_member,
    ),
}


def two_cpus(name: str) -> Node:
    return node(name, cpu="2", labels={HOST: name})


@pytest.mark.parametrize("api", APIS)
def test_a_workload_waits_until_all_its_pods_exist_and_fit(api: str) -> None:
    workload = APIS[api]
    rig = Rig(workload.policy, two_cpus("a"))
    rig.observe(workload.member(0), workload.member(1))
    rig.settle()
    assert rig.placements() == {}, "the third pod does not exist yet"

    rig.observe(workload.member(2))
    rig.settle()
    assert rig.placements() == {}, "the third pod does not fit"
    assert "2 of 3 members fit now" in (rig.pending_message("p0") or "")

    rig.observe(two_cpus("b"))
    rig.pass_time(BACKOFF_S)
    assert sorted(rig.placements()) == ["p0", "p1", "p2"]


@pytest.mark.parametrize("api", APIS)
def test_planted_policy_without_a_gang_starts_a_part(api: str) -> None:
    rig = Rig(ALONE, two_cpus("a"), *(APIS[api].member(index) for index in range(3)))

    rig.settle()
    assert len(rig.placements()) == 2


def test_pods_that_kueue_admits_go_where_its_topology_says() -> None:
    hosts = ["b", "c", "b"]
    rig = Rig(APIS["Kueue"].policy, two_cpus("a"), two_cpus("b"), two_cpus("c"))
    rig.observe(*(kueue_member(index, gates=(GATE,)) for index in range(3)))
    rig.settle()
    assert rig.placements() == {}, "gated"

    rig.observe(*(kueue_member(index, host=hosts[index]) for index in range(2)))
    rig.settle()
    assert rig.placements() == {}, "one member is gated still"

    rig.observe(kueue_member(2, host=hosts[2]))
    rig.pass_time(BACKOFF_S)
    assert rig.placements() == {f"p{index}": host for index, host in enumerate(hosts)}
