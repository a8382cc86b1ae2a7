"""Volume claims of a pod between node choice and bind: reserved, written, awaited, and what can happen meanwhile."""

from dataclasses import replace
from itertools import pairwise

import pytest

from policysched.cluster.ledger import PlacementState
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.evaluate.columns import attached_volumes
from policysched.kube.decode.errors import MalformedObject
from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.storage import ClaimRef
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import PREBINDS_PER_SLICE_MAX
from policysched.scheduler.prebind import Prebinder
from tests.builders import node, pending, placed, pod
from tests.scheduler.rig import Rig
from tests.volumes import HOSTNAME, claim, csi_node, storage_class, using, volume

DEFAULT = "policy test version 1\ninclude kube_default\npreemption never\n"
DATA = VolumeClaimKey("default", "data")
UID = PodUid("uid-default-web")


def rig_with(*storage: object, nodes: tuple[str, ...] = ("a", "b"), policy: str = DEFAULT) -> Rig:
    rig = Rig(policy, *[node(name) for name in nodes], synced=False)
    rig.handle(*[e.StorageObjectUpdated(item) for item in (storage_class(), *storage)])  # type: ignore[arg-type]
    rig.handle(e.Synced())
    return rig


def written(rig: Rig, **versions: int) -> None:
    """The writer has done what it was told; `data=2` is the claim's version, other names are volumes."""
    known = {DATA if name == "data" else name.replace("_", "-"): number for name, number in versions.items()}
    rig.handle(e.PrebindWritten(UID, known))


def test_a_pod_is_bound_after_its_claim() -> None:
    rig = rig_with(volume("on-b", node="b"), claim())
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    (prepare,) = rig.of(c.Prebind)

    written(rig, on_b=2)
    rig.handle(
        e.StorageObjectUpdated(volume("on-b", claim="data", claim_uid="uid-data", node="b", version=2))
    )
    before = rig.placements()
    rig.handle(e.StorageObjectUpdated(claim(bound_to="on-b", version=3)))

    assert prepare.node == "b"
    assert prepare.volumes_to_bind == (
        c.VolumeToBind("on-b", "uid-on-b", 1, DATA, "uid-data", mark_bound_by_controller=True),
    )
    assert before == {}
    assert rig.placements() == {"web": "b"}
    assert rig.scheduler.cache.ledger.state(UID) is PlacementState.PREBOUND


def test_a_pod_with_very_many_unbound_claims_is_not_attempted_on_any_node() -> None:
    """Each would be compared with what the others take, by each free volume: a minute for a thousand uses of one claim."""
    rig = rig_with(claim(), *[volume(f"v{number}") for number in range(65)])

    rig.observe(pod("web", spec=using(*["data"] * 65)))
    rig.settle()
    rig.observe(pod("fewer", spec=using(*["data"] * 64)))
    rig.settle()

    assert "pod uses more than 64 unbound PersistentVolumeClaims" in str(rig.pending_message("web"))
    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["fewer"]


def test_a_claim_with_a_very_large_selector_is_malformed() -> None:
    """The selector is hashed for each use of the claim: 40 ms for 20,000 requirements, and a pod can use a claim 1,000 times."""
    labels = {f"key-{number}": "v" for number in range(1_001)}

    with pytest.raises(MalformedObject, match="more than 1000 requirements and values"):
        claim(spec={"selector": {"matchLabels": labels}})


