"""`AttachedVolumes` follows every change, and agrees with a count of all that is on a node."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.cluster.node_usage import NodeUsage
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.evaluate.columns import attached_volumes
from policysched.evaluate.columns.attached_volumes import AttachedVolumes
from policysched.model.identifiers import PodUid, VolumeClaimKey
from policysched.model.nodes import Node
from policysched.model.pods import Pod, PodVolumeClaim
from policysched.model.storage import CsiAttachment, CsiVolume
from tests.builders import node, pod
from tests.volumes import claim, storage_class, volume

DRIVERS = ("csi.example.com", "other.example.com")
MOUNTS = tuple(CsiVolume(driver, f"h{number}") for driver in DRIVERS for number in range(2))
OWNERS = (None, None, PodUid("uid-one"), PodUid("uid-two"))
ROWS = range(3)


def attached_to(
    on: Node, pods: Iterable[Pod], available: AvailableVolumes
) -> tuple[set[CsiVolume], Counter[str]]:
    """The volumes that pods have attached, and the counts by driver with those of VolumeAttachments."""
    by_pods = {mount for each in pods for mount in each.mounts}
    for use in {use for each in pods for use in each.claims}:
        bound = available.claim(use.claim)
        if bound is not None and use.owner_pod in (None, bound.controller_uid):
            mount = available.csi_volume(bound)
            by_pods |= set() if mount is None else {mount}
    attached = set(by_pods)
    for attachment in on.attachments:
        of_attachment = available.volume(attachment.volume)
        if of_attachment is not None and of_attachment.csi_volume is not None and of_attachment.is_csi:
            attached.add(CsiVolume(attachment.attacher, of_attachment.csi_volume.handle))
    return by_pods, Counter(mount.driver for mount in attached)


class Cluster:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.volumes = VolumeCache()
        self.nodes: list[Node | None] = [node(f"n{row}") for row in ROWS]
        self.pods: list[list[Pod]] = [[] for _ in ROWS]
        self.version = 1
        self.attached = AttachedVolumes(self.volumes, len(ROWS), self._node_and_pods)

    def _node_and_pods(self, row: int) -> tuple[Node | None, NodeUsage]:
        usage = NodeUsage()
        usage.pods.update({each.uid: each for each in self.pods[row]})
        return self.nodes[row], usage

    def random_pod(self) -> Pod:
        self.version += 1
        names = self.rng.choices(("c0", "c1", "c2"), k=self.rng.randrange(4))
        uses = [PodVolumeClaim(VolumeClaimKey("default", name), self.rng.choice(OWNERS)) for name in names]
        mounts = tuple(self.rng.choices(MOUNTS, k=self.rng.randrange(3)))
        return replace(pod(f"p{self.version}"), claims=tuple(uses), mounts=mounts)

    def change(self) -> None:
        self.version += 1
        row, name = self.rng.choice(ROWS), f"v{self.rng.randrange(3)}"
        pods = self.pods[row]
        match self.rng.randrange(9):
            case 0 | 1:
                pods.append(self.random_pod())
            case 2 if pods:
                pods.pop(self.rng.randrange(len(pods)))
            case 3 if pods:
                pods[0] = replace(pods[0], labels={"version": str(self.version)})
            case 4:
                bound = self.rng.choice((None, "v0", "v1", "v2"))
                of_class, owner = self.rng.choice(("made", "")), self.rng.choice(OWNERS)
                self.volumes.put_claim(
                    claim(
                        f"c{self.rng.randrange(3)}",
                        bound_to=bound,
                        of_class=of_class,
                        owner=owner,
                        version=self.version,
                    )
                )
            case 5:
                self.volumes.drop_claim(VolumeClaimKey("default", f"c{self.rng.randrange(3)}"))
            case 6:
                csi = {
                    "csi": {"driver": self.rng.choice(DRIVERS), "volumeHandle": f"h{self.rng.randrange(2)}"}
                }
                disk = {"awsElasticBlockStore": {"volumeID": "vol-1"}}
                self.volumes.put_volume(
                    volume(name, version=self.version, spec=self.rng.choice((csi, csi, disk)))
                )
            case 7:
                names = self.rng.sample(("v0", "v1", "v2"), self.rng.randrange(3))
                attachments = frozenset(CsiAttachment(self.rng.choice(DRIVERS), name) for name in names)
                gone = self.rng.random() < 0.2
                self.nodes[row] = None if gone else replace(node(f"n{row}"), attachments=attachments)
            case 8:
                if self.rng.random() < 0.5:
                    self.volumes.drop_volume(name)
                else:
                    self.volumes.put_class(storage_class("made", self.rng.choice(DRIVERS)))
        self.attached.update_row(row)

    def disagreements(self) -> list[str]:
        self.attached.catch_up()
        available, found = AvailableVolumes(self.volumes), list[str]()
        for row, on in enumerate(self.nodes):
            by_pods, counts = (
                (set[CsiVolume](), Counter[str]())
                if on is None
                else attached_to(on, self.pods[row], available)
            )
            found += [
                f"{row} {driver}" for driver in DRIVERS if self.attached.counts(driver)[row] != counts[driver]
            ]
            having = {mount for mount in MOUNTS if row in self.attached.rows_with_mount(mount)}
            found += [f"{row} mounts"] * (having != by_pods & set(MOUNTS))
            if on is not None:
                others = [*self.pods[row][1:], self.random_pod()]
                by_pods, counts = attached_to(on, others, available)
                for driver in DRIVERS:
                    own = [mount for mount in MOUNTS if mount.driver == driver]
                    expected = counts[driver], len(set(own) - by_pods)
                    found += [f"{row} overlay"] * (
                        self.attached.with_pods(row, others, driver, own) != expected
                    )
        return found


def disagreements(seed: int) -> list[str]:
    cluster = Cluster(Random(seed))
    found = []
    for _ in range(60):
        cluster.change()
        if cluster.rng.random() < 0.5:
            found += cluster.disagreements()
    return found


@given(st.integers(0, 10**9))
def test_counts_follow_every_change(seed: int) -> None:
    assert disagreements(seed) == []


def test_nothing_is_kept_of_what_is_gone() -> None:
    cluster = Cluster(Random(0))
    for _ in range(200):
        cluster.change()
    cluster.disagreements()
    for row in ROWS:
        cluster.nodes[row] = None
        cluster.attached.update_row(row)

    attached = cluster.attached
    kept = (attached._rows, attached._rows_by_mount, attached._rows_by_use, attached._rows_by_attached)
    assert not any((*kept, attached._owned_uses, attached._volume_of_claim, attached._claims_by_volume))
    assert not any(attached.counts(driver).any() for driver in DRIVERS)


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (AttachedVolumes, "_follow_use", lambda *_: None),
        (AttachedVolumes, "_learn_volume", lambda *_: None),
        (AttachedVolumes, "_uses_of", lambda _, key: (PodVolumeClaim(key, None),)),
        (AttachedVolumes, "_count_attachments", lambda *_: None),
        (attached_volumes, "csi_volume_of_use", lambda *_: None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_planted_bugs_are_detected(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, bug: Callable[..., Any]
) -> None:
    monkeypatch.setattr(owner, name, bug)

    assert any(disagreements(seed) for seed in range(20))
