"""The taints of devices: those that the driver published, and those of DeviceTaintRules.

The slices stay as they were published. A rule may select all devices of the cluster, and a controller may change it all the time:
its taints are looked up for a device that is about to be taken, and no device is visited for the change.
"""

from collections.abc import Iterator

from policysched.model.devices import Device, DeviceTaint, DeviceTaintRule, PoolId, ResourceSlice

_Selected = tuple[str | None, str | None]
"""A driver and a pool; None: any."""


class DeviceTaints:
    """`put` and `drop` return the rules of that name before and after, without one that selects nothing; none if nothing
    changes."""

    def __init__(self) -> None:
        self.rules: dict[str, DeviceTaintRule] = {}
        self._by_device: dict[_Selected, dict[str | None, dict[str, DeviceTaint]]] = {}

    def put(self, rule: DeviceTaintRule) -> list[DeviceTaintRule]:
        if self.rules.get(rule.name) == rule:
            return []
        before = self.drop(rule.name)
        self.rules[rule.name] = rule
        if not rule.selects:
            return before
        of_pool = self._by_device.setdefault((rule.driver, rule.pool), {})
        of_pool.setdefault(rule.device, {})[rule.name] = rule.taint
        return [*before, rule]

    def drop(self, name: str) -> list[DeviceTaintRule]:
        rule = self.rules.pop(name, None)
        if rule is None or not rule.selects:
            return []
        of_pool = self._by_device[rule.driver, rule.pool]
        del of_pool[rule.device][name]
        if not of_pool[rule.device]:
            del of_pool[rule.device]
        if not of_pool:
            del self._by_device[rule.driver, rule.pool]
        return [rule]

    def of(self, pool: PoolId, device: Device) -> tuple[DeviceTaint, ...]:
        """Of a device of the pool."""
        return (*device.taints, *self._of_rules(pool, device.name)) if self._by_device else device.taints

    def _of_rules(self, pool: PoolId, device: str) -> Iterator[DeviceTaint]:
        for selected in ((None, None), (pool.driver, None), (None, pool.pool), (pool.driver, pool.pool)):
            of_pool = self._by_device.get(selected)
            if of_pool is not None:
                for name in (None, device):
                    yield from of_pool.get(name, {}).values()


def selects_some(rule: DeviceTaintRule, resource_slice: ResourceSlice) -> bool:
    """Whether the rule taints a device of the slice."""
    pool, devices = resource_slice.pool, resource_slice.devices
    if rule.driver not in (None, pool.driver) or rule.pool not in (None, pool.pool):
        return False
    return bool(devices) if rule.device is None else any(each.name == rule.device for each in devices)
