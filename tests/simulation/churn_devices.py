"""Changes to the devices of a cluster: claims that come and go, and drivers that publish more, fewer or worse devices.

The devices in a node form the pool of the node's name; devices that every node can use form the
pool `rack`. Pods request devices with a claim template, or name a claim that they share.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.resource_claim_controller import CLAIM_TEMPLATES, DEVICE_CLAIMS

Json = dict[str, Any]

SLICES, DEVICE_CLASSES = "resourceslices", "deviceclasses"
DRIVER = "gpu.example.com"
RACK = "rack"
"""The pool of devices that every node can use."""

_NAMESPACES = ("default", "team-a")
_CLASS: Json = {
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
_NEW_MODEL_SELECTOR = f'device.attributes["{DRIVER}"].model == "new"'


class DeviceChurn:
    """`log` gets a line for each action; `number` returns a number that was not used before."""

    def __init__(
        self, local: LocalClient, random: Random, *, log: Callable[[str], None], number: Callable[[], int]
    ) -> None:
        self._local = local
        self._random = random
        self._log = log
        self._next_number = number
        self.actions: dict[str, Callable[[], None]] = {
            "create a device claim": self.create_claim,
            "delete a device claim": self.delete_claim,
            "change devices": self.change_devices,
        }

    def create_classes(self) -> None:
        self._local.create(DEVICE_CLASSES, "", {**_CLASS, "metadata": dict(_CLASS["metadata"])})
        for namespace in _NAMESPACES:
            for name, spec in (("one", _spec(1)), ("two", _spec(2)), ("new", _spec(1, _NEW_MODEL_SELECTOR))):
                body = {"metadata": {"name": name}, "spec": {"spec": spec}}
                self._local.create(CLAIM_TEMPLATES, namespace, body)

    def populate(self) -> None:
        """Half of all clusters start with devices."""
        if self._random.random() < 0.5:
            for node in list(self._local.list("nodes")):
                self._publish_slices(node["metadata"]["name"])
            self._publish_slices(RACK)
            for _ in range(2):
                self.create_claim()

    def claims_for_pod(self, namespace: str, share: float) -> list[Json]:
        """The `resourceClaims` of a new pod, mostly empty."""
        random = self._random
        if random.random() >= share or not any(self._local.list(SLICES)):
            return []
        named = [
            claim["metadata"]["name"]
            for claim in self._local.list(DEVICE_CLAIMS, namespace)
            if not claim["metadata"].get("ownerReferences")
        ]
        if named and random.random() < 0.4:
            return [{"name": "d", "resourceClaimName": random.choice(named)}]
        return [{"name": "d", "resourceClaimTemplateName": random.choice(("one", "one", "two", "new"))}]

    def create_claim(self) -> None:
        name, namespace = f"devices-{self._next_number()}", self._random.choice(_NAMESPACES)
        count = self._random.choice((1, 1, 2))
        self._log(f"claim {namespace}/{name} for {count} devices")
        body = {"metadata": {"name": name}, "spec": _spec(count)}
        self._local.create(DEVICE_CLAIMS, namespace, body)

    def delete_claim(self) -> None:
        """Delete a claim that no pod uses; others are protected or deleted with their pods."""
        used = {
            (pod["metadata"]["namespace"], claim.get("resourceClaimName"))
            for pod in self._local.list("pods")
            for claim in pod["spec"].get("resourceClaims") or ()
        }
        free = [
            claim
            for claim in self._local.list(DEVICE_CLAIMS)
            if (claim["metadata"]["namespace"], claim["metadata"]["name"]) not in used
            and not claim["metadata"].get("ownerReferences")
            and not claim["metadata"].get("deletionTimestamp")
        ]
        if free:
            claim = self._random.choice(free)
            self._log(f"claim {claim['metadata']['namespace']}/{claim['metadata']['name']} is deleted")
            self._local.delete(DEVICE_CLAIMS, claim)

    def change_devices(self) -> None:
        """A driver publishes other devices than before, or its first."""
        pools = [RACK, *(node["metadata"]["name"] for node in self._local.list("nodes"))]
        self._publish_slices(self._random.choice(pools))

    def on_node_deleted(self, name: str) -> None:
        """Delete the slices that the node owned."""
        for slice_ in self._local.list(SLICES):
            if slice_["spec"].get("nodeName") == name:
                self._local.delete(SLICES, slice_)

    def _publish_slices(self, pool: str) -> None:
        random = self._random
        known = self._local.get(SLICES, "", f"{pool}-gpus")
        generation = 1 if known is None else known["spec"]["pool"]["generation"] + 1
        devices = [self._device(f"g{at}") for at in range(random.randint(0, 3))]
        spec: Json = {
            "driver": DRIVER,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            **({"allNodes": True} if pool == RACK else {"nodeName": pool}),
            "devices": devices,
        }
        self._log(f"{pool} offers {[device['name'] for device in devices]}")
        if known is None:
            self._local.create(SLICES, "", {"metadata": {"name": f"{pool}-gpus"}, "spec": spec})
        else:
            self._local.update(SLICES, known, lambda slice_: {**slice_, "spec": spec})

    def _device(self, name: str) -> Json:
        random = self._random
        taints = [{"key": "broken", "effect": "NoSchedule"}] if random.random() < 0.1 else []
        return {
            "name": name,
            "attributes": {"model": {"string": random.choice(("old", "new"))}},
            **({"taints": taints} if taints else {}),
        }


def _spec(count: int, *selectors: str) -> Json:
    exactly: Json = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": selector}} for selector in selectors]
    return {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