def test_pods_that_share_a_claim_are_looked_at_a_few_at_a_time() -> None:
    """A volume that all nodes reach, as of NFS. 4,000 pods whose claim was deleted took 0.4 s in one piece."""
    shared = {"accessModes": ["ReadWriteMany"]}
    rig = rig_with(volume("nfs", phase="Available", spec=shared), claim(mode="ReadWriteMany"))
    rig.observe(*(pod(f"p{number}", spec=using("data")) for number in range(100)))
    rig.settle()
    for made in rig.of(c.Prebind):
        rig.handle(e.PrebindWritten(made.uid, {"nfs": 2}, made.attempt))
    marked = replace(volume("nfs", claim="data", claim_uid="uid-data", spec=shared), version=2)
    rig.handle(e.StorageObjectUpdated(marked))
    left = [rig.scheduler.prebinding_count]

    rig.handle(e.StorageObjectDeleted("PersistentVolumeClaim", "default", "data"))
    left.append(rig.scheduler.prebinding_count)
    while left[-1] and len(left) < 20:
        rig.scheduler.decide(rig.now_ns)
        left.append(rig.scheduler.prebinding_count)

    assert left[0] == 100 and left[-1] == 0
    assert max(before - after for before, after in pairwise(left)) <= PREBINDS_PER_SLICE_MAX


def test_a_bound_claim_needs_no_prebind() -> None:
    rig = rig_with(volume("on-b", node="b", claim="data", claim_uid="uid-data"), claim(bound_to="on-b"))

    rig.observe(pod("web", spec=using("data")))
    rig.settle()

    assert rig.of(c.Prebind) == []
    assert rig.placements() == {"web": "b"}


def test_a_claim_to_provision_gets_the_selected_node() -> None:
    made = storage_class("made", "csi.example.com")
    rig = rig_with(made, claim(of_class="made"), nodes=("a",))

    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    written(rig, data=2)
    rig.handle(e.StorageObjectUpdated(claim(of_class="made", selected="a", version=2)))
    rig.handle(
        e.StorageObjectUpdated(
            volume("made-1", node="a", claim="data", claim_uid="uid-data", of_class="made")
        )
    )
    rig.handle(e.StorageObjectUpdated(claim(of_class="made", selected="a", bound_to="made-1", version=3)))

    (prepare,) = rig.of(c.Prebind)
    assert prepare.volumes_to_provision == (c.VolumeToProvision(DATA, "uid-data", 1),)
    assert rig.placements() == {"web": "a"}


def test_a_policy_with_counts_and_shares_binds_volumes() -> None:
    """Found by the simulation: the choice of the volumes looked at the pod without them, and the scheduler ended."""
    counting = f"{DEFAULT}filter few require count(pods where other.namespace == pod.namespace) < 9\n"
    sharing = 'filter fair when namespace.share.cpu > 90% require node.labels["spare"] else "" == "yes"\n'
    rig = rig_with(volume("on-b", node="b"), claim(), policy=counting + sharing)

    rig.observe(pod("web", spec=using("data")))
    rig.settle()

    (prepare,) = rig.of(c.Prebind)
    assert prepare.node == "b"


def test_a_pod_is_nominated_before_its_claims_are_bound_and_not_after_a_refusal() -> None:
    rig = rig_with(volume("on-b", node="b"), claim())
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    (prepare,) = rig.of(c.Prebind)

    rig.handle(e.PrebindRefused(UID, "the object has been modified", {}))

    assert prepare.nominate
    assert [command.name for command in rig.of(c.ClearNomination)] == ["web"]
    assert UID not in rig.scheduler.cache.nominated


def test_a_pod_that_is_nominated_to_its_node_is_not_nominated_again() -> None:
    rig = rig_with(volume("on-b", node="b"), claim())

    rig.observe(replace(pending(pod("web", spec=using("data"))), nominated_node=NodeName("b")))
    rig.settle()

    (prepare,) = rig.of(c.Prebind)
    assert not prepare.nominate


def test_a_pod_whose_claims_are_being_bound_keeps_its_nomination_when_another_preempts_on_its_node() -> None:
    rig = rig_with(
        volume("on-b", node="b"), claim(), policy=DEFAULT.replace("never", "{ victims = any }"), nodes=("b",)
    )
    rig.observe(pod("web", spec=using("data"), cpu="1"))
    rig.settle()
    rig.observe(placed(pod("low", cpu="3", scheduler="other", priority=-1), "b"))

    rig.observe(pod("high", cpu="3", priority=10))
    rig.settle()

    assert [eviction.name for eviction in rig.of(c.Evict)] == ["high"]
    assert rig.of(c.ClearNomination) == []


