"""What many volumes, claims and capacities of one namespace cost others, counted in comparisons and attempts."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from policysched.builtins.volume_binding.kernel import VolumeBindingFilter
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.evaluate.columns.free_volume_index import FreeVolumeIndex, _CandidatesByCode
from policysched.evaluate.columns.volume_attributes import VolumeLabels
from policysched.kube.decode import storage
from policysched.model.identifiers import VolumeClaimKey
from policysched.model.pods import PodVolumeClaim
from policysched.model.storage import PersistentVolume, PersistentVolumeClaim, StorageCapacity
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from tests.builders import node, placed, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_decision_time import FAST, TimedRig, friend
from tests.scheduler.test_volumes import DEFAULT, HOSTNAME, rig_with
from tests.volumes import attachment, capacity, claim, csi_driver, csi_node, storage_class, using, volume

VOLUMES = """\
policy test version 1
filter node_resources_fit
filter volume_binding
filter node_volume_limits
preemption never
"""


INDEX = "policysched.evaluate.columns.free_volume_index"
MATCHING = "policysched.builtins.volume_binding.matching"
ZONES = "policysched.builtins.volume_zone.kernel"


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """The arguments of the calls from now on. `owner`: a class, or the name of a module."""
    owner = sys.modules[owner] if isinstance(owner, str) else owner
    calls: list[tuple[Any, ...]] = []
    original: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(owner, name, call)
    return calls


def of(namespace: str, pvc: PersistentVolumeClaim) -> PersistentVolumeClaim:
    return replace(pvc, key=VolumeClaimKey(namespace, pvc.key.name))


def segment(name: str, size: str = "10Gi") -> StorageCapacity:
    """For one node of one zone."""
    labels = {HOSTNAME: name, "topology.kubernetes.io/zone": "z"}
    return storage.decode_storage_capacity(
        {
            "metadata": {"name": f"on-{name}", "namespace": "kube-system"},
            "storageClassName": "made",
            "nodeTopology": {"matchLabels": labels},
            "capacity": size,
        }
    )


# ── who pays ─────────────────────────────────────────────────────────────────────────────────────────────────────


def an_overdrawn_namespace_with_claims(*objects: Any) -> TimedRig:
    """Of `tenant`, whose forty pods wait for volumes on a node that has none of them."""
    rig = TimedRig(VOLUMES, node("a", cpu="50"), limits=FAST)
    kinds = storage_class("made", "csi.example.com"), csi_driver(), capacity(size="1Gi", zone="z1")
    rig.handle(*[e.StorageObjectUpdated(kind) for kind in (*kinds, *objects)])
    for index in range(40):
        own = of("tenant", claim(f"c{index}", of_class="made"))
        rig.handle(e.StorageObjectUpdated(own))
        rig.observe(pod(f"tenant-{index}", namespace="tenant", spec=using(f"c{index}")))
    rig.observe(friend("first", priority=-1))
    rig.attempts_until_bound("first", {"test": 20})
    return rig


@pytest.mark.parametrize(
    "change",
    [
        lambda rig: rig.handle(e.StorageObjectUpdated(volume("new", claim="theirs", of_class="made"))),
        lambda rig: rig.handle(e.StorageObjectUpdated(capacity(size="2Gi", zone="z1"))),
        lambda rig: rig.handle(e.StorageObjectUpdated(volume("free", of_class="made", phase="Available"))),
    ],
    ids=["a volume", "a capacity", "a free volume"],
)
def test_volumes_of_others_wake_pods_of_an_overdrawn_namespace_late(
    change: Callable[[TimedRig], object],
) -> None:
    """A tenant has volumes provisioned and deleted as fast as it creates claims."""
    rig = an_overdrawn_namespace_with_claims()

    change(rig)
    rig.observe(pod("new", namespace="tenant", cpu="1", created="2027-01-01T00:00:00Z"))

    assert rig.attempts_until_bound("new", {"test": 20}) == 1


def test_an_attachment_of_others_that_ends_wakes_pods_of_an_overdrawn_namespace_late() -> None:
    full = csi_node("a", limits={"csi.example.com": 1}), attachment("left", node="a", volume="w")
    rig = TimedRig(VOLUMES, node("a", cpu="50"), limits=FAST)
    theirs = volume("w", claim="theirs", claim_uid="uid-theirs", handle="theirs")
    rig.handle(*[e.StorageObjectUpdated(stored) for stored in (theirs, *full)])
    for index in range(40):
        own = of("tenant", claim(f"c{index}", bound_to=f"v{index}"))
        bound = volume(f"v{index}", claim=f"c{index}", handle=f"h{index}")
        rig.handle(e.StorageObjectUpdated(bound), e.StorageObjectUpdated(own))
        rig.observe(pod(f"tenant-{index}", namespace="tenant", spec=using(f"c{index}")))
    rig.observe(friend("first", priority=-1))
    rig.attempts_until_bound("first", {"test": 20})

    rig.handle(e.StorageObjectDeleted("VolumeAttachment", "", "left"))
    rig.observe(pod("new", namespace="tenant", cpu="1", created="2027-01-01T00:00:00Z"))

    assert rig.attempts_until_bound("new", {"test": 20}) == 1


def test_a_claim_that_gives_up_its_node_wakes_its_own_pods_alone() -> None:
    made = storage_class("made", "csi.example.com")
    rig = rig_with(made, *[of("other", claim("theirs", of_class="made"))], claim(), nodes=("a",))
    rig.observe(pod("waits", spec=using("data")))
    rig.settle()
    rig.observe(pod("comes", namespace="other", spec=using("theirs")))
    rig.settle()
    assert [command.name for command in rig.of(c.Prebind)] == ["comes"]

    rig.handle(e.PodDeleted(pod("comes", namespace="other").uid))

    assert not rig.scheduler.ready(rig.now_ns)
    assert rig.counts() == {"unschedulable": 1}


def test_an_event_does_not_read_the_claims_of_the_pods_that_it_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims of each were hashed some ten times: 190 ms in one piece for 1,000 pods of 400 claims."""
    rig = rig_with()
    pods = [
        pod(f"p{index}", cpu=f"{index + 1}m", spec=using(*[f"c{n}" for n in range(9)])) for index in range(5)
    ]
    rig.observe(*pods)
    rig.settle()
    hashed = counted(monkeypatch, PodVolumeClaim, "__hash__")

    rig.handle(e.StorageObjectUpdated(claim("c8")))

    assert rig.counts() == {"backoff": 5}
    assert not hashed


