"""kube-scheduler itself, running, on clusters that nobody has seen before: policysched decides as it does.

The seeds are fresh in each run. `make live` tries 500 clusters.
"""

from random import SystemRandom
from typing import Any

import numpy as np
import pytest

from policysched.oracle import builtins
from policysched.plan import kernels
from policysched.plan.columns import Array
from policysched.plan.kernels import image_locality, pod_topology_spread, volume_binding
from policysched.plan.view import View
from policysched.schedule import candidates
from tests.conformance.kube_default import kube_default
from tests.conformance.live.check import check, compare_case
from tests.conformance.live.draw import draw
from tests.conformance.live.record import Recorder
from tests.controlplane.cluster import ControlPlane

CLUSTERS = 15
"""In each of two parts, which two test processes can do at the same time."""


def nowhere(view: View) -> Array:
    return np.zeros(view.count, np.bool_)


BUGS: dict[str, tuple[Any, str, Any]] = {
    "default spreading by other skews": (pod_topology_spread, "_SYSTEM", (("kubernetes.io/hostname", 1),)),
    "images count from another size on": (image_locality, "_LEAST", 60 * 2**20),
    "features of the kubelet are not looked at": (kernels.FILTERS, "node_declared_features", lambda *_: None),
    "ports do not clash": (builtins.FILTERS, "node_ports", lambda *_: None),
    "affinity between pods is not scored": (kernels.SCORES, "inter_pod_affinity", lambda *_: None),
    "claims for one pod are shared": (kernels.FILTERS, "volume_restrictions", lambda *_: None),
    "limits of attached volumes do not count": (kernels.FILTERS, "node_volume_limits", lambda *_: None),
    "zones of volumes do not matter": (kernels.FILTERS, "volume_zone", lambda *_: None),
    "bound volumes can be used anywhere": (
        volume_binding,
        "_bound",
        lambda _, view: (nowhere(view), nowhere(view)),
    ),
    "volumes are found for all claims": (
        volume_binding,
        "_delayed",
        lambda _, view: (nowhere(view), nowhere(view)),
    ),
    "other words": (candidates, "NO_VICTIMS", "Nobody to evict"),
}
SEEDS_THAT_SHOW_THEM = (7, 21, 24, 34)


@pytest.mark.parametrize("part", ["one half", "the other half"])
def test_a_running_kube_scheduler_decides_alike_on_random_clusters(
    part: str, whole_control_plane: ControlPlane
) -> None:
    recorder, first = Recorder(whole_control_plane), SystemRandom().randrange(10**6)

    checked = [check(recorder, kube_default(), seed) for seed in range(first, first + CLUSTERS)]

    assert sum(one.pods for one in checked) > CLUSTERS
    wrong = [str(one) for one in checked if one.differences]
    assert not wrong, "\n".join(wrong)


def test_each_planted_bug_shows_on_some_cluster(whole_control_plane: ControlPlane) -> None:
    recorder = Recorder(whole_control_plane)
    cases = [recorder.record(draw(seed)) for seed in SEEDS_THAT_SHOW_THEM]
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


def test_a_cluster_is_drawn_from_its_seed_alone() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
