"""PreBind: between the assumption of a pod and its bind, its volume claims are bound and its device claims reserved.

    assumed ──Prebind──► writing ──PrebindWritten──► waiting ──all claims bound──► prebound ──► Bind
                            └──────── refused, undone, node deleted, timeout ──────────┴──► withdrawn, tried again

The pod is nominated to its node before anything is written, as by kube-scheduler with the gate
NominatedNodeNameForExpectation: autoscalers then keep the node. A withdrawn pod loses the nomination.

The volumes are reserved for the pod from the assumption on. After the writes the PV controller and the provisioners
bind the claims, and the watch shows their progress; an object older than what was written is not judged.

Nothing has to be undone when this ends early or another process takes over: what was written names the node and the
volumes of each claim, and the next attempt follows it. A device claim keeps its allocation but is no longer reserved
for the pod; a claim that was created for the pod is deleted. Devices that may have been written for a deleted pod stay
reserved until those writes are answered.

Source: `BindPodVolumes` in kubernetes' `pkg/scheduler/framework/plugins/volumebinding/binder.go`; `PreBind` and
`Unreserve` in `dynamicresources`.
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
from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import DeviceAllocation, ResourceClaim
from policysched.model.identifiers import NodeName, PodUid, PrebindTarget, ResourceClaimKey, VolumeClaimKey
from policysched.model.nodes import Node
from policysched.model.selectors import volume_fits_labels
from policysched.model.storage import PersistentVolume, PersistentVolumeClaim
from policysched.scheduler.bind_tracker import BindTracker
from policysched.scheduler.blame import raises_for
from policysched.scheduler.commands import (
    AbandonBind,
    Bind,
    ClaimToCreate,
    ClaimToReserve,
    Prebind,
    ReportPodEvent,
    VolumeToBind,
    VolumeToProvision,
)
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.events import PrebindRefused, PrebindWritten
from policysched.scheduler.in_flight_binds import InFlightBind, PrebindState
from policysched.scheduler.limits import PREBINDS_PER_SLICE_MAX, SECOND_NS
from policysched.scheduler.queue.movable_heap import MovableHeap

WrittenVersions = Mapping[PrebindTarget, int]

_VOLUME_PLUGIN, _DEVICE_PLUGIN = "VolumeBinding", "DynamicResources"
_TIMEOUT_MESSAGE = "context deadline exceeded"


class _PrebindImpossible(Exception):
    """What was written was undone, or cannot be completed. The message is kube-scheduler's."""


