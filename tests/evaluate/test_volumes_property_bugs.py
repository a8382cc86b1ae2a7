"""The volume properties catch planted bugs: each bug shows in a small scenario."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from policysched import evaluate
from policysched.builtins.volume_binding import capacity_score, matching
from policysched.builtins.volume_binding import kernel as volume_binding
from policysched.builtins.volume_zone import kernel as volume_zone
from policysched.cluster.cache import ClusterCache
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.evaluate import evaluation_cache
from policysched.evaluate.columns import (
    attached_volumes,
    column_kinds,
    free_volume_index,
    storage_capacity,
    volume_positions,
)
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.model.storage import CsiNode, Disk, StorageObject
from tests import reference
from tests.builders import node, placed, pod, world
from tests.conformance.kube_default import kube_default
from tests.evaluate.test_builtins_property import differences
from tests.evaluate.test_volumes_property import choices_agree
from tests.volumes import attachment, capacity, claim, csi_driver, csi_node, storage_class, using, volume

NOW_NS = 1_767_607_200 * 10**9
Change = Callable[[ClusterCache], object]
"""A change of a cluster."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pod that is evaluated first and again after each change."""

    world: Callable[[], ClusterCache]
    pod: Pod
    changes: tuple[Change, ...] = ()

    def check(self) -> None:
        cache, program = self.world(), kube_default()
        evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
        arguments = {"now_ns": NOW_NS, "facts": QueuedPodInfo(NOW_NS, 0), "samples": {}}
        for change in (lambda _: None, *self.changes):
            change(cache)
            plain = reference.evaluate(program, self.pod, cache, **arguments)
            verdict = evaluator.evaluate(compiled, self.pod, **arguments)
            assert (verdict.selected, verdict.feasible_count) == (plain.selected, len(plain.feasible))
            if verdict.selected is not None:
                needs = evaluator.prebind_requirements(compiled, self.pod, verdict.selected, **arguments)
                volumes = None if needs is None else needs.volumes
                choices_agree(cache, volumes, self.pod, verdict.selected)
            assert differences(evaluator.explain(compiled, self.pod, **arguments), plain) == []


def put(*objects: StorageObject | CsiNode) -> Change:
    return lambda cache: [cache.put_storage(stored) for stored in objects]


def of(
    nodes: Iterable[Node], *objects: StorageObject | CsiNode, placed_pods: Iterable[ObservedPod] = ()
) -> Callable[[], ClusterCache]:
    nodes, placed_pods = tuple(nodes), tuple(placed_pods)

    def made() -> ClusterCache:
        cache = world(nodes, pods=placed_pods)
        put(*objects)(cache)
        return cache

    return made


def in_zone(label: str) -> dict[str, Any]:
    """The node affinity of a volume that is in z1."""
    expression = {"key": label, "operator": "In", "values": ["z1"]}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}


def in_zones_at_once() -> dict[str, Any]:
    """The node affinity of a volume in z1, by two requirements."""
    key = "topology.kubernetes.io/zone"
    expressions = [{"key": key, "operator": "In", "values": ["z1", other]} for other in ("z2", "z3")]
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}}


A, B = node("a", zone="z1"), node("b", zone="z2")
USER = pod("db", spec=using("data"))
DISK = {"volumes": [{"name": "d", "gcePersistentDisk": {"pdName": "disk"}}]}
EBS = {"awsElasticBlockStore": {"volumeID": "vol-1"}}
LIMITED = (csi_node("a", limits={"csi.example.com": 1}), csi_node("b", limits={"csi.example.com": 0}))
MINE = (claim("data", bound_to="v"), volume("v", claim="data", claim_uid="uid-data", handle="mine"))
OTHERS = (claim("other", bound_to="w"), volume("w", claim="other", claim_uid="uid-other", handle="theirs"))
OTHER_USER = placed(pod("before", spec=using("other")), "a")
LOCAL = (storage_class(), claim("data"))
TRACKED = (storage_class("made", "csi.example.com"), csi_driver(), claim("data", of_class="made"))