# ── what one decision reads ──────────────────────────────────────────────────────────────────────────────────────


def test_the_claims_of_a_pod_read_the_capacities_of_their_class_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim compared the selectors of all capacities with all nodes: 1.9 s for 64 claims and 1,000 nodes in zones."""
    names = [f"n{index}" for index in range(10)]
    rig = Rig(DEFAULT, *[node(name, zone="z") for name in names], synced=False)
    kinds = storage_class("made", "csi.example.com"), csi_driver(), *[segment(name) for name in names]
    claims = [claim(f"c{index}", of_class="made", size=f"{index + 1}Gi") for index in range(9)]
    rig.handle(*[e.StorageObjectUpdated(stored) for stored in (*kinds, segment("n3", "99Gi"), *claims)])
    rig.handle(e.StorageObjectUpdated(claim("large", of_class="made", size="50Gi")), e.Synced())
    reads = counted(monkeypatch, MATCHING, "requirement_matches")

    rig.observe(pod("web", spec=using("large", *[pvc.key.name for pvc in claims])))
    rig.settle()

    assert [command.node for command in rig.of(c.Prebind)] == ["n3"]
    assert not reads


def test_volumes_of_earlier_claims_of_a_name_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that retains its volumes leaves one for each claim. A pod with 64 uses took 1.1 s beside 10,000 of them."""
    released = [
        volume(f"old-{index}", claim="data", claim_uid=f"uid-{index}", phase="Released")
        for index in range(50)
    ]
    rig = rig_with(*released, claim(), volume("on-b", node="b", claim="data", claim_uid="uid-data"))
    reads = counted(monkeypatch, PersistentVolume, "belongs_to")

    rig.observe(pod("web", spec=using("data", "data")))
    rig.settle()

    assert {read[0].name for read in reads} == {"on-b"}


