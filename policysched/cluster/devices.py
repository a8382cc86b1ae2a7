"""Devices, claims and classes as last seen, and which devices are promised to pods that are on their way.

    asked for ──promise (a pod is assumed)──► promised ──written──► the watch shows it: the claim itself says so
        ▲                                        │ release, or the claim is another
        └────────────────────────────────────────┘

No device that is one claim's is given to a second: what the claims' statuses say and what is promised are counted
together. Pods that share a claim share its promise, which lasts until the writes for all of them are answered: one whose
answer is missing may be repeated, also after the claim has given its devices back. What could be found for claims of one text on one node is kept
until that node's devices change, so that a pod from a template costs a look at the nodes that others went to.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from policysched.cluster.device_objects import (
    Allocation,
    DeviceClass,
    DeviceId,
    DeviceKind,
    PoolId,
    ResourceClaim,
    ResourceSlice,
)
from policysched.cluster.device_pools import Pool, pools_for
from policysched.cluster.device_search import OVERRUN, Found, SearchFailed, search
from policysched.cluster.device_selectors import DeviceSelectors, SelectorError
from policysched.cluster.device_use import DeviceUse, Taken
from policysched.cluster.extended_resources import Mapped, classes_by_resource
from policysched.cluster.objects import Node, NodeName, PodUid, Preparable, ResourceClaimKey
from policysched.lang.events import ClusterEvent

_NOTHING: frozenset[ClusterEvent] = frozenset()
_SPECS_KEPT = 16
_ANSWERS_KEPT = 4096  # of selectors, a slice
_GONE_KEPT = 1024

OVERRUNS_MAX = 8
"""Nodes on which the search for the same claims may go past its bound; then no more are searched until something changes, so that
no claim can hold up all others."""

Outcome = Found | SearchFailed | None


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What has to happen to a pod's claims on its node: those that get `allocated` (with what), and those that have their
    devices and get `reserved` for it besides. Empty: nothing. One of the allocated may have to be made first, for the pod's
    extended resources; `mapped` says how its containers use it. `awaited` are those whose devices have to be bound before the pod
    is."""

    allocated: tuple[tuple[ResourceClaim, Allocation], ...] = ()
    reserved: tuple[ResourceClaim, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    awaited: tuple[ResourceClaimKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.allocated or self.reserved or self.awaited)

    @property
    def made(self) -> tuple[ResourceClaim, Allocation] | None:
        """The claim that is not there yet."""
        return next((one for one in self.allocated if not one[0].uid), None)


@dataclass(frozen=True, slots=True)
class _Promise:
    """`pods` are those whose writes are not answered yet: several may share the claim. `written`: the youngest version that an
    answer says it stands in; None: no answer does. `uid` "": the claim is yet to be made, for one pod, and the promise lasts
    until it is shown or gone."""

    pods: frozenset[PodUid]
    uid: str
    allocation: Allocation
    written: int | None = None

    def is_over(self, claim: ResourceClaim) -> bool:
        if not self.uid:
            return claim.allocation is not None or (
                self.written is not None and claim.version >= self.written
            )
        if claim.uid != self.uid:
            return True
        if self.pods:
            return False
        return self.written is None or claim.version >= self.written

    def answered(self, pod: PodUid, version: int | None) -> "_Promise":
        known = [one for one in (self.written, version) if one is not None]
        return replace(self, pods=self.pods - {pod}, written=max(known, default=None))


@dataclass(slots=True)
class _Answer:
    """`stamp` and `labels` of the node for which it holds."""

    stamp: Hashable
    labels: Mapping[str, str]
    outcome: Outcome


@dataclass(slots=True)
class _AnswersOfSpecs:
    """`overruns` since the devices' stamp was `stamp`."""

    by_node: dict[NodeName, _Answer] = field(default_factory=dict)
    stamp: Hashable = None
    overruns: int = 0


class _Answers:
    """By what claims ask for and by node."""

    def __init__(self) -> None:
        self._by_specs: OrderedDict[tuple[str, ...], _AnswersOfSpecs] = OrderedDict()

    def of(self, claims: Sequence[ResourceClaim]) -> _AnswersOfSpecs:
        specs = tuple(claim.spec for claim in claims)
        found = self._by_specs.get(specs)
        if found is None:
            found = self._by_specs[specs] = _AnswersOfSpecs()
            if len(self._by_specs) > _SPECS_KEPT:
                self._by_specs.popitem(last=False)
        else:
            self._by_specs.move_to_end(specs)
        return found


@dataclass(slots=True)
class LaidDevices:
    """What is promised besides on a cluster that is not. `nodes` counts changes of each node's devices, `anywhere` those of devices
    that several nodes can use."""

    allocations: dict[ResourceClaimKey, Allocation] = field(default_factory=dict)
    use: DeviceUse = field(default_factory=DeviceUse)
    nodes: dict[NodeName, int] = field(default_factory=dict)
    anywhere: int = 0
    answers: _Answers = field(default_factory=_Answers)


class Devices:
    """`absent`: kinds that the API server does not serve. Every `put_` and `drop_` answers whom it could help; a claim's own
    events help those who use it, `DEVICES_FREED` whoever looks for devices."""

    def __init__(self) -> None:
        self.claims: dict[ResourceClaimKey, ResourceClaim] = {}
        self.slices: dict[str, ResourceSlice] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.absent: frozenset[DeviceKind] = frozenset()
        self.use = DeviceUse()
        self._promises: dict[ResourceClaimKey, _Promise] = {}
        self._counted: dict[ResourceClaimKey, Allocation] = {}  # what `use` has of each claim
        self._extended: dict[
            PodUid, set[ResourceClaimKey]
        ] = {}  # claims made, or promised, for extended resources
        self._gone: OrderedDict[ResourceClaimKey, None] = OrderedDict()  # what the watch has yet to find out
        self._by_resource: dict[str, DeviceClass] = {}
        self._by_pool: dict[PoolId, dict[str, ResourceSlice]] = {}
        self._of_node: dict[NodeName, dict[str, ResourceSlice]] = {}
        self._of_many: dict[str, ResourceSlice] = {}
        self._selectors = DeviceSelectors()
        self._selected: dict[str, dict[tuple[str, int], bool | SelectorError]] = {}
        self._pools: dict[NodeName, tuple[Hashable, Mapping[str, str], tuple[Pool, ...]]] = {}
        self._answers = _Answers()
        self._now = 0
        self._claim_stamps: dict[ResourceClaimKey, int] = {}
        self._node_stamps: dict[NodeName, int] = {}
        self._changed_nodes: set[NodeName] = set()
        self._shared_stamp = 0
        self._class_stamp = 0
        self.stamp = 0
        """Moves with every change of slices, classes and of what is taken."""

    @property
    def stock(self) -> "DeviceStock":
        return DeviceStock(self)

    @property
    def fresh_stock(self) -> "DeviceStock":
        """One that keeps no answers."""
        return DeviceStock(self, fresh=True)

    # ── what is served ─────────────────────────────────────────────────────────────────────────────────────────────

    def serve(self, kind: DeviceKind) -> frozenset[ClusterEvent]:
        """The API server has shown a whole list of them."""
        if kind not in self.absent:
            return _NOTHING
        self.absent -= {kind}
        self._moved()
        return frozenset({ClusterEvent.DEVICES_FREED})

    def miss(self, kind: DeviceKind) -> None:
        """The API server does not serve them."""
        self.absent |= {kind}
        self._moved()

    # ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_claim(self, claim: ResourceClaim) -> frozenset[ClusterEvent]:
        known = self.claims.get(claim.key)
        if known == claim or claim.key in self._gone:
            return _NOTHING
        self.claims[claim.key] = claim
        if known is not None and known.controller_uid is not None:
            self._no_longer_extended(
                known.controller_uid, claim.key
            )  # another claim of the same name may have come
        if claim.extended and claim.controller_uid is not None:
            self._extended.setdefault(claim.controller_uid, set()).add(claim.key)
        promise = self._promises.get(claim.key)
        if promise is not None and promise.is_over(claim):
            del self._promises[claim.key]
        self._claim_stamps[claim.key] = self._tick()
        freed = self._recount(claim.key)
        own = ClusterEvent.RESOURCE_CLAIM_UPDATE if known else ClusterEvent.RESOURCE_CLAIM_ADD
        return freed | {own}

    def drop_claim(self, key: ResourceClaimKey) -> frozenset[ClusterEvent]:
        self._gone.pop(key, None)
        known = self.claims.pop(key, None)
        if known is None:
            return _NOTHING
        self._promises.pop(key, None)
        self._claim_stamps.pop(key, None)
        self._tick()
        freed = self._recount(key)
        if known.extended and known.controller_uid is not None:
            self._no_longer_extended(known.controller_uid, key)
            freed |= {ClusterEvent.DEVICES_FREED}  # its pod has waited for nothing else
        return freed

    def gone(self, key: ResourceClaimKey) -> frozenset[ClusterEvent]:
        """A claim that was made for a pod is not there any more, or never came to be: whatever the watch is still to show of it
        is over, for no claim gets its name again."""
        self._gone[key] = None
        if len(self._gone) > _GONE_KEPT:
            self._gone.popitem(last=False)
        promise = self._promises.pop(key, None)
        known = self.claims.pop(key, None)
        if promise is None and known is None:
            return _NOTHING
        for pod in (
            *(() if promise is None else promise.pods),
            *(() if known is None else (known.controller_uid,)),
        ):
            if pod is not None:
                self._no_longer_extended(pod, key)
        self._claim_stamps.pop(key, None)
        self._tick()
        return self._recount(key) | {ClusterEvent.DEVICES_FREED}

    def _no_longer_extended(self, pod: PodUid, key: ResourceClaimKey) -> None:
        held = self._extended.get(pod, set())
        held.discard(key)
        if not held:
            self._extended.pop(pod, None)

    def made_for(self, pod: PodUid) -> frozenset[ResourceClaimKey]:
        """The claims for its extended resources that are there, or may be."""
        return frozenset(self._extended.get(pod, ()))

    # ── slices and classes ─────────────────────────────────────────────────────────────────────────────────────────

    def put_slice(self, one: ResourceSlice) -> frozenset[ClusterEvent]:
        known = self.slices.get(one.name)
        if known == one:
            return _NOTHING
        if known is not None:
            self._unlist(known)
        self.slices[one.name] = one
        self._touch_pool(one.pool)
        self._by_pool.setdefault(one.pool, {})[one.name] = one
        if _only_node(one) is None or one.counters:
            self._of_many[one.name] = one
        else:
            assert one.reach.node is not None, f"{one.name} is of no node"
            self._of_node.setdefault(one.reach.node, {})[one.name] = one
        self._touch_pool(one.pool)
        return frozenset({ClusterEvent.RESOURCE_SLICE_UPDATE if known else ClusterEvent.RESOURCE_SLICE_ADD})

    def drop_slice(self, name: str) -> frozenset[ClusterEvent]:
        """A slice of a new generation that goes may give the pool back to what is left; kube-scheduler waits for the next
        other event."""
        known = self.slices.pop(name, None)
        if known is None:
            return _NOTHING
        self._unlist(known)
        return frozenset({ClusterEvent.RESOURCE_SLICE_UPDATE})

    def _unlist(self, one: ResourceSlice) -> None:
        self._touch_pool(one.pool)
        self._selected.pop(one.name, None)
        self._of_many.pop(one.name, None)
        if one.reach.node is not None:
            of_node = self._of_node.get(one.reach.node, {})
            of_node.pop(one.name, None)
            if not of_node:
                self._of_node.pop(one.reach.node, None)
        pool = self._by_pool[one.pool]
        del pool[one.name]
        if not pool:
            del self._by_pool[one.pool]

    def put_class(self, one: DeviceClass) -> frozenset[ClusterEvent]:
        known = self.classes.get(one.name)
        if known == one:
            return _NOTHING
        self.classes[one.name] = one
        self._by_resource = classes_by_resource(self.classes.values())
        self._class_stamp = self._moved()
        return frozenset({ClusterEvent.DEVICE_CLASS_UPDATE if known else ClusterEvent.DEVICE_CLASS_ADD})

    def drop_class(self, name: str) -> frozenset[ClusterEvent]:
        """Wakes nobody: without its class a claim gets nothing."""
        if self.classes.pop(name, None) is not None:
            self._by_resource = classes_by_resource(self.classes.values())
            self._class_stamp = self._moved()
        return _NOTHING

    # ── promises ───────────────────────────────────────────────────────────────────────────────────────────────────

    def promise(self, pod: PodUid, choice: DeviceChoice) -> None:
        """From now on nobody else gets the devices."""
        for claim, given in choice.allocated:
            known = self._promises.get(claim.key)
            if known is not None and known.uid == claim.uid:
                assert known.allocation == given, f"{claim.key} is promised {known.allocation}, not {given}"
                self._promises[claim.key] = replace(known, pods=known.pods | {pod})
            else:
                self._promises[claim.key] = _Promise(frozenset({pod}), claim.uid, given)
                if not claim.uid:
                    self._extended.setdefault(pod, set()).add(claim.key)
            self._claim_stamps[claim.key] = self._tick()
            self._recount(claim.key)

    def written(
        self, pod: PodUid, choice: DeviceChoice, versions: Mapping[Preparable, int]
    ) -> frozenset[ClusterEvent]:
        """These versions of the claims say what was promised: the promise ends when the watch has come to them."""
        freed = _NOTHING
        for claim, _ in choice.allocated:
            version = versions.get(claim.key)
            if version is not None:
                freed |= self._answered(claim.key, pod, version)
        return freed

    def release(self, pod: PodUid, choice: DeviceChoice) -> frozenset[ClusterEvent]:
        """The pod does not go there, and nothing of it is under way. What was written stays promised until the watch shows it, and
        a claim that may have been made until it is `gone`."""
        freed = _NOTHING
        for claim, _ in choice.allocated:
            freed |= self._answered(claim.key, pod, None)
        return freed

    def _answered(self, key: ResourceClaimKey, pod: PodUid, version: int | None) -> frozenset[ClusterEvent]:
        promise = self._promises.get(key)
        if promise is None or pod not in promise.pods:
            return _NOTHING
        if promise.uid:
            promise = promise.answered(pod, version)
        elif version is None:
            return _NOTHING
        else:
            promise = replace(promise, written=version)
        self._promises[key] = promise
        claim = self.claims.get(key)
        if claim is not None and promise.is_over(claim):
            del self._promises[key]
        self._claim_stamps[key] = self._tick()
        return self._recount(key)

    def unwritten_promises(self) -> list[tuple[ResourceClaimKey, PodUid]]:
        """What is promised to whom, without what is written already, or is to be taken back."""
        return [(key, pod) for key, one in self._promises.items() if one.uid for pod in sorted(one.pods)]

    def allocation(self, key: ResourceClaimKey) -> Allocation | None:
        """What the claim has, or is promised."""
        claim, promise = self.claims.get(key), self._promises.get(key)
        if claim is not None and claim.allocation is not None:
            return claim.allocation
        return None if promise is None else promise.allocation

    def check(self) -> list[str]:
        """Recount what is taken; one sentence a difference, none when all is well."""
        fresh, twice = DeviceUse(), DeviceUse()
        for key in self.claims.keys() | self._promises.keys():
            given = self.allocation(key)
            if given is not None:
                fresh.add(given)
        for promise in self._promises.values():
            twice.add(promise.allocation)
        found = []
        if fresh != self.use:
            found.append(f"devices taken are counted as {self.use}, a recount says {fresh}")
        found += [
            f"device {device} is promised and taken {fresh.whole[device]} times"
            for device in twice.whole
            if fresh.whole[device] > 1
        ]
        extended = {(pod, key) for key, one in self._promises.items() if not one.uid for pod in one.pods}
        extended |= {
            (one.controller_uid, key)
            for key, one in self.claims.items()
            if one.extended and one.controller_uid is not None
        }
        kept = {(pod, key) for pod, keys in self._extended.items() for key in keys}
        if kept != extended:
            found.append(
                f"claims for extended resources are {sorted(kept)}, a recount says {sorted(extended)}"
            )
        return found

    def changed_nodes(self) -> set[NodeName]:
        """Those whose own devices changed, or what is taken of them, since the last call."""
        changed, self._changed_nodes = self._changed_nodes, set()
        return changed

    # ── stamps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def class_of(self, resource: str) -> DeviceClass | None:
        """The class whose devices stand for the resource."""
        return self._by_resource.get(resource)

    @property
    def shared_stamp(self) -> Hashable:
        """Of what more nodes than one can use, and of what all go by."""
        return self._shared_stamp, self._class_stamp, self.absent

    def claim_stamp(self, key: ResourceClaimKey) -> int:
        return self._claim_stamps.get(key, 0)

    def node_of(self, pool: PoolId) -> NodeName | None:
        """The node that alone can use the pool's devices; None: several, or nobody knows."""
        nodes = {_only_node(one) for one in self._by_pool.get(pool, {}).values()}
        return nodes.pop() if len(nodes) == 1 else None

    def _recount(self, key: ResourceClaimKey) -> frozenset[ClusterEvent]:
        """Count what the claim has now instead of what it had."""
        before, after = self._counted.get(key), self.allocation(key)
        if before == after:
            return _NOTHING
        if before is not None:
            del self._counted[key]
            self.use.remove(before)
        if after is not None:
            self._counted[key] = after
            self.use.add(after)
        changed = {one.device for given in (before, after) if given is not None for one in given.devices}
        for pool in {PoolId(one.driver, one.pool) for one in changed}:
            self._touch_pool(pool)
        return _NOTHING if before is None else frozenset({ClusterEvent.DEVICES_FREED})

    def _touch_pool(self, pool: PoolId) -> None:
        stamp, node = self._moved(), self.node_of(pool)
        if node is None:
            self._shared_stamp = stamp
        else:
            self._node_stamps[node] = stamp
            self._changed_nodes.add(node)

    def _moved(self) -> int:
        self.stamp = self._tick()
        return self.stamp

    def _tick(self) -> int:
        self._now += 1
        return self._now

    # ── looking for devices ────────────────────────────────────────────────────────────────────────────────────────

    def find(self, claims: Sequence[ResourceClaim], node: Node, laid: LaidDevices | None) -> Outcome:
        """What there is for these claims on the node."""
        stamp: Hashable = (self._node_stamps.get(node.name, 0), self._shared_stamp, self._class_stamp)
        kept = self._answers
        if laid is not None and (laid.anywhere or laid.nodes.get(node.name)):
            stamp, kept = (stamp, laid.anywhere, laid.nodes.get(node.name, 0)), laid.answers
        else:
            laid = None
        answers = kept.of(claims)
        known = answers.by_node.get(node.name)
        if known is not None and known.stamp == stamp and known.labels == node.labels:
            return known.outcome
        if answers.stamp != self.stamp:
            answers.stamp, answers.overruns = self.stamp, 0
        if answers.overruns >= OVERRUNS_MAX:
            return SearchFailed(OVERRUN)
        outcome = self.search(claims, node, laid)
        answers.by_node[node.name] = _Answer(stamp, node.labels, outcome)
        answers.overruns += isinstance(outcome, SearchFailed) and outcome.words == OVERRUN
        return outcome

    def search(self, claims: Sequence[ResourceClaim], node: Node, laid: LaidDevices | None) -> Outcome:
        """The same, whatever is kept."""
        taken = Taken(self.use) if laid is None else Taken(self.use, laid.use)
        try:
            return search(claims, node, self._pools_of(node), taken, self.classes, self._matches)
        except SearchFailed as failed:
            return SearchFailed(failed.words, failed.claim)  # without the road that led there

    def amounts(self, of_class: DeviceClass, node: Node, laid: LaidDevices | None) -> tuple[int, int]:
        """As kube-scheduler counts them in scores (`calculateDRAResourceTotals` in kubernetes'
        `pkg/scheduler/framework/plugins/noderesources/resource_allocation.go`): of slices of any generation; none where a selector fails."""
        taken = Taken(self.use) if laid is None else Taken(self.use, laid.use)
        there, gone = 0, 0
        for one in (*self._of_node.get(node.name, {}).values(), *self._of_many.values()):
            for index, device in enumerate(one.devices):
                if not one.reach_of(device).covers(node):
                    continue
                try:
                    chosen = all(
                        expression is None or self._matches(expression, one, index)
                        for expression in of_class.selectors
                    )
                except SelectorError:
                    return 0, 0
                if chosen:
                    there += 1
                    device_id = DeviceId(*one.pool, device.name)
                    gone += taken.whole(device_id) or taken.shared(device_id)
        return there, gone

    def _pools_of(self, node: Node) -> tuple[Pool, ...]:
        stamp = self._node_stamps.get(node.name, 0), self._shared_stamp
        known = self._pools.get(node.name)
        if known is not None and known[0] == stamp and known[1] == node.labels:
            return known[2]
        slices = (*self._of_node.get(node.name, {}).values(), *self._of_many.values())
        pools = pools_for(node, slices, lambda pool: self._by_pool.get(pool, {}).values())
        self._pools[node.name] = stamp, node.labels, pools
        return pools

    def _matches(self, expression: str, one: ResourceSlice, index: int) -> bool:
        """Raises SelectorError. Asked once of each device as it stands in its slice."""
        known = self._selected.setdefault(one.name, {})
        found = known.get((expression, index))
        if found is None:
            if len(known) >= _ANSWERS_KEPT:
                known.clear()
            try:
                found = self._selectors.matches(expression, one.pool.driver, one.devices[index])
            except SelectorError as error:
                found = SelectorError(str(error.args[0]), compiling=error.compiling)
            known[expression, index] = found
        if isinstance(found, SelectorError):
            raise found
        return found

    def forget_node(self, name: NodeName) -> None:
        """It is gone: what was kept of it is of no use."""
        self._pools.pop(name, None)


def _only_node(one: ResourceSlice) -> NodeName | None:
    return None if one.per_device else one.reach.node


class DeviceStock:
    """What there is to choose from: devices and claims as seen, with everything that is promised, and with what else is
    promised on a cluster that is not (`laid`)."""

    __slots__ = ("_devices", "_fresh", "_laid")

    def __init__(self, devices: Devices, laid: LaidDevices | None = None, *, fresh: bool = False) -> None:
        """`fresh`: each search is made anew, to be held against what is kept."""
        self._devices = devices
        self._laid = laid
        self._fresh = fresh

    def laid(self, laid: LaidDevices) -> "DeviceStock":
        return DeviceStock(self._devices, laid)

    @property
    def absent(self) -> frozenset[DeviceKind]:
        return self._devices.absent

    def claim(self, key: ResourceClaimKey) -> ResourceClaim | None:
        return self._devices.claims.get(key)

    def device_class(self, name: str) -> DeviceClass | None:
        return self._devices.classes.get(name)

    def class_of(self, resource: str) -> DeviceClass | None:
        """The class whose devices stand for the resource where nodes do not offer it."""
        return self._devices.class_of(resource)

    def has_made_for(self, pod: PodUid) -> bool:
        """Whether a claim for its extended resources is there, or may be."""
        return bool(self._devices.made_for(pod))

    def allocation(self, key: ResourceClaimKey) -> Allocation | None:
        """What the claim has, or is promised."""
        found = self._devices.allocation(key)
        return self._laid.allocations.get(key) if found is None and self._laid is not None else found

    def amounts(self, one: DeviceClass, node: Node) -> tuple[int, int]:
        """How many devices of the class the node can use, and how many of these are taken."""
        return self._devices.amounts(one, node, self._laid)

    def find(self, claims: Sequence[ResourceClaim], node: Node) -> Outcome:
        if self._fresh:
            return self._devices.search(claims, node, self._laid)
        return self._devices.find(claims, node, self._laid)

    @property
    def stamp(self) -> int:
        """Moves with each promise, among other things."""
        return self._devices.stamp

    @property
    def shared_stamp(self) -> Hashable:
        """Moves with what several nodes can use, and with classes."""
        return self._devices.shared_stamp

    def stamps_of(self, keys: Iterable[ResourceClaimKey]) -> Hashable:
        """Equal stamps, equal answers about these claims on every node whose own devices did not change: which did, `changed_nodes` says,
        and the overlay."""
        devices, laid = self._devices, self._laid
        claims = tuple([devices.claim_stamp(key) for key in keys])
        if laid is None:
            return devices.shared_stamp, claims
        return devices.shared_stamp, claims, laid.anywhere, tuple([key in laid.allocations for key in keys])

    def lay(self, laid: LaidDevices, choice: DeviceChoice) -> None:
        """As if the devices were given away."""
        for claim, given in choice.allocated:
            if self.laid(laid).allocation(claim.key) is not None:
                continue
            laid.allocations[claim.key] = given
            laid.use.add(given)
            for pool in {PoolId(one.device.driver, one.device.pool) for one in given.devices}:
                node = self._devices.node_of(pool)
                if node is None:
                    laid.anywhere += 1
                else:
                    laid.nodes[node] = laid.nodes.get(node, 0) + 1
