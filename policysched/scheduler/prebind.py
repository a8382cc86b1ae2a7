"""Between a pod's node and its bind: its claims are bound to volumes there, and those for devices reserved for it.

    assumed ──Prepare──► writing ──PreparationWritten──► waiting ──all claims bound──► prepared ─► Bind
                                   └─────── refused, undone, a node gone, time over ───────┴──► withdrawn, tried again

The volumes are promised to the pod from the moment at which it is assumed. Once they are written the PV controller and
the provisioners do the rest, and the watch shows how far they are; nothing is judged by a version that is older than
what was written. Nothing has to be undone when this ends early, or when another process goes on: what was written says
which node and which volumes the claims are for, and the next decision goes by that. A claim for devices keeps them,
and is not reserved for the pod any more; one that was made for the pod is taken away. Nobody else gets devices before it is
known that they were not written for a pod that is gone: they stay promised until the writes are answered. Source: `BindPodVolumes` in kubernetes'
`pkg/scheduler/framework/plugins/volumebinding/binder.go`, `PreBind` and `Unreserve` in `dynamicresources`.
"""

from collections.abc import Mapping

from policysched.cluster.devices.binding_conditions import (
    DeviceBindingFailed,
    binding_deadline_ns,
    is_ready_for_binding,
)
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.volumes.binder import node_affinity_on, not_found_message
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.evaluate import PrebindRequirements
from policysched.model.devices import DeviceAllocation, ResourceClaim
from policysched.model.identifiers import NodeName, PodUid, PrebindTarget, ResourceClaimKey, VolumeClaimKey
from policysched.model.nodes import Node
from policysched.model.selectors import volume_fits_labels
from policysched.model.storage import PersistentVolume, PersistentVolumeClaim
from policysched.scheduler.bind_tracker import BindTracker
from policysched.scheduler.commands import (
    Bind,
    ClaimToCreate,
    ClaimToReserve,
    Prebind,
    ReportPodEvent,
    VolumeToBind,
    VolumeToProvision,
)
from policysched.scheduler.core import InFlightBind, PrebindState, SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.movable_heap import MovableHeap

WrittenVersions = Mapping[PrebindTarget, int]

_VOLUME_PLUGIN, _DEVICE_PLUGIN = "VolumeBinding", "DynamicResources"
_TIMEOUT_MESSAGE = "context deadline exceeded"


class _PrebindImpossible(Exception):
    """What was written does not stand any more, or cannot: in kube-scheduler's words."""


