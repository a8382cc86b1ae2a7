"""kube-scheduler itself, running, on clusters that nobody has seen before: policysched decides as it does.

The seeds are fresh in each run. `make live` tries 500 clusters, with devices (`draw_devices`) laid over them; here these are
on fixed seeds alone, some of those that show the planted bugs.
"""

from collections.abc import Callable
from dataclasses import replace
from random import SystemRandom
from typing import Any

import numpy as np
import pytest

from policysched.builtins import kernels
from policysched.builtins.image_locality import kernel as image_locality
from policysched.builtins.pod_topology_spread import kernel as pod_topology_spread
from policysched.builtins.volume_binding import kernel as volume_binding
from policysched.cluster.devices import allocation, allocator, device_cache, pools
from policysched.cluster.devices.cel_selectors import DeviceSelectors
from policysched.cluster.devices.constraints import ConstraintChecker
from policysched.cluster.devices.shared_counters import SharedCounters
from policysched.cluster.devices.usage import DeviceUsage
from policysched.evaluate import evaluator as evaluating
from policysched.evaluate.columns import attached_volumes
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.kube.decode import core_objects, volumes
from policysched.model.devices import (
    AccessibleNodes,
    DeviceAllocation,
    DeviceToleration,
    PoolId,
    ResourceSlice,
)
from policysched.model.pod_status import ObservedPod
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler.preemption import candidates
from tests.conformance import preemption_cases
from tests.conformance.compare import Aspect, Disagreement
from tests.conformance.kube_default import kube_default
from tests.conformance.live.check import Checked, check, compare_case, summary
from tests.conformance.live.draw import Drawn, draw
from tests.conformance.live.draw_rare import HUGE, UNSCHEDULABLE
from tests.conformance.live.record import Recorder
from tests.controlplane.cluster import ControlPlane
from tests.reference import builtins

Json = dict[str, Any]

CLUSTERS = 15
"""In each of two parts, which two test processes can do at the same time."""


def nowhere(view: View) -> Array:
    return np.zeros(view.count, np.bool_)


def read_otherwise(change: Callable[[ObservedPod], ObservedPod]) -> tuple[Any, str, Any]:
    """As if pods were other than their manifests say."""
    read = core_objects.decode_pod
    return core_objects, "decode_pod", lambda manifest: change(read(manifest))


def without(field: str) -> tuple[Any, str, Any]:
    """As if no pod had such."""
    return read_otherwise(lambda seen: replace(seen, pod=replace(seen.pod, **{field: ()})))


def manifests_otherwise(change: Callable[[Json], Json]) -> tuple[Any, str, Any]:
    read = core_objects.decode_pod
    return core_objects, "decode_pod", lambda manifest: read(change(manifest))


def portless(kind: str, manifest: Json) -> Json:
    bare = [{**one, "ports": []} for one in manifest["spec"].get(kind, ())]
    return {**manifest, "spec": {**manifest["spec"], kind: bare}}


def owned_by_anybody(seen: ObservedPod) -> ObservedPod:
    claims = tuple(replace(one, owner_pod=None) for one in seen.pod.claims)
    return replace(seen, pod=replace(seen.pod, claims=claims))


def of_small_pages(seen: ObservedPod) -> ObservedPod:
    requests = {name: amount for name, amount in seen.pod.requests.items() if name != HUGE}
    return replace(seen, pod=replace(seen.pod, requests=requests))


def bold(seen: ObservedPod) -> ObservedPod:
    tolerations = tuple(one for one in seen.pod.tolerations if one.key != UNSCHEDULABLE)
    return replace(seen, pod=replace(seen.pod, tolerations=tolerations))


def undisrupted(manifest: Json) -> DisruptionBudget:
    return replace(read_budget(manifest), disrupted_pods=frozenset())


def of_any_generation(by_pool: dict[PoolId, list[ResourceSlice]], one: ResourceSlice) -> None:
    by_pool.setdefault(one.pool, []).append(one)


read_budget = core_objects.decode_disruption_budget

