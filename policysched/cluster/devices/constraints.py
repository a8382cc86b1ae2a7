"""What the devices of a claim must have in common, or each for itself.

An attribute is looked up by its full name, or by the part after the domain where the domain is the driver's. A device
that does not have it satisfies no constraint. Different on purpose from kube-scheduler 1.36, whose distinctAttribute
forgets a request's earlier devices: here all are held against each other.
"""

from policysched.model.devices import Device, DeviceAttribute, DeviceConstraint


class ConstraintChecker:
    """`add` and `remove` in the order of a stack."""

    def __init__(self, declared: DeviceConstraint) -> None:
        self._declared = declared
        self._attributes: list[DeviceAttribute | None] = []  # None: of a request that it is not about

    def add(self, request: str, full_name: str, driver: str, device: Device) -> bool:
        """Whether the constraint holds with this device as well; then it counts from now on."""
        about = self._declared.requests
        if about and request not in about and full_name not in about:
            self._attributes.append(None)
            return True
        attribute = _attribute(self._declared.attribute, driver, device)
        if attribute is None:
            return False
        earlier = [known for known in self._attributes if known is not None]
        if earlier and (attribute.kind == "other" or not self._allows(attribute, earlier)):
            return False
        self._attributes.append(attribute)
        return True

    def remove(self) -> None:
        self._attributes.pop()

    def _allows(self, attribute: DeviceAttribute, earlier: list[DeviceAttribute]) -> bool:
        if self._declared.kind == "match":
            return attribute == earlier[0]
        return attribute not in earlier


def constraint_checker(declared: DeviceConstraint) -> ConstraintChecker:
    assert declared.kind in ("match", "distinct"), f"a constraint of kind {declared.kind}"
    return ConstraintChecker(declared)


def _attribute(name: str, driver: str, device: Device) -> DeviceAttribute | None:
    value = device.attributes.get(name)
    if value is None:
        domain, _, own = name.partition("/")
        value = device.attributes.get(own) if own and domain == driver else None
    return value
