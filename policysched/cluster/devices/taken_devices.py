"""The devices that a search on one node has taken so far for the claims of a pod, beside those that are allocated. What it takes
it can give back, as it backtracks."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from policysched.cluster.devices.capacity import add_amounts, capacity_consumption, has_capacity
from policysched.cluster.devices.constraints import ConstraintChecker
from policysched.cluster.devices.device_requests import CLAIM_PLACEHOLDER, DeviceSearchFailed, RequestOption
from policysched.cluster.devices.device_taints import DeviceTaints
from policysched.cluster.devices.device_usage import AllocatedDevices
from policysched.cluster.devices.pools import DevicePool
from policysched.cluster.devices.shared_counters import CountersLeft, SharedCounters
from policysched.model.devices import Device, DeviceId, ExactDeviceRequest, PoolId, ResourceSlice


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """`consumed_capacity` is the allocated share of a device that allows several allocations; None: the
    whole device."""

    option: RequestOption
    id: DeviceId
    slice: ResourceSlice
    device: Device
    consumed_capacity: Mapping[str, Fraction] | None


@dataclass(slots=True)
class UndoRecord:
    """What taking a device changed, to be undone on backtracking."""

    counters: tuple[PoolId, Device] | None = None
    constraints: list[ConstraintChecker] = field(default_factory=list)
    marked: bool = False
    consumed: Mapping[str, Fraction] | None = None
    listed: bool = False


class TakenDevices:
    """`by_claim`: in the order in which they were taken. `constraints`: of each claim. `count_steps` is called with what a device
    costs beyond a step."""

    def __init__(
        self,
        claim_count: int,
        allocated: AllocatedDevices,
        counters_left: CountersLeft,
        taints: DeviceTaints,
        count_steps: Callable[[int], object],
    ) -> None:
        self.by_claim: list[list[ChosenDevice]] = [[] for _ in range(claim_count)]
        self.constraints: list[list[ConstraintChecker]] = []
        self._allocated = allocated
        self._counters = SharedCounters(allocated, counters_left)
        self._taints = taints
        self._count_steps = count_steps
        self._claims_of_device: dict[DeviceId, set[int]] = {}
        self._consumed: dict[DeviceId, Mapping[str, Fraction]] = {}
        self._share_counts: Counter[DeviceId] = Counter()

    @property
    def count(self) -> int:
        return sum(map(len, self.by_claim))

    def is_free(self, claim: int, request: ExactDeviceRequest, device_id: DeviceId, device: Device) -> bool:
        marked = self._claims_of_device.get(device_id, ())
        if request.admin_access:
            return device.shareable or claim not in marked
        if self._allocated.is_wholly_allocated(device_id) or marked:
            return False
        return device.shareable or not self._allocated.is_shared(device_id)

    def has_capacity(self, option: RequestOption, pool: DevicePool, device: Device) -> bool:
        device_id = DeviceId(*pool.id, device.name)
        consumed = self._allocated.consumed_capacity(device_id)
        if device_id in self._consumed:
            consumed = add_amounts(consumed, self._consumed[device_id])
        return has_capacity(device, option.request.capacity, consumed)

    def take(
        self,
        claim: int,
        option: RequestOption,
        pool: DevicePool,
        resource_slice: ResourceSlice,
        device: Device,
        *,
        must: bool,
    ) -> UndoRecord | None:
        """None if the device cannot be allocated. With `must`, a constraint that forbids the device is
        an error."""
        device_id = DeviceId(*pool.id, device.name)
        if not self.is_free(claim, option.request, device_id, device):
            return None
        taints = self._taints.of(pool.id, device)
        self._count_steps(self._comparison_steps(claim, option, device, len(taints)))
        step = UndoRecord()
        is_shared = self._share_counts[device_id] > 0 or self._allocated.is_shared(device_id)
        if device.consumes_counters and not (device.shareable and is_shared):
            if not self._counters.take(pool, device):
                return None
            step.counters = pool.id, device
        if any(
            taint.effect in ("NoSchedule", "NoExecute")
            and not any(toleration.tolerates(taint) for toleration in option.request.tolerations)
            for taint in taints
        ):
            self.undo(claim, device_id, step)
            return None
        for constraint in self.constraints[claim]:
            if not constraint.add(
                option.parent_request or option.request.name, option.full_name, pool.id.driver, device
            ):
                self.undo(claim, device_id, step)
                if must:
                    message = (
                        f"claim {CLAIM_PLACEHOLDER}, request {option.request.name}: cannot add device {device_id} because a claim"
                        " constraint would not be satisfied"
                    )
                    raise DeviceSearchFailed(message, claim)
                return None
            step.constraints.append(constraint)
        if not device.shareable:
            self._claims_of_device.setdefault(device_id, set()).add(claim)
            step.marked = True
        if not self.has_capacity(option, pool, device):
            self.undo(claim, device_id, step)
            return None
        if device.shareable:
            step.consumed = capacity_consumption(device, option.request.capacity)
            self._consumed[device_id] = add_amounts(self._consumed.get(device_id, {}), step.consumed)
            self._share_counts[device_id] += 1
        self.by_claim[claim].append(ChosenDevice(option, device_id, resource_slice, device, step.consumed))
        step.listed = True
        return step

    def undo(self, claim: int, device_id: DeviceId, step: UndoRecord) -> None:
        if step.listed:
            self.by_claim[claim].pop()
        if step.consumed is not None:
            self._consumed[device_id] = add_amounts(self._consumed[device_id], step.consumed, -1)
            self._share_counts[device_id] -= 1
        if step.marked:
            self._claims_of_device[device_id].discard(claim)
        for constraint in reversed(step.constraints):
            constraint.remove()
        if step.counters is not None:
            self._counters.give_back(*step.counters)

    def _comparison_steps(self, claim: int, option: RequestOption, device: Device, taint_count: int) -> int:
        """What a device costs beyond a step. A constraint compares it with those chosen before, and amounts are fractions."""
        steps = len(self.constraints[claim]) * (len(self.by_claim[claim]) + 4) // 32
        steps += taint_count * (1 + len(option.request.tolerations)) // 64
        if device.capacity:
            steps += len(device.capacity) * (16 if device.shareable else 1) // 4
        steps += sum(len(each.counters) for each in device.consumes_counters) // 2
        return steps
