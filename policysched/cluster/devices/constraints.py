"""Constraints between the devices of a claim: matchAttribute and distinctAttribute.

An attribute is looked up by its full name, or by the part after the domain if the domain is the
driver's. A device without the attribute satisfies no constraint. Deliberately different from
kube-scheduler 1.36, whose distinctAttribute forgets the earlier devices of a request: here all
devices are compared.
"""

from policysched.model.devices import Device, DeviceAttribute, DeviceConstraint


class ConstraintChecker:
    """The devices that a constraint applies to so far. `remove` undoes the latest `add`."""

    def __init__(self, declared: DeviceConstraint) -> None:
        assert declared.kind in ("match", "distinct"), f"a constraint of kind {declared.kind}"
        self._declared = declared
        self._attributes: list[
            DeviceAttribute | None
        ] = []  # None: of a request that the constraint does not cover

    def add(self, request: str, full_name: str, driver: str, device: Device) -> bool:
        """Add the device if the constraint holds with it. Returns whether it does."""
        requests = self._declared.requests
        if requests and request not in requests and full_name not in requests:
            self._attributes.append(None)
            return True
        attribute = _attribute(self._declared.attribute, driver, device)
        if attribute is None:
            return False
        earlier = [known_attribute for known_attribute in self._attributes if known_attribute is not None]
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


def _attribute(name: str, driver: str, device: Device) -> DeviceAttribute | None:
    value = device.attributes.get(name)
    if value is None:
        domain, _, attribute_name = name.partition("/")
        value = device.attributes.get(attribute_name) if attribute_name and domain == driver else None
    return value
