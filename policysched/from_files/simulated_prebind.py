"""Simulates prebind without a cluster: every claim is bound, or gets its devices, at once.

A provisioned volume is reachable only from the pod's node, like a local one: only its driver knows its real topology.
"""

from collections.abc import Iterator
from dataclasses import replace

from policysched.cluster.cache import ClusterCache
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.model.devices import (
    ClaimConsumer,
    DeviceAllocation,
    DeviceCondition,
    DeviceStatus,
    ResourceClaim,
)
from policysched.model.identifiers import NodeName, PrebindTarget
from policysched.model.selectors import NodeSelectorTerm, SelectorRequirement
from policysched.model.storage import ClaimRef, PersistentVolume, PersistentVolumeClaim
from policysched.scheduler import events as e
from policysched.scheduler.commands import ClaimToCreate, Deallocate, DeleteExtendedClaim, Prebind, Unreserve

_HOSTNAME = "kubernetes.io/hostname"


def simulate_prebind(command: Prebind, cache: ClusterCache) -> Iterator[e.Event]:
    """The resulting events, in order. The caller handles each before it takes the next."""
    versions: dict[PrebindTarget, int] = {}
    for binding in command.volumes_to_bind:
        volume = cache.volumes.volumes[binding.volume]
        versions[volume.name] = volume.version + 1
        yield e.StorageObjectUpdated(_bound_volume(volume, ClaimRef(binding.claim, binding.claim_uid)))
    for made in command.volumes_to_provision:
        claim = cache.volumes.claims[made.claim]
        versions[claim.key] = claim.version + 1
        yield e.StorageObjectUpdated(replace(claim, version=claim.version + 1, selected_node=command.node))
        volume = _provision_volume(claim, command.node, cache)
        yield e.StorageObjectUpdated(volume)
        yield e.StorageObjectUpdated(_bound_claim(cache.volumes.claims[claim.key], volume))
    for volume in list(cache.volumes.volumes.values()):
        bound = None if volume.claim_ref is None else cache.volumes.claims.get(volume.claim_ref.claim)
        if bound is not None and not bound.volume_name and volume.belongs_to(bound, volume.claim_ref):
            yield e.StorageObjectUpdated(_bound_claim(bound, volume))
    for wanted in command.claims_to_reserve:
        cached = cache.devices.claims[wanted.claim]
        pod = ClaimConsumer("", "pods", command.name, command.uid)
        allocation = wanted.allocation or cached.allocation
        versions[cached.key] = cached.version + 1
        yield e.DeviceObjectUpdated(
            replace(
                cached,
                version=cached.version + 1,
                allocation=allocation,
                reserved_for=(*cached.reserved_for, pod),
                device_statuses=_ready_devices(allocation),
            )
        )
    if command.claim_to_create is not None:
        created = _create_claim(command.claim_to_create, command)
        versions[created.key] = created.version
        yield e.DeviceObjectUpdated(created)
    yield e.PrebindWritten(command.uid, versions, command.attempt)


def _create_claim(wanted: ClaimToCreate, command: Prebind) -> ResourceClaim:
    return ResourceClaim(
        key=wanted.claim,
        uid=f"made-for-{command.uid}",
        version=1,
        deleting=False,
        controller_uid=command.uid,
        spec_text=f"extended {wanted.requests}",
        requests=wanted.requests,
        constraints=(),
        configs=(),
        allocation=wanted.allocation,
        reserved_for=(ClaimConsumer("", "pods", command.name, command.uid),),
        finalizers=(),
        for_extended_resources=True,
        device_statuses=_ready_devices(wanted.allocation),
    )


def _ready_devices(allocation: DeviceAllocation | None) -> tuple[DeviceStatus, ...]:
    """Statuses in which every binding condition of the devices is met."""
    return tuple(
        DeviceStatus(
            device.device,
            tuple(DeviceCondition(name, "True", "", "") for name in device.binding_conditions),
        )
        for device in (() if allocation is None else allocation.devices)
    )


def simulate_unreserve(
    command: Unreserve | Deallocate | DeleteExtendedClaim, cache: ClusterCache
) -> Iterator[e.Event]:
    """The events of the released claims."""
    if isinstance(command, DeleteExtendedClaim):
        deleted = cache.devices.claims.get(command.claim)
        yield e.ExtendedClaimDeleted(command.claim, "" if deleted is None else deleted.uid)
        return
    keys = [command.claim] if isinstance(command, Deallocate) else [key for key, _ in command.claims]
    for claim in [cache.devices.claims[key] for key in keys if key in cache.devices.claims]:
        left = replace(claim, version=claim.version + 1)
        if isinstance(command, Deallocate):
            yield e.DeviceObjectUpdated(replace(left, allocation=None, reserved_for=()))
        else:
            consumers = tuple(consumer for consumer in claim.reserved_for if consumer.uid != command.uid)
            yield e.DeviceObjectUpdated(replace(left, reserved_for=consumers))


def _bound_volume(volume: PersistentVolume, claim: ClaimRef) -> PersistentVolume:
    return replace(volume, version=volume.version + 1, claim_ref=claim, phase="Bound")


def _bound_claim(claim: PersistentVolumeClaim, volume: PersistentVolume) -> PersistentVolumeClaim:
    return replace(
        claim, version=claim.version + 1, volume_name=volume.name, bind_completed=True, phase="Bound"
    )


def _provision_volume(claim: PersistentVolumeClaim, node: NodeName, cache: ClusterCache) -> PersistentVolume:
    hostname = cache.nodes[node].labels.get(_HOSTNAME)
    term = (
        None
        if hostname is None
        else NodeSelectorTerm((SelectorRequirement(_HOSTNAME, "In", (hostname,)),), ())
    )
    mount = AvailableVolumes(cache.volumes).csi_volume(claim)
    return PersistentVolume(
        name=f"made-for-{claim.key.namespace}-{claim.key.name}",
        uid=f"made-for-{claim.uid}",
        version=1,
        labels={},
        class_name=claim.class_name,
        capacity_bytes=claim.request_bytes or 0,
        access_modes=claim.access_modes,
        is_block=claim.is_block,
        attributes_class=claim.attributes_class,
        node_affinity_terms=None if term is None else (term,),
        claim_ref=ClaimRef(claim.key, claim.uid),
        bound_by_controller=True,
        phase="Bound",
        deleting=False,
        csi_volume=mount,
        is_csi=mount is not None,
        migration=None,
    )