BUGS: dict[str, tuple[Any, str, Any]] = {
    "default spreading by other skews": (
        pod_topology_spread,
        "_SYSTEM_DEFAULT_CONSTRAINTS",
        (("kubernetes.io/hostname", 1),),
    ),
    "images count from another size on": (image_locality, "_THRESHOLD_BYTES_MIN", 60 * 2**20),
    "features of the kubelet are not looked at": (
        kernels.FILTER_KERNELS,
        "node_declared_features",
        lambda *_: None,
    ),
    "ports do not clash": (builtins.FILTERS, "node_ports", lambda *_: None),
    "affinity between pods is not scored": (kernels.SCORE_KERNELS, "inter_pod_affinity", lambda *_: None),
    "claims for one pod are shared": (kernels.FILTER_KERNELS, "volume_restrictions", lambda *_: None),
    "limits of attached volumes do not count": (
        kernels.FILTER_KERNELS,
        "node_volume_limits",
        lambda *_: None,
    ),
    "zones of volumes do not matter": (kernels.FILTER_KERNELS, "volume_zone", lambda *_: None),
    "bound volumes can be used anywhere": (
        volume_binding,
        "_check_bound_claims",
        lambda _, view: (nowhere(view), nowhere(view)),
    ),
    "volumes are found for all claims": (
        volume_binding,
        "_check_unbound_claims",
        lambda _, view: (nowhere(view), nowhere(view)),
    ),
    "a host network has ports of its own": manifests_otherwise(
        lambda one: portless("containers", one) if one["spec"].get("hostNetwork") else one
    ),
    "sidecars hold no ports": manifests_otherwise(lambda one: portless("initContainers", one)),
    "disks that pods name are shared": without("disks"),
    "disks that pods name are attached by nobody": without("mounts"),
    "volumes of old plugins belong to no driver": (volumes, "_plugin_of", lambda _: None),
    "what others have attached does not count": (attached_volumes, "mount_of_attachment", lambda *_: None),
    "claims of ephemeral volumes are anybody's": read_otherwise(owned_by_anybody),
    "huge pages do not run out": read_otherwise(of_small_pages),
    "who is ending is counted on": read_otherwise(
        lambda seen: replace(seen, pod=replace(seen.pod, terminating=False))
    ),
    "who has finished holds on": read_otherwise(
        lambda seen: replace(seen, phase="Running") if seen.finished else seen
    ),
    "what a kubelet has given does not count": manifests_otherwise(
        lambda one: {**one, "status": {**one.get("status", {}), "containerStatuses": []}}
    ),
    "nobody tolerates nodes that are unschedulable": read_otherwise(bold),
    "who is being disrupted is disrupted again": (core_objects, "decode_disruption_budget", undisrupted),
    "devices that are taken are free": (DeviceUsage, "add", lambda *_: None),
    "a device can be had twice": (allocator._DeviceSearch, "_is_free", lambda *_: True),
    "shares are without bounds": (allocator._DeviceSearch, "_has_capacity", lambda *_: True),
    "counters do not run out": (SharedCounters, "_available_in", lambda *_: {}),
    "everybody tolerates taints of devices": (DeviceToleration, "tolerates", lambda *_: True),
    "nobody tolerates taints of devices": (DeviceToleration, "tolerates", lambda *_: False),
    "devices need nothing in common": (ConstraintChecker, "_allows", lambda *_: True),
    "every device is selected": (DeviceSelectors, "matches", lambda *_: True),
    "slices of earlier generations count": (pools, "_add_newest", of_any_generation),
    "devices are of one node or of none": (
        AccessibleNodes,
        "includes",
        lambda one, node: one.node == node.name,
    ),
    "claims that have devices can be used anywhere": (DeviceAllocation, "usable_on", lambda *_: True),
    "of alternatives each is as good": (kernels.SCORE_KERNELS, "dynamic_resources", lambda *_: None),
    "classes stand for no resources": (device_cache, "classes_by_resource", lambda _: {}),
    "classes configure nothing": (allocation, "_class_configs", lambda *_: []),
    "claims configure nothing": (allocation, "_claim_configs", lambda *_: []),
    "devices can be used from anywhere": (allocation, "_node_selector_terms", lambda *_: None),
    "nodes are kept for nobody": (evaluating, "nominated_rows", lambda *_, **__: {}),
    "other words": (candidates, "NO_VICTIMS", "Nobody to evict"),
}
SEEDS_THAT_SHOW_THEM = {
    Drawn.RARE: (0, 2, 18, 29, 39, 43, 81, 91),
    Drawn.ALL: (9_500_031, 9_500_032, 9_500_093),
}


@pytest.mark.parametrize("part", ["one half", "the other half"])
def test_a_running_kube_scheduler_decides_alike_on_random_clusters(
    part: str, whole_control_plane: ControlPlane
) -> None:
    recorder, first = Recorder(whole_control_plane), SystemRandom().randrange(10**6)

    checked = [check(recorder, kube_default(), seed, Drawn.RARE) for seed in range(first, first + CLUSTERS)]

    assert sum(one.pods for one in checked) > CLUSTERS
    differing = summary(checked)
    assert not differing, differing


def test_each_planted_bug_shows_on_some_cluster(
    whole_control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption_cases, "ORDERS_MAX", 6)  # with a bug none of thousands would do
    recorder = Recorder(whole_control_plane)
    cases = [
        recorder.record(draw(seed, drawn)) for drawn, seeds in SEEDS_THAT_SHOW_THEM.items() for seed in seeds
    ]
    noticed = set()

    for name, (holder, part, planted) in BUGS.items():
        with pytest.MonkeyPatch.context() as patch:
            if isinstance(holder, dict):
                patch.setitem(holder, part, planted)
            else:
                patch.setattr(holder, part, planted)
            if any(compare_case(case, kube_default()) for case in cases):
                noticed.add(name)

    assert not any(compare_case(case, kube_default()) for case in cases), "and nothing without them"
    assert noticed == BUGS.keys()


def test_a_report_names_every_seed_that_differs_in_its_first_line() -> None:
    def checked(seed: int, *aspects: Aspect) -> Checked:
        return Checked(
            seed, 3, {}, [Disagreement(f"seed {seed}/p0", one, "1, recorded 2") for one in aspects], []
        )

    first, *others = summary(
        [checked(4), checked(5, "totals", *["weighted scores"] * 9), checked(6), checked(7, "message")]
    ).splitlines()

    assert first == (
        "seeds 5 (totals, weighted scores), 7 (message) differ from kube-scheduler: "
        "python -m tests.conformance.live --seed 5 --clusters 1"
    )
    assert len(others) < 10
    assert summary([checked(4)]) == ""


def test_a_cluster_is_drawn_from_its_seed_alone() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