class Prebinder:
    """`SchedulerCore.prebinding` are the pods on their way."""

    def __init__(self, core: SchedulerCore, binding: BindTracker) -> None:
        self._core = core
        self._bind_tracker = binding
        self._deadlines: MovableHeap[PodUid] = MovableHeap()

    def begin(self, flight: InFlightBind, needs: PrebindRequirements, now_ns: int) -> None:
        """The pod was just assumed."""
        core, pod = self._core, flight.pod.pod
        choice = _volume_choice(needs)
        core.cache.volumes.reserve(pod.uid, choice, flight.node)
        core.cache.devices.reserve(pod.uid, needs.devices)
        ends_ns = now_ns + _timeout_s(needs) * SECOND_NS
        core.prebinding[pod.uid] = PrebindState(flight, needs, ends_ns)
        self._deadlines.put(pod.uid, ends_ns)
        if needs.devices.claim_to_create is not None:
            core.created_claims[pod.uid] = needs.devices.claim_to_create[0].key
        core.commands.append(
            Prebind(
                pod.uid,
                pod.namespace,
                pod.name,
                flight.node,
                tuple(
                    found
                    for claim, volume in choice.static_bindings
                    if (found := _volume_to_bind(claim, volume)) is not None
                ),
                tuple(
                    VolumeToProvision(claim.key, claim.uid, claim.version)
                    for claim in choice.dynamic_provisions
                ),
                (
                    *(
                        _claim_to_reserve(claim, given, now_ns)
                        for claim, given in needs.devices.allocated
                        if claim.uid
                    ),
                    *(_claim_to_reserve(claim, None, now_ns) for claim in needs.devices.reserved),
                ),
                _claim_to_create(needs.devices, now_ns),
            )
        )

    def written(self, uid: PodUid, versions: WrittenVersions, now_ns: int) -> None:
        preparation = self._core.prebinding.get(uid)
        if preparation is None:
            self._release_unconfirmed(uid, versions, now_ns)
            return
        preparation.written_versions = versions
        self._record_written(preparation, versions, now_ns)
        flight, awaited = preparation.in_flight_bind, preparation.prebind_work.devices.awaiting_binding
        if awaited:
            pod, words = flight.pod.pod, f"waiting for binding conditions for device on node {flight.node}"
            core = self._core
            core.commands.append(
                ReportPodEvent(
                    uid, pod.namespace, pod.name, pod.scheduler, "Normal", "BindingConditionsPending", words
                )
            )
        self._recheck_pod(preparation, now_ns)
        if now_ns >= preparation.deadline_ns and uid in self._core.prebinding:
            self._time_out(preparation, now_ns)

    def refused(self, uid: PodUid, reason: str, versions: WrittenVersions, now_ns: int) -> None:
        preparation = self._core.prebinding.get(uid)
        if preparation is not None:
            self._record_written(preparation, versions, now_ns)
            plugin = _DEVICE_PLUGIN if preparation.prebind_work.volumes is None else _VOLUME_PLUGIN
            self._fail(preparation, reason, now_ns, plugin)
        else:
            self._release_unconfirmed(uid, versions, now_ns)

    def recheck(
        self, now_ns: int, *, claim: VolumeClaimKey | None = None, node: NodeName | None = None
    ) -> None:
        """Something changed that pods may wait for (those that use the claim, those that go to the node)."""
        for preparation in list(self._core.prebinding.values()):
            uses = claim is None or any(
                use.claim == claim for use in preparation.in_flight_bind.pod.pod.claims
            )
            if uses and node in (None, preparation.in_flight_bind.node):
                self._recheck_pod(preparation, now_ns)

    def device_claim_changed(self, claim: ResourceClaimKey, now_ns: int) -> None:
        """A claim for devices is another than before."""
        for preparation in list(self._core.prebinding.values()):
            if claim in preparation.prebind_work.devices.awaiting_binding:
                self._recheck_pod(preparation, now_ns)

    def advance(self, now_ns: int) -> None:
        while (ends_ns := self._deadlines.first_key()) is not None and ends_ns <= now_ns:
            uid = self._deadlines.first()
            assert uid is not None
            preparation = self._core.prebinding[uid]
            if _has_unanswered_device_writes(preparation):
                self._deadlines.discard(uid)  # what is under way may land: its answer comes first
                continue
            self._recheck_pod(preparation, now_ns)  # which may know better words
            if uid in self._core.prebinding:
                self._time_out(preparation, now_ns)

    def _time_out(self, preparation: PrebindState, now_ns: int) -> None:
        if preparation.prebind_work.volumes is None:
            self._fail(preparation, f"device binding timeout: {_TIMEOUT_MESSAGE}", now_ns, _DEVICE_PLUGIN)
        else:
            self._fail(preparation, f"binding volumes: {_TIMEOUT_MESSAGE}", now_ns)

    def next_time_ns(self) -> int | None:
        return self._deadlines.first_key()

    def abort(self, uid: PodUid, now_ns: int) -> None:
        """The pod is gone, ends, or is on a node already."""
        preparation = self._core.prebinding.get(uid)
        if preparation is not None:
            if _has_unanswered_device_writes(preparation):
                self._core.unconfirmed_device_writes[uid] = preparation.prebind_work.devices
            self._finish(preparation, now_ns)
            self._bind_tracker.lost(uid, "the pod is gone or bound while its volumes are being bound", now_ns)

    def _record_written(self, preparation: PrebindState, versions: WrittenVersions, now_ns: int) -> None:
        core, uid, devices = self._core, preparation.in_flight_bind.pod.uid, preparation.prebind_work.devices
        core.cache.volumes.mark_written(uid, _volume_choice(preparation.prebind_work), versions)
        core.queue.requeue(core.cache.devices.mark_written(uid, devices, versions), now_ns)
        claims = [*(claim for claim, _ in devices.allocated if claim.uid), *devices.reserved]
        reserved = tuple((claim.key, claim.uid) for claim in claims if claim.key in versions)
        if reserved:
            core.reserved_claims[uid] = reserved

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recheck_pod(self, preparation: PrebindState, now_ns: int) -> None:
        if preparation.written_versions is None:
            return
        try:
            ready = self._volumes_bound(preparation, preparation.written_versions)
        except _PrebindImpossible as undone:
            self._fail(preparation, f"binding volumes: {undone}", now_ns)
            return
        try:
            ready &= self._devices_bound(preparation, preparation.written_versions, now_ns)
        except DeviceBindingFailed as failed:
            self._fail(preparation, str(failed), now_ns, _DEVICE_PLUGIN)
            return
        if ready:
            flight = preparation.in_flight_bind
            self._finish(preparation, now_ns)
            self._core.cache.mark_prebound(flight.pod.uid)
            self._core.commands.append(bind_command(flight))

    def _volumes_bound(self, preparation: PrebindState, versions: WrittenVersions) -> bool:
        """Whether the pod can be bound. Raises _Undone where it never will."""
        node_name = preparation.in_flight_bind.node
        node = self._core.cache.nodes.get(node_name)
        if node is None:
            raise _PrebindImpossible(
                f'failed to get node "{node_name}": {not_found_message("node", node_name)}'
            )
        choice = _volume_choice(preparation.prebind_work)
        return all(
            [
                *(self._is_bound(claim, volume, node, versions) for claim, volume in choice.static_bindings),
                *(self._is_provisioned(claim, node, versions) for claim in choice.dynamic_provisions),
            ]
        )

    def _devices_bound(self, preparation: PrebindState, versions: WrittenVersions, now_ns: int) -> bool:
        """Whether all devices that wait for it are bound. Raises BindingFailed where one never will, or not in time."""
        uid, needs, found = preparation.in_flight_bind.pod.uid, preparation.prebind_work, True
        for key in needs.devices.awaiting_binding:
            claim = self._core.cache.devices.claims.get(key)
            if claim is None and key not in versions:
                raise DeviceBindingFailed(f'could not find ResourceClaim "{key}"')
            if claim is None or claim.version < versions.get(key, 0):
                found = False
            elif not is_ready_for_binding(claim):
                found = False
                over_ns = binding_deadline_ns(claim, needs.devices_timeout_s)
                if over_ns is not None and over_ns <= now_ns:
                    raise DeviceBindingFailed(f"device binding timeout: claim={key.name}")
                if over_ns is not None and over_ns < preparation.deadline_ns:
                    preparation.deadline_ns = over_ns
                    self._deadlines.put(uid, preparation.deadline_ns)
        return found

    def _is_bound(
        self,
        chosen_claim: PersistentVolumeClaim,
        chosen: PersistentVolume,
        node: Node,
        versions: WrittenVersions,
    ) -> bool:
        volumes = self._core.cache.volumes
        volume, claim = volumes.volumes.get(chosen.name), volumes.claims.get(chosen_claim.key)
        if volume is None:
            raise _PrebindImpossible(
                f"failed to check binding: {not_found_message('persistentvolumes', chosen.name)}"
            )
        if claim is None or claim.uid != chosen_claim.uid:
            raise _PrebindImpossible(f"failed to check binding: {_claim_not_found(chosen_claim.key)}")
        if volume.version < versions.get(volume.name, 0):
            return False
        _check_affinity(volume, node)
        if volume.claim_ref is None or not volume.claim_ref.uid:
            raise _PrebindImpossible(f'ClaimRef got reset for pv "{volume.name}"')
        if claim.fully_bound and claim.volume_name != volume.name:
            raise _PrebindImpossible(f'PVC "{claim.key.name}" was bound to pv "{claim.volume_name}"')
        return claim.fully_bound

    def _is_provisioned(self, chosen: PersistentVolumeClaim, node: Node, versions: WrittenVersions) -> bool:
        volumes = self._core.cache.volumes
        claim = volumes.claims.get(chosen.key)
        if claim is None or claim.uid != chosen.uid:
            raise _PrebindImpossible(f"failed to check provisioning pvc: {_claim_not_found(chosen.key)}")
        if claim.version < versions.get(claim.key, 0):
            return False
        if claim.selected_node != node.name:
            raise _PrebindImpossible(f'provisioning failed for PVC "{claim.key.name}"')
        if claim.volume_name:
            volume = volumes.volumes.get(claim.volume_name)
            if volume is None:
                return False
            _check_affinity(volume, node)
        return claim.fully_bound

    def _fail(self, preparation: PrebindState, words: str, now_ns: int, plugin: str = _VOLUME_PLUGIN) -> None:
        self._finish(preparation, now_ns)
        self._bind_tracker.failed(
            preparation.in_flight_bind.pod.uid, f'running PreBind plugin "{plugin}": {words}', now_ns
        )

    def _finish(self, preparation: PrebindState, now_ns: int) -> None:
        uid = preparation.in_flight_bind.pod.uid
        del self._core.prebinding[uid]
        self._deadlines.discard(uid)
        cache = self._core.cache
        self._core.queue.requeue(
            cache.volumes.unreserve(uid, _volume_choice(preparation.prebind_work)), now_ns
        )
        if uid not in self._core.unconfirmed_device_writes:
            self._core.queue.requeue(cache.devices.unreserve(uid, preparation.prebind_work.devices), now_ns)

    def _release_unconfirmed(self, uid: PodUid, versions: WrittenVersions, now_ns: int) -> None:
        """What was to be written for a pod that was given up meanwhile is written or never will be."""
        choice = self._core.unconfirmed_device_writes.pop(uid, None)
        if choice is not None:
            devices = self._core.cache.devices
            freed = devices.mark_written(uid, choice, versions) | devices.unreserve(uid, choice)
            self._core.queue.requeue(freed, now_ns)


