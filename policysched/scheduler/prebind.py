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

from policysched.cluster.devices.binding_conditions import BindingFailed, ends_ns, is_ready
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.volumes.claims import not_found, required_on
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.evaluate import BeforeBind
from policysched.model.devices import Allocation, ResourceClaim
from policysched.model.objects import ClaimKey, Node, NodeName, PodUid, Preparable, ResourceClaimKey
from policysched.model.selectors import volume_fits_labels
from policysched.model.storage import PersistentVolume, PersistentVolumeClaim
from policysched.scheduler.binding import Binding
from policysched.scheduler.commands import (
    Bind,
    ClaimToMake,
    ClaimToReserve,
    Prepare,
    ReportPod,
    VolumeToBind,
    VolumeToMake,
)
from policysched.scheduler.core import Core, Flight, Preparation
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.heap import MovableHeap

Versions = Mapping[Preparable, int]

_VOLUMES, _DEVICES = "VolumeBinding", "DynamicResources"
_TIME_OVER = "context deadline exceeded"


class _Undone(Exception):
    """What was written does not stand any more, or cannot: in kube-scheduler's words."""


class Preparing:
    """`Core.preparations` are the pods on their way."""

    def __init__(self, core: Core, binding: Binding) -> None:
        self._core = core
        self._binding = binding
        self._ends: MovableHeap[PodUid] = MovableHeap()

    def begin(self, flight: Flight, needs: BeforeBind, now_ns: int) -> None:
        """The pod was just assumed."""
        core, pod = self._core, flight.pod.pod
        choice = _volumes(needs)
        core.cache.volumes.promise(pod.uid, choice, flight.node)
        core.cache.devices.promise(pod.uid, needs.devices)
        ends_ns = now_ns + _longest_s(needs) * SECOND_NS
        core.preparations[pod.uid] = Preparation(flight, needs, ends_ns)
        self._ends.put(pod.uid, ends_ns)
        if needs.devices.made is not None:
            core.made[pod.uid] = needs.devices.made[0].key
        core.out.append(
            Prepare(
                pod.uid,
                pod.namespace,
                pod.name,
                flight.node,
                tuple(
                    found for claim, volume in choice.static if (found := _to_bind(claim, volume)) is not None
                ),
                tuple(VolumeToMake(claim.key, claim.uid, claim.version) for claim in choice.provisioned),
                (
                    *(
                        _to_reserve(claim, given, now_ns)
                        for claim, given in needs.devices.allocated
                        if claim.uid
                    ),
                    *(_to_reserve(claim, None, now_ns) for claim in needs.devices.reserved),
                ),
                _to_make(needs.devices, now_ns),
            )
        )

    def written(self, uid: PodUid, versions: Versions, now_ns: int) -> None:
        preparation = self._core.preparations.get(uid)
        if preparation is None:
            self._settled(uid, versions, now_ns)
            return
        preparation.versions = versions
        self._written(preparation, versions, now_ns)
        flight, awaited = preparation.flight, preparation.needs.devices.awaited
        if awaited:
            pod, words = flight.pod.pod, f"waiting for binding conditions for device on node {flight.node}"
            core = self._core
            core.out.append(
                ReportPod(
                    uid, pod.namespace, pod.name, pod.scheduler, "Normal", "BindingConditionsPending", words
                )
            )
        self._look_at(preparation, now_ns)
        if now_ns >= preparation.ends_ns and uid in self._core.preparations:
            self._time_over(preparation, now_ns)

    def refused(self, uid: PodUid, reason: str, versions: Versions, now_ns: int) -> None:
        preparation = self._core.preparations.get(uid)
        if preparation is not None:
            self._written(preparation, versions, now_ns)
            plugin = _DEVICES if preparation.needs.volumes is None else _VOLUMES
            self._fail(preparation, reason, now_ns, plugin)
        else:
            self._settled(uid, versions, now_ns)

    def look(self, now_ns: int, *, claim: ClaimKey | None = None, node: NodeName | None = None) -> None:
        """Something changed that pods may wait for (those that use the claim, those that go to the node)."""
        for preparation in list(self._core.preparations.values()):
            uses = claim is None or any(use.claim == claim for use in preparation.flight.pod.pod.claims)
            if uses and node in (None, preparation.flight.node):
                self._look_at(preparation, now_ns)

    def claim_moved(self, claim: ResourceClaimKey, now_ns: int) -> None:
        """A claim for devices is another than before."""
        for preparation in list(self._core.preparations.values()):
            if claim in preparation.needs.devices.awaited:
                self._look_at(preparation, now_ns)

    def advance(self, now_ns: int) -> None:
        while (ends_ns := self._ends.first_key()) is not None and ends_ns <= now_ns:
            uid = self._ends.first()
            assert uid is not None
            preparation = self._core.preparations[uid]
            if _may_give_devices(preparation):
                self._ends.discard(uid)  # what is under way may land: its answer comes first
                continue
            self._look_at(preparation, now_ns)  # which may know better words
            if uid in self._core.preparations:
                self._time_over(preparation, now_ns)

    def _time_over(self, preparation: Preparation, now_ns: int) -> None:
        if preparation.needs.volumes is None:
            self._fail(preparation, f"device binding timeout: {_TIME_OVER}", now_ns, _DEVICES)
        else:
            self._fail(preparation, f"binding volumes: {_TIME_OVER}", now_ns)

    def next_time_ns(self) -> int | None:
        return self._ends.first_key()

    def give_up(self, uid: PodUid, now_ns: int) -> None:
        """The pod is gone, ends, or is on a node already."""
        preparation = self._core.preparations.get(uid)
        if preparation is not None:
            if _may_give_devices(preparation):
                self._core.unsettled[uid] = preparation.needs.devices
            self._end(preparation, now_ns)
            self._binding.lost(uid, "the pod is gone or bound while its volumes are being bound", now_ns)

    def _written(self, preparation: Preparation, versions: Versions, now_ns: int) -> None:
        core, uid, devices = self._core, preparation.flight.pod.uid, preparation.needs.devices
        core.cache.volumes.written(uid, _volumes(preparation.needs), versions)
        core.queue.wake(core.cache.devices.written(uid, devices, versions), now_ns)
        claims = [*(claim for claim, _ in devices.allocated if claim.uid), *devices.reserved]
        reserved = tuple((claim.key, claim.uid) for claim in claims if claim.key in versions)
        if reserved:
            core.reserved[uid] = reserved

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _look_at(self, preparation: Preparation, now_ns: int) -> None:
        if preparation.versions is None:
            return
        try:
            ready = self._all_bound(preparation, preparation.versions)
        except _Undone as undone:
            self._fail(preparation, f"binding volumes: {undone}", now_ns)
            return
        try:
            ready &= self._all_devices_bound(preparation, preparation.versions, now_ns)
        except BindingFailed as failed:
            self._fail(preparation, str(failed), now_ns, _DEVICES)
            return
        if ready:
            flight = preparation.flight
            self._end(preparation, now_ns)
            self._core.cache.prepare(flight.pod.uid)
            self._core.out.append(bind_command(flight))

    def _all_bound(self, preparation: Preparation, versions: Versions) -> bool:
        """Whether the pod can be bound. Raises _Undone where it never will."""
        node_name = preparation.flight.node
        node = self._core.cache.nodes.get(node_name)
        if node is None:
            raise _Undone(f'failed to get node "{node_name}": {not_found("node", node_name)}')
        choice = _volumes(preparation.needs)
        return all(
            [
                *(self._is_bound(claim, volume, node, versions) for claim, volume in choice.static),
                *(self._is_made(claim, node, versions) for claim in choice.provisioned),
            ]
        )

    def _all_devices_bound(self, preparation: Preparation, versions: Versions, now_ns: int) -> bool:
        """Whether all devices that wait for it are bound. Raises BindingFailed where one never will, or not in time."""
        uid, needs, found = preparation.flight.pod.uid, preparation.needs, True
        for key in needs.devices.awaited:
            claim = self._core.cache.devices.claims.get(key)
            if claim is None and key not in versions:
                raise BindingFailed(f'could not find ResourceClaim "{key}"')
            if claim is None or claim.version < versions.get(key, 0):
                found = False
            elif not is_ready(claim):
                found = False
                over_ns = ends_ns(claim, needs.devices_timeout_s)
                if over_ns is not None and over_ns <= now_ns:
                    raise BindingFailed(f"device binding timeout: claim={key.name}")
                if over_ns is not None and over_ns < preparation.ends_ns:
                    preparation.ends_ns = over_ns
                    self._ends.put(uid, preparation.ends_ns)
        return found

    def _is_bound(
        self, chosen_claim: PersistentVolumeClaim, chosen: PersistentVolume, node: Node, versions: Versions
    ) -> bool:
        volumes = self._core.cache.volumes
        volume, claim = volumes.volumes.get(chosen.name), volumes.claims.get(chosen_claim.key)
        if volume is None:
            raise _Undone(f"failed to check binding: {not_found('persistentvolumes', chosen.name)}")
        if claim is None or claim.uid != chosen_claim.uid:
            raise _Undone(f"failed to check binding: {_no_claim(chosen_claim.key)}")
        if volume.version < versions.get(volume.name, 0):
            return False
        _check_affinity(volume, node)
        if volume.claim is None or not volume.claim.uid:
            raise _Undone(f'ClaimRef got reset for pv "{volume.name}"')
        if claim.fully_bound and claim.volume != volume.name:
            raise _Undone(f'PVC "{claim.key.name}" was bound to pv "{claim.volume}"')
        return claim.fully_bound

    def _is_made(self, chosen: PersistentVolumeClaim, node: Node, versions: Versions) -> bool:
        volumes = self._core.cache.volumes
        claim = volumes.claims.get(chosen.key)
        if claim is None or claim.uid != chosen.uid:
            raise _Undone(f"failed to check provisioning pvc: {_no_claim(chosen.key)}")
        if claim.version < versions.get(claim.key, 0):
            return False
        if claim.selected_node != node.name:
            raise _Undone(f'provisioning failed for PVC "{claim.key.name}"')
        if claim.volume:
            volume = volumes.volumes.get(claim.volume)
            if volume is None:
                return False
            _check_affinity(volume, node)
        return claim.fully_bound

    def _fail(self, preparation: Preparation, words: str, now_ns: int, plugin: str = _VOLUMES) -> None:
        self._end(preparation, now_ns)
        self._binding.failed(
            preparation.flight.pod.uid, f'running PreBind plugin "{plugin}": {words}', now_ns
        )

    def _end(self, preparation: Preparation, now_ns: int) -> None:
        uid = preparation.flight.pod.uid
        del self._core.preparations[uid]
        self._ends.discard(uid)
        cache = self._core.cache
        self._core.queue.wake(cache.volumes.release(uid, _volumes(preparation.needs)), now_ns)
        if uid not in self._core.unsettled:
            self._core.queue.wake(cache.devices.release(uid, preparation.needs.devices), now_ns)

    def _settled(self, uid: PodUid, versions: Versions, now_ns: int) -> None:
        """What was to be written for a pod that was given up meanwhile is written or never will be."""
        choice = self._core.unsettled.pop(uid, None)
        if choice is not None:
            devices = self._core.cache.devices
            freed = devices.written(uid, choice, versions) | devices.release(uid, choice)
            self._core.queue.wake(freed, now_ns)


