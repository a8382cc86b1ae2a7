"""Invariants of devices, checked against the server's objects after every change.

A device is allocated to one claim at a time. A claim keeps its devices until it is deallocated. Our
pods are bound after their claims are allocated devices of the node's pool or of the shared pool,
and reserved for the pod.
"""

from collections.abc import Callable, Collection
from typing import Any

from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import StoreChange
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.resource_claim_controller import DEVICE_CLAIMS
from tests.simulation.churn_devices import RACK

Json = dict[str, Any]
Device = tuple[str, str, str]
"""Driver, pool and device name."""


class DeviceChecker:
    """`own_schedulers` are the schedulerNames of our policies. `fail` gets a message for each violation."""

    def __init__(
        self, server: ApiServer, own_schedulers: Collection[str], fail: Callable[[str], None]
    ) -> None:
        self._local = LocalClient(server)
        self._own_schedulers = own_schedulers
        self._fail = fail
        self._local.listen(DEVICE_CLAIMS, self._claim_changed)
        self._local.listen("pods", self._pod_changed)

    def _claim_changed(self, change: StoreChange) -> None:
        obj = change.entry.obj
        if change.type == "DELETED":
            return
        has = devices_of(obj)
        if change.previous is not None and (had := devices_of(change.previous.obj)) and has and had != has:
            self._fail(f"claim {change.entry.key} had devices {had} and has {has}")
        for other in self._local.list(DEVICE_CLAIMS):
            if other["metadata"]["uid"] != obj["metadata"]["uid"]:
                for device in set(has) & set(devices_of(other)):
                    self._fail(f"device {device} is in two claims: {_name(obj)} and {_name(other)}")

    def _pod_changed(self, change: StoreChange) -> None:
        obj = change.entry.obj
        node = obj["spec"].get("nodeName")
        landed = change.previous is not None and node and not change.previous.obj["spec"].get("nodeName")
        if change.type == "MODIFIED" and landed and obj["spec"]["schedulerName"] in self._own_schedulers:
            for wanted in obj["spec"].get("resourceClaims") or ():
                self._check_device_claim(obj, wanted, node)

    def _check_device_claim(self, pod: Json, wanted: Json, node: str) -> None:
        metadata = pod["metadata"]
        name = claim_name(pod, wanted)
        prefix = f"{_name(pod)} is on {node}, and its claim {name or wanted['name']}"
        claim = self._local.get(DEVICE_CLAIMS, metadata["namespace"], name) if name else None
        devices = [] if claim is None else devices_of(claim)
        if claim is None or not devices:
            self._fail(f"{prefix} has no devices")
            return
        if metadata["uid"] not in [consumer["uid"] for consumer in claim["status"].get("reservedFor") or ()]:
            self._fail(f"{prefix} is not reserved for it")
        for _, pool, device in devices:
            if pool not in (node, RACK):
                self._fail(f"{prefix} has device {device}, which is in {pool}")


def devices_of(claim: Json) -> list[Device]:
    """The devices in the claim's status."""
    given = (claim.get("status") or {}).get("allocation") or {}
    results = (given.get("devices") or {}).get("results") or ()
    return sorted((result["driver"], result["pool"], result["device"]) for result in results)


def claim_name(pod: Json, wanted: Json) -> str | None:
    """The name of the claim for an entry of the pod's spec; None until it is created."""
    made = {
        status["name"]: status.get("resourceClaimName")
        for status in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    return wanted.get("resourceClaimName") or made.get(wanted["name"])


def _name(obj: Json) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