def _has_unanswered_device_writes(preparation: PrebindState) -> bool:
    """Whether its writes are not answered yet, and devices among them."""
    return preparation.written_versions is None and bool(preparation.prebind_work.devices.allocated)


def _volume_choice(needs: PrebindRequirements) -> VolumeChoice:
    return VolumeChoice() if needs.volumes is None else needs.volumes.choice


def _timeout_s(needs: PrebindRequirements) -> int:
    """How long the pod may take to get what it needs. Claims for devices are written at least, which takes the time of a few answers."""
    volumes_s = 0 if needs.volumes is None else needs.volumes.timeout_s
    return max(volumes_s, needs.devices_timeout_s if needs.devices else 0)


def _claim_to_reserve(claim: ResourceClaim, given: DeviceAllocation | None, at_ns: int) -> ClaimToReserve:
    return ClaimToReserve(
        claim=claim.key,
        uid=claim.uid,
        version=claim.version,
        allocation=given,
        finalizers=claim.finalizers,
        reserved_for=claim.reserved_for,
        at_ns=at_ns,
        current_allocation=claim.allocation,
    )


def _claim_to_create(devices: DeviceChoice, at_ns: int) -> ClaimToCreate | None:
    if devices.claim_to_create is None:
        return None
    claim, given = devices.claim_to_create
    return ClaimToCreate(claim.key, claim.requests, given, devices.extended_resource_mappings, at_ns)


def bind_command(flight: InFlightBind) -> Bind:
    pod = flight.pod.pod
    return Bind(pod.uid, pod.namespace, pod.name, flight.node, flight.pod.policy, flight.policy_sha256)


def _volume_to_bind(claim: PersistentVolumeClaim, volume: PersistentVolume) -> VolumeToBind | None:
    """None where the volume says so already."""
    mark = not volume.belongs_to(claim, volume.claim_ref) and not volume.bound_by_controller
    if not mark and volume.claim_ref is not None and volume.claim_ref.uid == claim.uid:
        return None
    return VolumeToBind(volume.name, volume.uid, volume.version, claim.key, claim.uid, mark)


def _check_affinity(volume: PersistentVolume, node: Node) -> None:
    if not volume_fits_labels(node_affinity_on(volume, node), node.labels):
        raise _PrebindImpossible(
            f'pv "{volume.name}" node affinity doesn\'t match node "{node.name}": no matching NodeSelectorTerms'
        )


def _claim_not_found(key: VolumeClaimKey) -> str:
    return not_found_message("persistentvolumeclaims", f"{key.namespace}/{key.name}")