def test_one_volume_is_not_reserved_for_two_pods() -> None:
    rig = rig_with(volume("only", node="a"), claim("one"), claim("two"), nodes=("a",))

    rig.observe(pod("first", spec=using("one")), pod("second", spec=using("two")))
    rig.settle()

    assert [prebind.volumes_to_bind[0].claim.name for prebind in rig.of(c.Prebind)] == ["one"]
    assert rig.pending_message("second") == (
        "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."
    )


def test_a_refused_write_releases_the_volume_and_the_pod_is_retried_later() -> None:
    rig = rig_with(volume("only", node="a"), claim("one"), claim("two"), nodes=("a",))
    rig.observe(pod("first", spec=using("one")), pod("second", spec=using("two")))
    rig.settle()

    rig.handle(e.PrebindRefused(PodUid("uid-default-first"), "the object has been modified", {}))
    rig.settle()

    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["first", "second"]
    assert (
        rig.pending_message("first") == 'running PreBind plugin "VolumeBinding": the object has been modified'
    )


def test_the_answer_to_an_attempt_that_was_given_up_is_not_taken_for_that_of_the_next_one() -> None:
    """It was on its way when the next attempt began, whose claims were then bound for a node before they were written for it."""
    rig = rig_with(volume("on-b", node="b"), claim(), nodes=("b",))
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    rig.pass_time(600)
    rig.pass_time(20)
    first, second = rig.of(c.Prebind)
    rig.handle(
        e.StorageObjectUpdated(volume("on-b", node="b", claim="data", claim_uid="uid-data", version=2))
    )
    rig.handle(e.StorageObjectUpdated(claim(bound_to="on-b", version=3)))

    rig.handle(e.PrebindWritten(UID, {"on-b": 2}, first.attempt))
    after_the_first = dict(rig.placements())
    rig.handle(e.PrebindRefused(UID, "conflict", {}, first.attempt))
    rig.handle(e.PrebindWritten(UID, {"on-b": 2}, second.attempt))

    assert after_the_first == {}
    assert rig.placements() == {"web": "b"}


def test_after_the_timeout_the_node_is_free_and_the_pod_is_retried() -> None:
    rig = rig_with(volume("on-b", node="b"), claim())
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    written(rig, on_b=2)

    rig.pass_time(599)
    before = len(rig.of(c.Prebind))
    rig.pass_time(1)
    free = rig.scheduler.cache.ledger.state(UID)
    message = rig.pending_message("web")
    rig.pass_time(10)

    assert (before, free) == (1, PlacementState.UNKNOWN)
    assert message == 'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded'
    assert [prebind.node for prebind in rig.of(c.Prebind)] == ["b", "b"], "what was written is for this claim"


def test_the_policy_sets_the_bind_timeout() -> None:
    policy = "policy test version 1\nfilter volume_binding { bind_timeout_seconds = 30 }\npreemption never\n"
    rig = rig_with(volume("on-b", node="b"), claim(), policy=policy)
    rig.observe(pod("web", spec=using("data")))
    rig.settle()

    rig.pass_time(30)

    assert "context deadline exceeded" in str(rig.pending_message("web"))


def test_a_provisioner_that_gives_up_sends_the_pod_elsewhere() -> None:
    made = storage_class("made", "csi.example.com")
    rig = rig_with(made, claim(of_class="made"))
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    first = rig.of(c.Prebind)[0].node
    written(rig, data=2)
    rig.handle(e.StorageObjectUpdated(claim(of_class="made", selected=first, version=2)))

    rig.handle(e.StorageObjectUpdated(claim(of_class="made", version=3)))

    assert rig.pending_message("web") == (
        'running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "data"'
    )


