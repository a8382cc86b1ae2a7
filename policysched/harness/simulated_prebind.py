"""What a cluster would do about a pod's claims, where there is none: every one is bound, or gets its devices, at once.

A volume that is made belongs to the pod's node alone, as a local one does: how far others could reach it only its
driver knows.
"""

from collections.abc import Iterator
from dataclasses import replace

from policysched.cluster.cache import Cache
from policysched.cluster.volumes.availability import Stock
from policysched.model.devices import (
    Allocation,
    Consumer,
    DeviceCondition,
    DeviceStatus,
    ResourceClaim,
)
from policysched.model.objects import NodeName, NodeSelectorTerm, Preparable, Requirement
from policysched.model.storage import ClaimRef, PersistentVolume, PersistentVolumeClaim
from policysched.scheduler import events as e
from policysched.scheduler.commands import ClaimToMake, Deallocate, DropClaim, Prepare, Unreserve

_HOSTNAME = "kubernetes.io/hostname"


def carried_out(command: Prepare, cache: Cache) -> Iterator[e.Event]:
    """What happens then, in order. Each event is to be handled before the next is asked for."""
    versions: dict[Preparable, int] = {}
    for one in command.to_bind:
        volume = cache.volumes.volumes[one.volume]
        versions[volume.name] = volume.version + 1
        yield e.StorageSeen(_bound_volume(volume, ClaimRef(one.claim, one.claim_uid)))
    for made in command.to_make:
        claim = cache.volumes.claims[made.claim]
        versions[claim.key] = claim.version + 1
        yield e.StorageSeen(replace(claim, version=claim.version + 1, selected_node=command.node))
        volume = _made_volume(claim, command.node, cache)
        yield e.StorageSeen(volume)
        yield e.StorageSeen(_bound_claim(cache.volumes.claims[claim.key], volume))
    for volume in list(cache.volumes.volumes.values()):
        bound = None if volume.claim is None else cache.volumes.claims.get(volume.claim.claim)
        if bound is not None and not bound.volume and volume.belongs_to(bound, volume.claim):
            yield e.StorageSeen(_bound_claim(bound, volume))
    for wanted in command.to_reserve:
        known = cache.devices.claims[wanted.claim]
        pod = Consumer("", "pods", command.name, command.uid)
        given = wanted.allocation or known.allocation
        versions[known.key] = known.version + 1
        yield e.DeviceObjectSeen(
            replace(
                known,
                version=known.version + 1,
                allocation=given,
                reserved_for=(*known.reserved_for, pod),
                device_statuses=_bound_devices(given),
            )
        )
    if command.extended is not None:
        own = _made_claim(command.extended, command)
        versions[own.key] = own.version
        yield e.DeviceObjectSeen(own)
    yield e.PreparationWritten(command.uid, versions)


def _made_claim(wanted: ClaimToMake, command: Prepare) -> ResourceClaim:
    return ResourceClaim(
        key=wanted.claim,
        uid=f"made-for-{command.uid}",
        version=1,
        deleting=False,
        controller_uid=command.uid,
        spec=f"extended {wanted.requests}",
        requests=wanted.requests,
        constraints=(),
        configs=(),
        allocation=wanted.allocation,
        reserved_for=(Consumer("", "pods", command.name, command.uid),),
        finalizers=(),
        extended=True,
        device_statuses=_bound_devices(wanted.allocation),
    )


def _bound_devices(given: Allocation | None) -> tuple[DeviceStatus, ...]:
    """Every condition that devices wait for is met."""
    return tuple(
        DeviceStatus(
            one.device,
            tuple(DeviceCondition(name, "True", "", "") for name in one.binding_conditions),
        )
        for one in (() if given is None else given.devices)
    )


def taken_back(command: Unreserve | Deallocate | DropClaim, cache: Cache) -> Iterator[e.Event]:
    """What the claims are then."""
    if isinstance(command, DropClaim):
        yield e.ClaimDropped(command.claim)
        return
    keys = [command.claim] if isinstance(command, Deallocate) else [key for key, _ in command.claims]
    for known in [cache.devices.claims[key] for key in keys if key in cache.devices.claims]:
        left = replace(known, version=known.version + 1)
        if isinstance(command, Deallocate):
            yield e.DeviceObjectSeen(replace(left, allocation=None, reserved_for=()))
        else:
            others = tuple(one for one in known.reserved_for if one.uid != command.uid)
            yield e.DeviceObjectSeen(replace(left, reserved_for=others))


def _bound_volume(volume: PersistentVolume, claim: ClaimRef) -> PersistentVolume:
    return replace(volume, version=volume.version + 1, claim=claim, phase="Bound")


def _bound_claim(claim: PersistentVolumeClaim, volume: PersistentVolume) -> PersistentVolumeClaim:
    return replace(claim, version=claim.version + 1, volume=volume.name, bind_completed=True, phase="Bound")


def _made_volume(claim: PersistentVolumeClaim, node: NodeName, cache: Cache) -> PersistentVolume:
    hostname = cache.nodes[node].labels.get(_HOSTNAME)
    term = None if hostname is None else NodeSelectorTerm((Requirement(_HOSTNAME, "In", (hostname,)),), ())
    mount = Stock(cache.volumes).mount(claim)
    return PersistentVolume(
        name=f"made-for-{claim.key.namespace}-{claim.key.name}",
        uid=f"made-for-{claim.uid}",
        version=1,
        labels={},
        class_name=claim.class_name,
        capacity_bytes=claim.request_bytes or 0,
        access_modes=claim.access_modes,
        block=claim.block,
        attributes_class=claim.attributes_class,
        required=None if term is None else (term,),
        claim=ClaimRef(claim.key, claim.uid),
        bound_by_controller=True,
        phase="Bound",
        deleting=False,
        mount=mount,
        is_csi=mount is not None,
        migration=None,
    )
