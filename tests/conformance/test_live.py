"""Random clusters decided by a running kube-scheduler and by policysched, which must agree.

The seeds are fresh in each run. `make live` checks 500 clusters with devices (`draw_devices`). The
tests here draw devices only for fixed seeds that show planted bugs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Any

import numpy as np
import pytest

from policysched.builtins import kernels
from policysched.builtins.image_locality import kernel as image_locality
from policysched.builtins.pod_topology_spread import kernel as pod_topology_spread
from policysched.builtins.volume_binding import kernel as volume_binding
from policysched.cluster.devices import allocation, device_cache, pools, taken_devices
from policysched.cluster.devices.cel_selectors import DeviceSelectors
from policysched.cluster.devices.constraints import ConstraintChecker
from policysched.cluster.devices.device_usage import DeviceUsage
from policysched.cluster.devices.shared_counters import CountersLeft
from policysched.evaluate import evaluator
from policysched.evaluate.columns import attached_volumes
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.kube.decode import core_objects, volumes
from policysched.kube.decode.pods import decode_pod
from policysched.model.devices import (
    AccessibleNodes,
    DeviceAllocation,
    DeviceToleration,
    PoolId,
    ResourceSlice,
)
from policysched.model.pod_status import ObservedPod
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler.preemption import candidate_search
from tests.conformance import cluster_case, preemption_cases
from tests.conformance.compare import Aspect, Disagreement
from tests.conformance.live.check import Checked, check, compare_case, summary
from tests.conformance.live.draw import Drawn, draw
from tests.conformance.live.draw_rare import HUGE, UNSCHEDULABLE
from tests.conformance.live.record import Recorder
from tests.controlplane.cluster import ControlPlane
from tests.reference import builtins

Json = dict[str, Any]

CLUSTERS = 6
"""Of each of two parts, which two test processes run in parallel."""


@dataclass(frozen=True)
class Bug:
    """A planted bug: `part` of `holder` (an attribute, or a key of a dict) is replaced by
    `replacement`. `seed` is the cluster that shows it fastest.
    """

    seed: int
    holder: Any
    part: str
    replacement: Any

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        if isinstance(self.holder, dict):
            patch.setitem(self.holder, self.part, self.replacement)
        else:
            patch.setattr(self.holder, self.part, self.replacement)


def no_rows(view: View) -> Array:
    return np.zeros(view.count, np.bool_)


def change_pods(change: Callable[[ObservedPod], ObservedPod]) -> tuple[Any, str, Any]:
    """Change every decoded pod."""
    decode = decode_pod
    return cluster_case, "decode_pod", lambda manifest: change(decode(manifest))


def without(field: str) -> tuple[Any, str, Any]:
    """Empty the tuple `field` of every pod."""
    return change_pods(lambda observed: replace(observed, pod=replace(observed.pod, **{field: ()})))


def change_manifests(change: Callable[[Json], Json]) -> tuple[Any, str, Any]:
    """Change every manifest of a pod before it is decoded."""
    decode = decode_pod
    return cluster_case, "decode_pod", lambda manifest: decode(change(manifest))


def without_ports(kind: str, manifest: Json) -> Json:
    containers = [{**container, "ports": []} for container in manifest["spec"].get(kind, ())]
    return {**manifest, "spec": {**manifest["spec"], kind: containers}}


def without_claim_owners(observed: ObservedPod) -> ObservedPod:
    claims = tuple(replace(claim, owner_pod=None) for claim in observed.pod.claims)
    return replace(observed, pod=replace(observed.pod, claims=claims))


def without_huge_pages(observed: ObservedPod) -> ObservedPod:
    requests = {name: amount for name, amount in observed.pod.requests.items() if name != HUGE}
    return replace(observed, pod=replace(observed.pod, requests=requests))


def without_unschedulable_toleration(observed: ObservedPod) -> ObservedPod:
    tolerations = tuple(
        toleration for toleration in observed.pod.tolerations if toleration.key != UNSCHEDULABLE
    )
    return replace(observed, pod=replace(observed.pod, tolerations=tolerations))


def without_disrupted_pods(manifest: Json) -> DisruptionBudget:
    return replace(decode_budget(manifest), disrupted_pods=frozenset())


def add_any_generation(by_pool: dict[PoolId, list[ResourceSlice]], resource_slice: ResourceSlice) -> None:
    by_pool.setdefault(resource_slice.pool, []).append(resource_slice)


decode_budget = core_objects.decode_disruption_budget

BUGS = {
    "default topology spread constraints have another skew": Bug(
        39, pod_topology_spread, "_SYSTEM_DEFAULT_CONSTRAINTS", (("kubernetes.io/hostname", 1),)
    ),
    "images count from another size": Bug(39, image_locality, "_THRESHOLD_BYTES_MIN", 60 * 2**20),
    "declared features of nodes are ignored": Bug(
        39, kernels.FILTER_KERNELS, "node_declared_features", lambda *_: None
    ),
    "host ports do not conflict": Bug(29, builtins.FILTERS, "node_ports", lambda *_: None),
    "inter-pod affinity is not scored": Bug(39, kernels.SCORE_KERNELS, "inter_pod_affinity", lambda *_: None),
    "ReadWriteOncePod claims are shared": Bug(
        0, kernels.FILTER_KERNELS, "volume_restrictions", lambda *_: None
    ),
    "limits of attached volumes are ignored": Bug(
        43, kernels.FILTER_KERNELS, "node_volume_limits", lambda *_: None
    ),
    "zones of volumes are ignored": Bug(18, kernels.FILTER_KERNELS, "volume_zone", lambda *_: None),
    "bound volumes are usable on every node": Bug(
        39, volume_binding, "_check_bound_claims", lambda _, view: (no_rows(view), no_rows(view))
    ),
    "every unbound claim finds a volume": Bug(
        29, volume_binding, "_check_unbound_claims", lambda _, view: (no_rows(view), no_rows(view))
    ),
    "pods on the host network use no host ports": Bug(
        39,
        *change_manifests(
            lambda pod: without_ports("containers", pod) if pod["spec"].get("hostNetwork") else pod
        ),
    ),
    "sidecars use no host ports": Bug(
        18, *change_manifests(lambda pod: without_ports("initContainers", pod))
    ),
    "in-tree disks are shared": Bug(43, *without("disks")),
    "in-tree disks are not attached": Bug(43, *without("mounts")),
    "in-tree volumes are not migrated to CSI drivers": Bug(43, volumes, "_plugin_of", lambda _: None),
    "volume attachments of others are ignored": Bug(
        43, attached_volumes, "mount_of_attachment", lambda *_: None
    ),
    "owners of ephemeral claims are ignored": Bug(0, *change_pods(without_claim_owners)),
    "huge pages are unlimited": Bug(0, *change_pods(without_huge_pages)),
    "terminating pods count as running": Bug(
        39, *change_pods(lambda observed: replace(observed, pod=replace(observed.pod, terminating=False)))
    ),
    "finished pods keep their resources": Bug(
        39,
        *change_pods(lambda observed: replace(observed, phase="Running") if observed.finished else observed),
    ),
    "resources that a kubelet reports are ignored": Bug(
        39,
        *change_manifests(lambda pod: {**pod, "status": {**pod.get("status", {}), "containerStatuses": []}}),
    ),
    "no pod tolerates an unschedulable node": Bug(2, *change_pods(without_unschedulable_toleration)),
    "pods that are being disrupted count as healthy": Bug(
        91, core_objects, "decode_disruption_budget", without_disrupted_pods
    ),
    "allocated devices are free": Bug(9_500_031, DeviceUsage, "add", lambda *_: None),
    "a device is allocated twice": Bug(9_500_031, taken_devices.TakenDevices, "is_free", lambda *_: True),
    "device capacity is unlimited": Bug(
        9_500_093, taken_devices.TakenDevices, "has_capacity", lambda *_: True
    ),
    "shared counters are unlimited": Bug(9_500_032, CountersLeft, "of_pool", lambda *_: {}),
    "every claim tolerates device taints": Bug(9_500_031, DeviceToleration, "tolerates", lambda *_: True),
    "no claim tolerates device taints": Bug(9_500_032, DeviceToleration, "tolerates", lambda *_: False),
    "device constraints are ignored": Bug(9_500_093, ConstraintChecker, "_allows", lambda *_: True),
    "every device matches every selector": Bug(9_500_031, DeviceSelectors, "matches", lambda *_: True),
    "slices of earlier generations count": Bug(9_500_031, pools, "_add_newest", add_any_generation),
    "devices are accessible by node name only": Bug(
        9_500_031, AccessibleNodes, "includes", lambda accessible, node: accessible.node == node.name
    ),
    "allocated claims are usable on every node": Bug(
        9_500_031, DeviceAllocation, "usable_on", lambda *_: True
    ),
    "prioritized alternatives are not scored": Bug(
        9_500_093, kernels.SCORE_KERNELS, "dynamic_resources", lambda *_: None
    ),
    "device classes provide no extended resources": Bug(
        9_500_031, device_cache, "classes_by_resource", lambda _: {}
    ),
    "configuration of device classes is ignored": Bug(9_500_031, allocation, "_class_configs", lambda *_: []),
    "configuration of claims is ignored": Bug(9_500_093, allocation, "_claim_configs", lambda *_: []),
    "node selectors of devices are ignored": Bug(
        9_500_031, allocation, "_node_selector_terms", lambda *_: None
    ),
    "nominated pods are ignored": Bug(81, evaluator, "nominated_rows", lambda *_, **__: {}),
    "another message when no victims are found": Bug(39, candidate_search, "NO_VICTIMS", "No pod to evict"),
}
SEEDS_OF_BUGS = {
    Drawn.RARE: (0, 2, 18, 29, 39, 43, 81, 91),
    Drawn.ALL: (9_500_031, 9_500_032, 9_500_093),
}


@pytest.mark.parametrize("part", ["first half", "second half"])
def test_policysched_and_a_running_kube_scheduler_agree_on_random_clusters(
    part: str, whole_control_plane: ControlPlane
) -> None:
    recorder, first = Recorder(whole_control_plane), SystemRandom().randrange(10**6)

    checked = [check(recorder, seed, Drawn.RARE) for seed in range(first, first + CLUSTERS)]

    assert sum(cluster.pods for cluster in checked) > CLUSTERS
    differing = summary(checked)
    assert not differing, differing


def test_each_planted_bug_shows_on_some_cluster(
    whole_control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption_cases, "ORDERS_MAX", 6)  # With a bug, no cluster of thousands would match.
    recorder = Recorder(whole_control_plane)
    cases = {
        seed: recorder.record(draw(seed, drawn)) for drawn, seeds in SEEDS_OF_BUGS.items() for seed in seeds
    }
    noticed = set()

    for name, bug in BUGS.items():
        likely_first = [cases[bug.seed], *(case for seed, case in cases.items() if seed != bug.seed)]
        with pytest.MonkeyPatch.context() as patch:
            bug.plant(patch)
            if any(compare_case(case) for case in likely_first):
                noticed.add(name)

    assert noticed == BUGS.keys()
    assert not any(compare_case(case) for case in cases.values()), "agree without a bug"


def test_the_first_line_of_a_report_names_every_seed_that_differs() -> None:
    def checked(seed: int, *aspects: Aspect) -> Checked:
        return Checked(
            seed, 3, {}, [Disagreement(f"seed {seed}/p0", aspect, "1, recorded 2") for aspect in aspects], []
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