def test_a_version_older_than_the_written_one_is_ignored() -> None:
    made = storage_class("made", "csi.example.com")
    rig = rig_with(made, claim(of_class="made"), nodes=("a",))
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    written(rig, data=5)

    rig.handle(e.StorageObjectUpdated(claim(of_class="made", version=4)))

    assert rig.pending_message("web") is None
    assert rig.scheduler.prebinding_count == 1


def test_deleting_the_node_ends_the_wait() -> None:
    rig = rig_with(volume("on-b", node="b"), claim())
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    written(rig, on_b=2)

    rig.handle(e.NodeDeleted(node("b").name))

    assert 'failed to get node "b"' in str(rig.pending_message("web"))
    assert rig.scheduler.prebinding_count == 0


def test_a_pod_deleted_during_prebind_frees_node_and_volumes() -> None:
    rig = rig_with(volume("only", node="a"), claim("one"), claim("two"), nodes=("a",))
    rig.observe(pod("first", spec=using("one")), pod("second", spec=using("two")))
    rig.settle()

    rig.handle(e.PodDeleted(PodUid("uid-default-first")))
    rig.settle()

    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["first", "second"]


def test_a_late_answer_to_a_write_changes_nothing() -> None:
    rig = rig_with(volume("on-b", node="b"), claim())
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    rig.handle(e.PodDeleted(UID))

    written(rig, on_b=2)

    assert rig.placements() == {}
    assert rig.scheduler.binds_in_flight == 0


def test_a_pod_waits_only_for_its_own_claim() -> None:
    rig = rig_with()
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    words = rig.pending_message("web")

    rig.handle(e.StorageObjectUpdated(claim("other")))
    after_other = rig.scheduler.ready(rig.now_ns)
    rig.handle(e.StorageObjectUpdated(volume("on-b", node="b", claim="data", claim_uid="uid-data")))
    rig.handle(e.StorageObjectUpdated(claim(bound_to="on-b")))
    rig.pass_time(10)

    assert words == '0/2 nodes are available: persistentvolumeclaim "data" not found. not found'
    assert not after_other
    assert rig.placements() == {"web": "b"}


def test_pods_that_wait_for_volumes_do_not_block_others() -> None:
    rig = rig_with(volume("on-b", node="b"), claim())
    rig.observe(pod("web", spec=using("data")))
    rig.settle()

    rig.observe(pod("plain"))
    rig.settle()

    assert (rig.scheduler.prebinding_count, rig.scheduler.binds_in_flight) == (1, 1)
    assert "plain" in rig.placements()


def test_a_gang_gets_volumes_for_all_members_or_for_none() -> None:
    gang = (
        'policy test version 1\ninput group: string = pod.labels["group"] optional\n'
        "gang by group { min = 2 }\ninclude kube_default\npreemption never\n"
    )
    rig = rig_with(volume("v1", node="a"), claim("one"), claim("two"), policy=gang, nodes=("a",))
    for name in ("one", "two"):
        rig.observe(pod(name, labels={"group": "g"}, spec=using(name)))
    rig.settle()
    nothing = rig.of(c.Prebind)

    rig.handle(e.StorageObjectUpdated(volume("v2", node="a")))
    rig.pass_time(10)

    assert nothing == []
    assert {prebind.volumes_to_bind[0].volume for prebind in rig.of(c.Prebind)} == {"v1", "v2"}