_FOR_ANOTHER = VolumeChoice(((claim("another"), volume("v", node="a", phase="Available")),))
_BEST = free_volume_index.MatchingVolumes.best
_BY_ROW = storage_capacity.StorageCapacityTable.by_row
_NOTE, _LEARN, _PUT = (
    free_volume_index.FreeVolumeIndex.set_free,
    volume_positions.LabelValueIndex.learn_codes,
    attached_volumes.AttachedVolumes.update_row,
)

BUGS: dict[str, tuple[Any, str, Callable[..., Any], Scenario]] = {
    "old labels are not translated": (
        volume_zone,
        "newer_label",
        lambda label: label,
        Scenario(
            of(
                (A, B),
                claim("data", bound_to="v"),
                volume(
                    "v",
                    claim="data",
                    claim_uid="uid-data",
                    labels={"failure-domain.beta.kubernetes.io/zone": "z1"},
                ),
            ),
            USER,
        ),
    ),
    "disks never conflict": (
        Disk,
        "identities",
        (),
        Scenario(of((A, B), placed_pods=[placed(pod("first", spec=DISK), "a")]), pod("second", spec=DISK)),
    ),
    "attachments do not count": (
        attached_volumes,
        "mount_of_attachment",
        lambda *_: None,
        Scenario(
            of((A, B), *LIMITED, *MINE, *OTHERS, attachment("left", node="a", volume="w")),
            USER,
        ),
    ),
    "migration does not matter": (
        volume_binding,
        "volume_fits",
        lambda volume, view: matching._terms_match(volume.node_affinity_terms, view),
        Scenario(
            of(
                (node("a", labels={"topology.ebs.csi.aws.com/zone": "z1"}), node("b")),
                csi_node("a", migrated="kubernetes.io/aws-ebs"),
                claim("data", bound_to="v"),
                volume(
                    "v",
                    claim="data",
                    claim_uid="uid-data",
                    spec={**EBS, **in_zone("topology.kubernetes.io/zone")},
                ),
            ),
            USER,
        ),
    ),
    "volumes of every phase are free": (
        free_volume_index,
        "is_available",
        lambda *_: True,
        Scenario(of((A, B), *LOCAL, volume("v", node="a", phase="Released")), USER),
    ),
    "bound volumes are not followed": (
        free_volume_index.FreeVolumeIndexCache,
        "_changed",
        lambda _self, index, *_: index,
        Scenario(
            of(
                (A, B),
                *LOCAL,
                volume("v", node="a", phase="Available"),
                volume("w", node="b", phase="Available"),
            ),
            USER,
            (put(volume("v", node="a", phase="Bound", claim="other", version=2)),),
        ),
    ),
    "an unreserved volume stays taken": (
        free_volume_index.FreeVolumeIndex,
        "set_free",
        lambda self, place, *, free: None if free else _NOTE(self, place, free=free),
        Scenario(
            of((A,), *LOCAL, volume("v", node="a", phase="Available")),
            USER,
            (
                lambda cache: cache.volumes.reserve(PodUid("x"), _FOR_ANOTHER, NodeName("a")),
                lambda cache: cache.volumes.unreserve(PodUid("x"), _FOR_ANOTHER),
            ),
        ),
    ),
    "claims of a pod take the same volume": (
        free_volume_index.MatchingVolumes,
        "best",
        lambda self, rows, _taken, looking: _BEST(self, rows, (), looking),
        Scenario(
            of(
                (A, B),
                *LOCAL,
                claim("more", size="6Gi"),
                volume("v", node="a"),
                volume("w", node="b"),
                volume("x", node="b"),
            ),
            pod("db", spec=using("data", "more")),
        ),
    ),
    "nodes of an affinity are not matched again": (
        matching._FreeVolumeRows,
        "topology_version",
        property(lambda _: 0),
        Scenario(
            of((node("a", zone="z2"),), *LOCAL, volume("v", phase="Available", spec=in_zones_at_once())),
            USER,
            (lambda cache: cache.put_node(node("a", zone="z1")),),
        ),
    ),
    "a value that no node had stays unknown": (
        volume_positions.LabelValueIndex,
        "learn_codes",
        lambda self, strings: () if self._string_count >= 0 else _LEARN(self, strings),
        Scenario(
            of((A,), *LOCAL, volume("v", node="b", phase="Available")),
            USER,
            (lambda cache: cache.put_node(B),),
        ),
    ),
    "changed volumes of a claim are not counted again": (
        attached_volumes.AttachedVolumes,
        "catch_up",
        lambda _: None,
        Scenario(
            of((A,), *LIMITED[:1], *MINE, claim("other", of_class=""), placed_pods=[OTHER_USER]),
            USER,
            (put(*OTHERS),),
        ),
    ),
    "a row with a new pod is not counted again": (
        attached_volumes.AttachedVolumes,
        "update_row",
        lambda self, row: None if self._rows.get(row) is None and self._counts else _PUT(self, row),
        Scenario(
            of(
                (A, node("c")),
                csi_node("c", limits={"csi.example.com": 1}),
                *LIMITED[:1],
                *MINE,
                *OTHERS,
                placed_pods=[OTHER_USER],
            ),
            USER,
            (lambda cache: cache.put_pod(placed(pod("late", spec=using("other")), "c")),),
        ),
    ),
    "changes of storage capacity are ignored": (
        AvailableVolumes,
        "capacity_stamp",
        lambda *_: 0,
        Scenario(
            of((A, B), *TRACKED, capacity("one", zone="z1", size="1Gi")),
            USER,
            (put(capacity("one", zone="z1", size="20Gi")),),
        ),
    ),
    "capacities stay with the labels that nodes had": (
        storage_capacity.StorageCapacityTable,
        "by_row",
        lambda self, _version, compute: _BY_ROW(self, 0, compute),
        Scenario(
            of((A, B), *TRACKED, capacity("one", zone="z1", size="20Gi")),
            USER,
            (
                lambda cache: cache.put_node(node("a", zone="z2")),
                lambda cache: cache.put_node(node("b", zone="z1")),
            ),
        ),
    ),
    "nodes without a driver are accepted": (
        column_kinds.CsiDriverColumn,
        "read",
        lambda *_: True,
        Scenario(of((A, B), csi_driver(needed_on_node=True), LIMITED[0], *MINE), USER),
    ),
    "the size of existing volumes does not score": (
        matching.ClaimMatch,
        "capacity_bytes",
        lambda match: np.full(len(match.unmatched), 2**40),
        Scenario(
            of((A, B), *LOCAL, *(volume(f"v-{at}", node=at, phase="Available") for at in "ab")),
            USER,
        ),
    ),
    "the capacity that is left does not score": (
        capacity_score,
        "provisionable_bytes",
        lambda _, view: np.full((view.count, 2), 2**40),
        Scenario(
            of(
                (A, B),
                *TRACKED,
                capacity("one", zone="z1", size="20Gi"),
                capacity("two", zone="z2", size="6Gi"),
            ),
            USER,
        ),
    ),
    "rules about claims are not specialized": (
        evaluation_cache,
        "specialize_claim_rules",
        lambda bound, _: (bound, list(range(len(bound.filters)))),
        Scenario(
            of((A, B), *MINE, placed_pods=[]),
            USER,
            (put(volume("v", claim="data", claim_uid="uid-data", node="a", version=2)),),
        ),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_shows_in_its_scenario(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, part, planted, scenario = BUGS[bug]
    scenario.check()

    monkeypatch.setattr(where, part, planted)

    with pytest.raises(AssertionError):
        scenario.check()