class Prebinder:
    """Works on the pods of `InFlightBinds.prebinding`."""

    def __init__(self, core: SchedulerCore, bind_tracker: BindTracker) -> None:
        self._core = core
        self._bind_tracker = bind_tracker
        self._due: MovableHeap[PodUid] = MovableHeap()  # at its deadline, or before if it was not looked at
        # By claim, and by name of a volume.
        self._by_object: dict[VolumeClaimKey | str, dict[PodUid, None]] = {}

    def begin(self, bind: InFlightBind, requirements: PrebindRequirements, now_ns: int) -> None:
        """The pod was just assumed."""
        core, pod = self._core, bind.pod.pod
        choice = _volume_choice(requirements)
        core.cache.volumes.reserve(pod.uid, choice, bind.node)
        deadline_ns = now_ns + _timeout_s(requirements) * SECOND_NS
        attempt = core.binds.next_prebind_attempt()
        core.cache.devices.reserve(pod.uid, requirements.devices, attempt)
        core.binds.begin_prebind(pod.uid, PrebindState(bind, requirements, deadline_ns, attempt))
        self._due.put(pod.uid, deadline_ns)
        for key in _objects_of(core.binds.prebinding[pod.uid]):
            self._by_object.setdefault(key, {})[pod.uid] = None
        nominated = core.cache.nominated.get(pod.uid)
        nominate = nominated is None or nominated.nominated_node != bind.node
        if nominate:
            core.queue.requeue(core.cache.nominate(pod.uid, bind.node), now_ns, cause=pod.namespace)
        if requirements.devices.claim_to_create is not None:
            core.binds.created_claims[pod.uid] = requirements.devices.claim_to_create[0].key
        core.commands.append(
            Prebind(
                pod.uid,
                pod.namespace,
                pod.name,
                bind.node,
                tuple(
                    volume_to_bind
                    for claim, volume in choice.static_bindings
                    if (volume_to_bind := _volume_to_bind(claim, volume)) is not None
                ),
                tuple(
                    VolumeToProvision(claim.key, claim.uid, claim.version)
                    for claim in choice.dynamic_provisions
                ),
                (
                    *(
                        _claim_to_reserve(claim, allocation, now_ns)
                        for claim, allocation in requirements.devices.allocated
                        if claim.uid
                    ),
                    *(_claim_to_reserve(claim, None, now_ns) for claim in requirements.devices.reserved),
                ),
                _claim_to_create(requirements.devices, now_ns),
                nominate,
                attempt,
            )
        )

    def on_written(self, answer: PrebindWritten, now_ns: int) -> None:
        uid, versions, state = answer.uid, answer.versions, self._answered(answer)
        if state is None:
            self._release_unconfirmed(answer, now_ns)
            return
        state.written_versions = versions
        self._core.cache.devices.releasing.discard(uid)
        self._record_written(state, versions, now_ns)
        if state.withdrawal is not None:
            self.withdraw(uid, state.withdrawal, now_ns)
            return
        bind, awaited = state.in_flight_bind, state.prebind_work.devices.awaiting_binding
        if awaited:
            # kube-scheduler's reason and wording (plugin DynamicResources).
            pod, message = bind.pod.pod, f"waiting for binding conditions for device on node {bind.node}"
            core = self._core
            core.commands.append(
                ReportPodEvent(
                    uid, pod.namespace, pod.name, pod.scheduler, "Normal", "BindingConditionsPending", message
                )
            )
        self._recheck_pod(state, now_ns)
        if now_ns >= state.deadline_ns and uid in self._core.binds.prebinding:
            self._time_out(state, now_ns)

    def on_refused(self, answer: PrebindRefused, now_ns: int) -> None:
        state = self._answered(answer)
        if state is not None:
            self._record_written(state, answer.versions, now_ns)
            plugin = _DEVICE_PLUGIN if state.prebind_work.volumes is None else _VOLUME_PLUGIN
            self._fail(state, answer.reason, now_ns, plugin)
        else:
            self._release_unconfirmed(answer, now_ns)

    def _answered(self, answer: PrebindWritten | PrebindRefused) -> PrebindState | None:
        """None: the attempt was given up. The pod may have another one by now, which writes something else."""
        state = self._core.binds.prebinding.get(answer.uid)
        return state if state is not None and state.attempt == answer.attempt else None

    def recheck(
        self,
        now_ns: int,
        *,
        claim: VolumeClaimKey | None = None,
        volume: PersistentVolume | None = None,
        node: NodeName | None = None,
    ) -> None:
        """Check the pods that a change can affect: those that use the claim or the volume, or those that go to the node.
        All but a few are due for it."""
        prebinding, uids = self._core.binds.prebinding, dict[PodUid, None]()
        if claim is not None:
            uids = self._by_object.get(claim, {})
        elif volume is not None:
            of_claim = None if volume.claim_ref is None else self._by_object.get(volume.claim_ref.claim)
            uids = {**self._by_object.get(volume.name, {}), **(of_claim or {})}
        else:
            uids = {uid: None for uid, state in prebinding.items() if node == state.in_flight_bind.node}
        for number, uid in enumerate(list(uids)):
            if (state := prebinding.get(uid)) is None:
                continue
            if number >= PREBINDS_PER_SLICE_MAX:
                self._due.put(uid, min(now_ns, state.deadline_ns))
            else:
                with raises_for(state.in_flight_bind.pod.object_id):
                    self._recheck_pod(state, now_ns)

    def device_claim_changed(self, claim: ResourceClaimKey, now_ns: int) -> None:
        """Check the pods that wait for this device claim."""
        for state in list(self._core.binds.prebinding.values()):
            if claim in state.prebind_work.devices.awaiting_binding:
                with raises_for(state.in_flight_bind.pod.object_id):
                    self._recheck_pod(state, now_ns)

    def advance(self, now_ns: int) -> None:
        for _ in range(PREBINDS_PER_SLICE_MAX):
            due_ns, uid = self._due.first_key(), self._due.first()
            if due_ns is None or uid is None or due_ns > now_ns:
                break
            state = self._core.binds.prebinding[uid]
            is_late = state.deadline_ns <= now_ns
            if is_late and _has_unanswered_device_writes(state):
                self._due.discard(uid)  # the writes may still succeed: wait for their answer
                continue
            self._due.put(uid, state.deadline_ns)
            with raises_for(state.in_flight_bind.pod.object_id):
                self._recheck_pod(state, now_ns)  # this may find a more exact reason
                if is_late and uid in self._core.binds.prebinding:
                    self._time_out(state, now_ns)

    def _time_out(self, state: PrebindState, now_ns: int) -> None:
        if state.prebind_work.volumes is None:
            self._fail(state, f"device binding timeout: {_TIMEOUT_MESSAGE}", now_ns, _DEVICE_PLUGIN)
        else:
            self._fail(state, f"binding volumes: {_TIMEOUT_MESSAGE}", now_ns)

    def next_time_ns(self) -> int | None:
        return self._due.first_key()

    def abort(self, uid: PodUid, now_ns: int) -> None:
        """The pod was deleted, is terminating, or is on a node already."""
        state = self._core.binds.prebinding.get(uid)
        if state is not None:
            if _has_unanswered_device_writes(state):
                self._core.binds.unconfirmed_device_writes[state.attempt] = state
            self._finish(state, now_ns)
            self._bind_tracker.on_lost(
                uid, "the pod is gone or bound while its volumes are being bound", now_ns
            )
            if state.written_versions is None:
                self._core.commands.append(AbandonBind(uid))

    def withdraw(self, uid: PodUid, message: str, now_ns: int) -> None:
        """Give up the pod's node; if its device writes are not answered, once they are."""
        state = self._core.binds.prebinding[uid]
        if _has_unanswered_device_writes(state):
            state.withdrawal = message
            return
        self._finish(state, now_ns)
        self._bind_tracker.withdraw_and_retry(uid, message, now_ns)

    def _record_written(self, state: PrebindState, versions: WrittenVersions, now_ns: int) -> None:
        core, pod, devices = self._core, state.in_flight_bind.pod.pod, state.prebind_work.devices
        uid = pod.uid
        core.cache.volumes.mark_written(uid, _volume_choice(state.prebind_work), versions)
        freed = core.cache.devices.mark_written(uid, devices, versions, state.attempt)
        core.queue.requeue(freed, now_ns, cause=pod.namespace)
        claims = [*(claim for claim, _ in devices.allocated if claim.uid), *devices.reserved]
        reserved = tuple((claim.key, claim.uid) for claim in claims if claim.key in versions)
        if reserved:
            core.binds.reserved_claims[uid] = reserved

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recheck_pod(self, state: PrebindState, now_ns: int) -> None:
        if state.written_versions is None:
            return
        try:
            ready = self._volumes_bound(state, state.written_versions)
        except _PrebindImpossible as undone:
            self._fail(state, f"binding volumes: {undone}", now_ns)
            return
        try:
            ready &= self._devices_bound(state, state.written_versions, now_ns)
        except DeviceBindingFailed as failed:
            self._fail(state, str(failed), now_ns, _DEVICE_PLUGIN)
            return
        if ready:
            bind = state.in_flight_bind
            self._finish(state, now_ns)
            self._core.cache.mark_prebound(bind.pod.uid)
            self._core.commands.append(bind_command(bind))

    def _volumes_bound(self, state: PrebindState, versions: WrittenVersions) -> bool:
        """Whether the pod can be bound. Raises _PrebindImpossible if it never can be."""
        node_name = state.in_flight_bind.node
        node = self._core.cache.nodes.get(node_name)
        if node is None:
            raise _PrebindImpossible(
                f'failed to get node "{node_name}": {not_found_message("node", node_name)}'
            )
        choice = _volume_choice(state.prebind_work)
        return all(
            [
                *(self._is_bound(claim, volume, node, versions) for claim, volume in choice.static_bindings),
                *(self._is_provisioned(claim, node, versions) for claim in choice.dynamic_provisions),
            ]
        )

    def _devices_bound(self, state: PrebindState, versions: WrittenVersions, now_ns: int) -> bool:
        """Whether all device claims are ready. Raises DeviceBindingFailed if one failed or timed out."""
        uid, requirements, ready = state.in_flight_bind.pod.uid, state.prebind_work, True
        for key in requirements.devices.awaiting_binding:
            claim = self._core.cache.devices.claims.get(key)
            if claim is None and key not in versions:
                raise DeviceBindingFailed(f'could not find ResourceClaim "{key}"')
            if claim is None or claim.version < versions.get(key, 0):
                ready = False
            elif not is_ready_for_binding(claim):
                ready = False
                deadline_ns = binding_deadline_ns(claim, requirements.devices_timeout_s)
                if deadline_ns is not None and deadline_ns <= now_ns:
                    raise DeviceBindingFailed(f"device binding timeout: claim={key.name}")
                if deadline_ns is not None and deadline_ns < state.deadline_ns:
                    state.deadline_ns = deadline_ns
                    self._due.put(uid, state.deadline_ns)
        return ready

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

    def _fail(self, state: PrebindState, message: str, now_ns: int, plugin: str = _VOLUME_PLUGIN) -> None:
        self._finish(state, now_ns)
        self._bind_tracker.withdraw_and_retry(
            state.in_flight_bind.pod.uid, f'running PreBind plugin "{plugin}": {message}', now_ns
        )

    def _finish(self, state: PrebindState, now_ns: int) -> None:
        uid, namespace = state.in_flight_bind.pod.uid, state.in_flight_bind.pod.namespace
        self._core.binds.end_prebind(uid)
        for key in _objects_of(state):
            uids = self._by_object.get(key, {})
            uids.pop(uid, None)
            if not uids:
                self._by_object.pop(key, None)
        self._due.discard(uid)
        cache = self._core.cache
        for key in cache.volumes.unreserve(uid, _volume_choice(state.prebind_work)):
            # A free volume can help any pod, a claim without a node those that use it.
            claim = key if isinstance(key, VolumeClaimKey) else None
            self._core.queue.requeue((ClusterEvent.VOLUME_UPDATE,), now_ns, claim=claim, cause=namespace)
        if state.attempt not in self._core.binds.unconfirmed_device_writes:
            freed = cache.devices.unreserve(uid, state.prebind_work.devices, state.attempt)
            self._core.queue.requeue(freed, now_ns, cause=namespace)

    def _release_unconfirmed(self, answer: PrebindWritten | PrebindRefused, now_ns: int) -> None:
        """The device writes of an attempt whose pod left are answered: release its devices. The pod may be back with another."""
        uid, attempt, devices = answer.uid, answer.attempt, self._core.cache.devices
        state = self._core.binds.unconfirmed_device_writes.pop(attempt, None)
        if state is not None:
            choice, namespace = state.prebind_work.devices, state.in_flight_bind.pod.pod.namespace
            freed = devices.mark_written(uid, choice, answer.versions, attempt)
            freed |= devices.unreserve(uid, choice, attempt)
            self._core.queue.requeue(freed, now_ns, cause=namespace)