def test_a_raised_limit_requeues_the_pods_that_it_rejected() -> None:
    on_node = volume("v1", handle="one", claim="one", claim_uid="uid-one")
    other = volume("v2", handle="two", claim="two", claim_uid="uid-two")
    rig = rig_with(on_node, other, claim("one", bound_to="v1"), claim("two", bound_to="v2"), nodes=("a",))
    rig.handle(e.StorageObjectUpdated(csi_node("a", limits={"csi.example.com": 1})))
    rig.observe(pod("first", spec=using("one")))
    rig.settle()
    rig.observe(pod("second", spec=using("two")))
    rig.settle()
    words = rig.pending_message("second")

    rig.handle(e.StorageObjectUpdated(csi_node("a", limits={"csi.example.com": 2})))
    rig.pass_time(10)

    assert words == "0/1 nodes are available: 1 node(s) exceed max volume count."
    assert rig.placements() == {"first": "a", "second": "a"}


def test_a_restarted_scheduler_uses_the_written_claims() -> None:
    """The volume says whose it is, and nobody has bound the claim yet."""
    rig = rig_with(
        volume("on-b", node="b", claim="data", claim_uid="uid-data"), volume("on-a", node="a"), claim()
    )

    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    (prepare,) = rig.of(c.Prebind)
    rig.handle(e.PrebindWritten(UID, {}))
    rig.handle(e.StorageObjectUpdated(claim(bound_to="on-b", version=2)))

    assert (prepare.node, prepare.volumes_to_bind) == ("b", ())
    assert rig.placements() == {"web": "b"}


def test_a_claim_ref_without_a_uid_gets_one_and_no_mark() -> None:
    """The user has meant the volume for a claim of that name."""
    rig = rig_with(volume("on-b", node="b", claim="data"), claim())

    rig.observe(pod("web", spec=using("data")))
    rig.settle()

    (prepare,) = rig.of(c.Prebind)
    assert [(write.volume, write.mark_bound_by_controller) for write in prepare.volumes_to_bind] == [
        ("on-b", False)
    ]


def test_a_removed_claim_ref_requeues_the_pod() -> None:
    rig = rig_with(volume("on-b", node="b"), claim())
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    written(rig, on_b=2)

    rig.handle(e.StorageObjectUpdated(volume("on-b", node="b", version=3)))

    assert rig.pending_message("web") == (
        'running PreBind plugin "VolumeBinding": binding volumes: ClaimRef got reset for pv "on-b"'
    )


def test_a_policy_without_the_filter_leaves_pods_with_claims_waiting() -> None:
    rig = rig_with(
        volume("on-b", node="b"), claim(), policy="policy test version 1\nfilter node_resources_fit\n"
    )

    rig.observe(pod("web", spec=using("data")))
    rig.settle()

    assert "no `filter volume_binding`" in str(rig.pending_message("web"))
    assert rig.placements() == {}


def test_a_reservation_equals_the_written_volume() -> None:
    rig = rig_with(volume("on-b", node="b"), claim())
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    stock, available = AvailableVolumes(rig.scheduler.cache.volumes), volume("on-b", node="b")

    promised = stock.claim_ref_of(available)
    written(rig, on_b=2)
    rig.handle(e.StorageObjectUpdated(replace(available, claim_ref=ClaimRef(DATA, "uid-data"), version=2)))

    assert promised == ClaimRef(DATA, "uid-data")
    assert rig.scheduler.cache.volumes.reservations.by_key == {}