def _may_give_devices(preparation: Preparation) -> bool:
    """Whether its writes are not answered yet, and devices among them."""
    return preparation.versions is None and bool(preparation.needs.devices.allocated)


def _volumes(needs: BeforeBind) -> VolumeChoice:
    return VolumeChoice() if needs.volumes is None else needs.volumes.choice


def _longest_s(needs: BeforeBind) -> int:
    """How long the pod may take to get what it needs. Claims for devices are written at least, which takes the time of a few answers."""
    volumes_s = 0 if needs.volumes is None else needs.volumes.timeout_s
    return max(volumes_s, needs.devices_timeout_s if needs.devices else 0)


def _to_reserve(claim: ResourceClaim, given: Allocation | None, at_ns: int) -> ClaimToReserve:
    return ClaimToReserve(
        claim=claim.key,
        uid=claim.uid,
        version=claim.version,
        allocation=given,
        finalizers=claim.finalizers,
        reserved_for=claim.reserved_for,
        at_ns=at_ns,
        has=claim.allocation,
    )


def _to_make(devices: DeviceChoice, at_ns: int) -> ClaimToMake | None:
    if devices.made is None:
        return None
    claim, given = devices.made
    return ClaimToMake(claim.key, claim.requests, given, devices.mapped, at_ns)


def bind_command(flight: Flight) -> Bind:
    pod = flight.pod.pod
    return Bind(pod.uid, pod.namespace, pod.name, flight.node, flight.pod.policy, flight.sha256)


def _to_bind(claim: PersistentVolumeClaim, volume: PersistentVolume) -> VolumeToBind | None:
    """None where the volume says so already."""
    mark = not volume.belongs_to(claim, volume.claim) and not volume.bound_by_controller
    if not mark and volume.claim is not None and volume.claim.uid == claim.uid:
        return None
    return VolumeToBind(volume.name, volume.uid, volume.version, claim.key, claim.uid, mark)


def _check_affinity(volume: PersistentVolume, node: Node) -> None:
    if not volume_fits_labels(required_on(volume, node), node.labels):
        raise _Undone(
            f'pv "{volume.name}" node affinity doesn\'t match node "{node.name}": no matching NodeSelectorTerms'
        )


def _no_claim(key: ClaimKey) -> str:
    return not_found("persistentvolumeclaims", f"{key.namespace}/{key.name}")