def test_equal_affinities_and_zones_of_volumes_are_compared_with_the_nodes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """900 volumes of one zone took 0.15 s in one piece."""
    zone = {"topology.kubernetes.io/zone": "z"}
    expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z"]}
    terms = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    storage_objects: list[Any] = []
    for index in range(30):
        name = f"c{index}"
        storage_objects += [volume(f"v{index}", claim=name, claim_uid=f"uid-{name}", labels=zone, spec=terms)]
        storage_objects += [claim(name, bound_to=f"v{index}")]
    rig = Rig(DEFAULT, node("a", zone="z"), node("b", zone="other"), synced=False)
    rig.handle(*[e.StorageObjectUpdated(stored) for stored in storage_objects], e.Synced())
    affinities = counted(monkeypatch, MATCHING, "requirement_matches")
    zones = counted(monkeypatch, ZONES, "newer_label")

    rig.observe(pod("web", spec=using(*[f"c{index}" for index in range(30)])))
    rig.settle()

    assert rig.placements() == {"web": "a"}
    assert len(affinities) < 10
    assert len(zones) < 10


def test_claims_of_unequal_sizes_share_the_index_of_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each made its own, and compared what it takes with those of all others: 2.2 s for 63 claims and 1,000 volumes."""
    claims = [claim(f"c{index}", size=f"{index + 1}Gi") for index in range(9)]
    rig = rig_with(*[volume(f"v{index}", node="b") for index in range(9)], *claims)
    built = counted(monkeypatch, FreeVolumeIndex, "__init__")

    rig.observe(pod("web", spec=using(*[pvc.key.name for pvc in claims])))
    rig.settle()

    (prebind,) = rig.of(c.Prebind)
    assert {bound.volume for bound in prebind.volumes_to_bind} == {f"v{index}" for index in range(9)}
    assert len(built) == 1


def test_claims_are_matched_only_on_nodes_that_had_volumes_for_the_earlier_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixty-four claims with 64 selectors were matched on all nodes: 0.6 s in one piece beside 10,000 volumes on 1,000 nodes."""
    claims = [claim(f"c{index}", size=f"{index + 1}Gi", spec=selecting(index)) for index in range(5)]
    volumes = [volume(f"v{index}", node="b", labels={"disk": str(index)}) for index in range(5)]
    rig = rig_with(*volumes, *claims, nodes=("a", "b", "c"))
    asked = counted(monkeypatch, _CandidatesByCode, "first")

    rig.observe(pod("web", spec=using(*[pvc.key.name for pvc in claims])))
    rig.settle()

    (prebind,) = rig.of(c.Prebind)
    assert prebind.node == "b"
    assert {bound.volume for bound in prebind.volumes_to_bind} == {pvc.name for pvc in volumes}
    assert any(len(rows) == 3 for _, _, rows in asked), "the first claim"
    assert all(len(rows) == 1 for _, _, rows in asked if len(rows) < 3)
    assert sum(len(rows) == 1 for _, _, rows in asked) >= 4


def test_claims_after_one_that_has_no_volume_anywhere_are_not_matched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = [claim(f"c{index}", size=f"{index + 1}Gi", spec=selecting(index)) for index in range(9)]
    rig = rig_with(*[volume(f"v{index}", node="b") for index in range(2)], *claims)
    asked = counted(monkeypatch, FreeVolumeIndex, "matching")

    rig.observe(pod("web", spec=using(*[pvc.key.name for pvc in claims])))
    rig.settle()

    assert not rig.of(c.Prebind)
    assert {pvc.key.name for _, pvc in asked} == {"c0", "c1", "c2"}


def selecting(index: int) -> dict[str, Any]:
    """Of a claim: all volumes but one that does not exist."""
    absent = {"key": "disk", "operator": "NotIn", "values": [f"no {index}"]}
    return {"selector": {"matchExpressions": [absent]}}