def test_a_volume_of_others_is_no_reason_to_check_the_pods_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of pods can wait for their volumes, and each volume has several versions."""
    rig = rig_with(storage_class("made", "csi.example.com"), claim(of_class="made"), nodes=("a",))
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    written(rig, data=2)
    checked: list[PodUid] = []
    monkeypatch.setattr(
        Prebinder, "_recheck_pod", lambda _self, state, _now_ns: checked.append(state.in_flight_bind.pod.uid)
    )

    for name in ("other", "data"):
        made = volume(f"made-{name}", claim=name, claim_uid=f"uid-{name}", of_class="made")
        rig.handle(e.StorageObjectUpdated(made))
        rig.handle(e.StorageObjectDeleted("PersistentVolume", "", made.name))

    assert checked == [UID, UID]  # a volume of its claim came and went


@pytest.mark.parametrize("change", [{}, {"owner": "uid-of-nobody"}, {"selected": "a"}, {"size": "6Gi"}])
def test_a_write_that_changes_nothing_for_the_pods_of_a_claim_retries_none(change: dict[str, str]) -> None:
    """A user can write its annotations and owners again and again: 35 ms for a pod with a thousand claims."""
    rig = rig_with(volume("on-b", node="b", claim="data"), claim(bound_to="on-b"), nodes=("a",))
    rig.observe(pod("web", spec=using("data")))
    rig.settle()

    rig.handle(e.StorageObjectUpdated(claim(bound_to="on-b", version=7, **change)))
    unaffected = rig.counts()
    rig.handle(e.StorageObjectUpdated(claim(bound_to="on-b", version=8, deleting=True)))

    assert unaffected == {"unschedulable": 1}
    assert rig.counts() == {"backoff": 1}
    assert rig.scheduler.cache.volumes.claims[DATA].version == 8


def test_a_write_of_another_client_that_frees_a_claim_retries_its_pods() -> None:
    """The claim is as it was, but is not reserved for node a any more."""
    made = storage_class("made", "csi.example.com")
    rig = rig_with(made, claim(of_class="made"), nodes=("a",))
    rig.observe(pod("web", spec=using("data")))
    rig.settle()
    rig.observe(pod("other", spec={**using("data"), "nodeSelector": {HOSTNAME: "b"}}), node("b"))
    rig.settle()
    waiting = rig.counts()

    rig.handle(e.StorageObjectUpdated(claim(of_class="made", version=2)))

    assert waiting == {"unschedulable": 1}
    assert rig.counts() == {"backoff": 1}


def test_the_owner_of_a_claim_matters_to_the_pod_that_has_it_as_ephemeral_volume() -> None:
    rig = rig_with(volume("v", claim="web-data"), claim("web-data", bound_to="v"))
    rig.observe(pod("web", spec=using(ephemeral="data")))
    rig.settle()
    refused = rig.pending_message("web")

    rig.handle(e.StorageObjectUpdated(claim("web-data", bound_to="v", owner=UID, version=2)))
    rig.pass_time(5)

    assert "pod is not owner" in str(refused)
    assert rig.placements() == {"web": "a"}


@pytest.mark.parametrize(("owner", "recounted"), [("uid-of-nobody", 0), ("uid-default-own", 1)])
def test_an_owner_of_a_claim_changes_the_volumes_of_its_own_node_alone(
    monkeypatch: pytest.MonkeyPatch, owner: str, recounted: int
) -> None:
    """The volumes of each node with the claim were counted again: 80 ms for 100 pods of 1,000 claims."""
    storage = [volume("v", claim="own-data", handle="h"), claim("own-data", bound_to="v")]
    storage += [volume("w", claim="data", handle="i"), claim(bound_to="w")]
    rig = rig_with(*storage, *[csi_node(name, limits={"csi.example.com": 1}) for name in "ab"])
    rig.observe(placed(pod("own", spec=using(ephemeral="data")), "a"))
    rig.observe(placed(pod("user", spec=using("own-data")), "b"))
    rig.observe(pod("both", spec={**using("data", "own-data"), "nodeSelector": {HOSTNAME: "b"}}))
    rig.settle()
    calls: list[VolumeClaimKey] = []
    follow = attached_volumes.csi_volume_of_use
    monkeypatch.setattr(
        attached_volumes,
        "csi_volume_of_use",
        lambda use, *more: calls.append(use.claim) or follow(use, *more),
    )

    rig.handle(e.StorageObjectUpdated(claim("own-data", bound_to="v", owner=owner, version=2)))
    rig.observe(pod("web", spec={**using("data"), "nodeSelector": {HOSTNAME: "a"}}))
    rig.settle()

    assert len(calls) == recounted
    assert ("web" in rig.placements()) == (not recounted)
