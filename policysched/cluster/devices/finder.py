"""What could be found for claims on a node, kept until that node's devices change.

A pod from a template costs a look at the nodes that others went to: answers are kept by what claims ask for and by node, pools by
node, and what a selector says of a device as long as its slice stands.
"""

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from policysched.cluster.devices.allocator import OVERRUN, Found, SearchFailed, search
from policysched.cluster.devices.cel_selectors import DeviceSelectors, SelectorError
from policysched.cluster.devices.change_stamps import DeviceStamps
from policysched.cluster.devices.pools import Pool, pools_for
from policysched.cluster.devices.slices import DeviceSlices
from policysched.cluster.devices.usage import DeviceUse, Taken
from policysched.model.devices import (
    Allocation,
    DeviceClass,
    DeviceId,
    ResourceClaim,
    ResourceSlice,
)
from policysched.model.objects import Node, NodeName, ResourceClaimKey

_SPECS_KEPT = 16
_ANSWERS_KEPT = 4096  # of selectors, a slice

OVERRUNS_MAX = 8
"""Nodes on which the search for the same claims may go past its bound; then no more are searched until something changes, so that
no claim can hold up all others."""

Outcome = Found | SearchFailed | None


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


class DeviceFinder:
    """Looks at slices, classes and use as they stand; changes none of them."""

    def __init__(
        self,
        slices: DeviceSlices,
        classes: Mapping[str, DeviceClass],
        use: DeviceUse,
        stamps: DeviceStamps,
    ) -> None:
        self._slices = slices
        self._classes = classes
        self._use = use
        self._stamps = stamps
        self.selectors = DeviceSelectors()
        self._selected: dict[str, dict[tuple[str, int], bool | SelectorError]] = {}
        self._pools: dict[NodeName, tuple[Hashable, Mapping[str, str], tuple[Pool, ...]]] = {}
        self._answers = _Answers()

    def find(self, claims: Sequence[ResourceClaim], node: Node, laid: LaidDevices | None) -> Outcome:
        """What there is for these claims on the node."""
        stamp: Hashable = self._stamps.of_node(node.name)
        kept = self._answers
        if laid is not None and (laid.anywhere or laid.nodes.get(node.name)):
            stamp, kept = (stamp, laid.anywhere, laid.nodes.get(node.name, 0)), laid.answers
        else:
            laid = None
        answers = kept.of(claims)
        known = answers.by_node.get(node.name)
        if known is not None and known.stamp == stamp and known.labels == node.labels:
            return known.outcome
        if answers.stamp != self._stamps.latest:
            answers.stamp, answers.overruns = self._stamps.latest, 0
        if answers.overruns >= OVERRUNS_MAX:
            return SearchFailed(OVERRUN)
        outcome = self.search(claims, node, laid)
        answers.by_node[node.name] = _Answer(stamp, node.labels, outcome)
        answers.overruns += isinstance(outcome, SearchFailed) and outcome.words == OVERRUN
        return outcome

    def search(self, claims: Sequence[ResourceClaim], node: Node, laid: LaidDevices | None) -> Outcome:
        """The same, whatever is kept."""
        taken = Taken(self._use) if laid is None else Taken(self._use, laid.use)
        try:
            return search(claims, node, self._pools_of(node), taken, self._classes, self._matches)
        except SearchFailed as failed:
            return SearchFailed(failed.words, failed.claim)  # without the road that led there

    def amounts(self, of_class: DeviceClass, node: Node, laid: LaidDevices | None) -> tuple[int, int]:
        """As kube-scheduler counts them in scores (`calculateDRAResourceTotals` in kubernetes'
        `pkg/scheduler/framework/plugins/noderesources/resource_allocation.go`): of slices of any generation; none where a selector fails."""
        taken = Taken(self._use) if laid is None else Taken(self._use, laid.use)
        there, gone = 0, 0
        for one in self._slices.perhaps_for(node.name):
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
        stamp = self._stamps.of_slices_for(node.name)
        known = self._pools.get(node.name)
        if known is not None and known[0] == stamp and known[1] == node.labels:
            return known[2]
        pools = pools_for(node, self._slices.perhaps_for(node.name), self._slices.of_pool)
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
                found = self.selectors.matches(expression, one.pool.driver, one.devices[index])
            except SelectorError as error:
                found = SelectorError(str(error.args[0]), compiling=error.compiling)
            known[expression, index] = found
        if isinstance(found, SelectorError):
            raise found
        return found

    def forget_slice(self, name: str) -> None:
        """It changed, or is gone: its devices are others."""
        self._selected.pop(name, None)

    def forget_node(self, name: NodeName) -> None:
        """It is gone: what was kept of it is of no use."""
        self._pools.pop(name, None)