def test_the_index_of_free_volumes_is_built_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was built by the first attempt that wanted it, in one piece: 40 ms for 10,000 volumes."""
    monkeypatch.setattr(f"{INDEX}._VOLUMES_PER_STEP", 2)
    rig = rig_with(*[volume(f"v{index}", node="b") for index in range(7)], claim("data", spec=selecting(0)))
    reads = counted(monkeypatch, INDEX, "_single_label")
    labels = counted(monkeypatch, VolumeLabels, "__init__")
    rig.observe(pod("web", spec=using("data")))

    slices = []
    while not rig.of(c.Prebind):
        before = len(reads), len(labels)
        rig.commands += rig.scheduler.decide(rig.now_ns)
        slices.append((len(reads) - before[0], len(labels) - before[1]))

    assert [each for each in slices if each != (0, 0)] == [(2, 0), (2, 0), (2, 0), (1, 0), (0, 1)]


def test_claims_are_compared_with_one_volume_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = [claim(f"c{index}", spec={"volumeAttributesClassName": f"class-{index}"}) for index in range(4)]
    volumes = [volume(f"v{index}", node="b") for index in range(30)]
    rig = rig_with(*volumes, *claims)
    compared = counted(monkeypatch, INDEX, "matches_claim_spec")

    for pvc in claims:
        rig.observe(pod(pvc.key.name, spec=using(pvc.key.name)))
    rig.settle()

    assert len(compared) == len(claims)


def test_the_reasons_of_a_rule_are_computed_once_for_a_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_with(volume("v", node="b", size="1Gi"), claim("data", size="2Gi"))
    asked = counted(monkeypatch, VolumeBindingFilter, "reasons")

    rig.observe(pod("web", spec=using("data")))
    rig.settle()

    assert len(asked) == 2, "for the rejected nodes, and for the diagnosis"


def test_affinities_of_free_volumes_are_compared_with_the_nodes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Volumes of one node of a zone: each decision compared all of them with all nodes, 66 ms for 1,000 volumes."""
    rig = Rig(DEFAULT, *[node(f"n{index}", zone="z") for index in range(9)], synced=False)
    volumes = [volume(f"v{index}", spec=in_zone_on(f"n{index}")) for index in range(9)]
    storage_objects = storage_class(), *volumes, claim("first"), claim("second", size="6Gi")
    rig.handle(*[e.StorageObjectUpdated(stored) for stored in storage_objects], e.Synced())
    rig.observe(pod("one", spec=using("first")))
    rig.settle()
    calls = counted(monkeypatch, MATCHING, "requirement_matches")

    rig.observe(pod("two", spec=using("second")))
    rig.settle()

    assert len(rig.of(c.Prebind)) == 2
    assert not calls


def in_zone_on(name: str) -> dict[str, Any]:
    """The node affinity of a volume on one node of a zone."""
    on_node = {"key": HOSTNAME, "operator": "In", "values": [name]}
    in_zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z"]}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [in_zone, on_node]}]}}}


# ── what is attached to nodes ────────────────────────────────────────────────────────────────────────────────────


def rig_with_many_uses() -> Rig:
    """Each of two nodes has a pod of another namespace that uses fifty claims and a shared one."""
    bound = [volume(f"v-{name}", claim=name, handle=name) for name in ("data", "more")]
    limits = [csi_node(name, limits={"csi.example.com": 3}) for name in "ab"]
    rig = rig_with(*bound, *[claim(name, bound_to=f"v-{name}") for name in ("data", "more")], *limits)
    for name in "ab":
        rig.observe(placed(pod(f"many-{name}", namespace="tenant", spec=many_uses()), name))
    rig.observe(pod("first", cpu="10m", spec=using("data")))
    rig.settle()
    return rig


def many_uses() -> dict[str, Any]:
    return using("shared", *[f"c{index}" for index in range(50)])


def reads_of_their_claims(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> list[str]:
    """By the decision about a pod with a volume."""
    reads = counted(monkeypatch, AvailableVolumes, "claim")
    rig.observe(pod("second", cpu="10m", spec=using("data")))
    rig.settle()
    assert set(rig.placements()) == {"first", "second"}
    return [key.name for _, key in reads if key.namespace == "tenant"]


def test_a_pod_with_a_volume_has_no_others_on_its_node_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 ms for ten pods with 10,000 uses each."""
    rig = rig_with_many_uses()

    rig.observe(placed(pod("another", cpu="10m", spec=using("more")), "a"))

    assert reads_of_their_claims(monkeypatch, rig) == []


def test_a_changed_claim_has_its_own_uses_counted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All volumes of each node with a pod that uses it: 18 ms for one that is used on 1,000 nodes."""
    rig = rig_with_many_uses()

    rig.handle(e.StorageObjectUpdated(of("tenant", claim("shared", of_class=""))))

    assert set(reads_of_their_claims(monkeypatch, rig)) == {"shared"}


def test_changed_labels_have_no_volumes_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_with_many_uses()
    many = rig.observed_pod(pod("many-a", namespace="tenant").uid)

    rig.observe(replace(many, pod=replace(many.pod, labels={"changed": "yes"})))

    assert reads_of_their_claims(monkeypatch, rig) == []