def _has_unanswered_device_writes(state: PrebindState) -> bool:
    """Whether the writes include devices and are not answered yet."""
    return state.written_versions is None and bool(state.prebind_work.devices.allocated)


def _volume_choice(requirements: PrebindRequirements) -> VolumeChoice:
    return VolumeChoice() if requirements.volumes is None else requirements.volumes.choice


def _timeout_s(requirements: PrebindRequirements) -> int:
    """How long PreBind may take: the longer of the timeouts that apply."""
    volumes_s = 0 if requirements.volumes is None else requirements.volumes.timeout_s
    return max(volumes_s, requirements.devices_timeout_s if requirements.devices else 0)


def _claim_to_reserve(
    claim: ResourceClaim, allocation: DeviceAllocation | None, at_ns: int
) -> ClaimToReserve:
    return ClaimToReserve(
        claim=claim.key,
        uid=claim.uid,
        version=claim.version,
        allocation=allocation,
        finalizers=claim.finalizers,
        reserved_for=claim.reserved_for,
        at_ns=at_ns,
        current_allocation=claim.allocation,
    )


def _claim_to_create(devices: DeviceChoice, at_ns: int) -> ClaimToCreate | None:
    if devices.claim_to_create is None:
        return None
    claim, allocation = devices.claim_to_create
    return ClaimToCreate(claim.key, claim.requests, allocation, devices.extended_resource_mappings, at_ns)


def bind_command(bind: InFlightBind) -> Bind:
    pod = bind.pod.pod
    return Bind(pod.uid, pod.namespace, pod.name, bind.node, bind.pod.policy, bind.policy_sha256)


def _volume_to_bind(claim: PersistentVolumeClaim, volume: PersistentVolume) -> VolumeToBind | None:
    """The volume to write; None if it already refers to the claim."""
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


def _objects_of(state: PrebindState) -> list[VolumeClaimKey | str]:
    """The claims that the pod uses, and the volumes that are bound for it."""
    claims = [use.claim for use in state.in_flight_bind.pod.pod.claims]
    return [*claims, *(volume.name for _, volume in _volume_choice(state.prebind_work).static_bindings)]
