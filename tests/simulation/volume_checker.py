"""Invariants of volumes, checked against the server's objects after every change.

A volume keeps its claim until the claim is deleted, and a claim keeps its volume. Our pods are
bound after their claims are bound to volumes that the node can access. A ReadWriteOncePod claim has
one pod.
"""

from collections.abc import Callable, Collection
from typing import Any

from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import StoreChange
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.volume_controller import CLAIMS, VOLUMES

Json = dict[str, Any]


class VolumeChecker:
    """`own_schedulers` are the schedulerNames of our policies. `fail` gets a message for each violation."""

    def __init__(
        self, server: ApiServer, own_schedulers: Collection[str], fail: Callable[[str], None]
    ) -> None:
        self._local = LocalClient(server)
        self._own_schedulers = own_schedulers
        self._fail = fail
        self._local.listen(VOLUMES, self._volume_changed)
        self._local.listen(CLAIMS, self._claim_changed)
        self._local.listen("pods", self._pod_changed)

    def _volume_changed(self, change: StoreChange) -> None:
        if change.type != "MODIFIED" or change.previous is None:
            return
        before, after = _claim_of_volume(change.previous.obj), _claim_of_volume(change.entry.obj)
        if before and after != before:
            self._fail(f"volume {change.entry.key[1]} was claim {before}'s and is {after}'s")

    def _claim_changed(self, change: StoreChange) -> None:
        volume = change.entry.obj["spec"].get("volumeName")
        if change.type != "MODIFIED" or change.previous is None or not volume:
            return
        before = change.previous.obj["spec"].get("volumeName")
        if before and before != volume:
            self._fail(f"claim {change.entry.key} had volume {before} and has {volume}")
        sharing = [
            claim["metadata"]["name"]
            for claim in self._local.list(CLAIMS)
            if claim["spec"].get("volumeName") == volume
        ]
        if len(sharing) > 1:
            self._fail(f"claims {sharing} have one volume: {volume}")

    def _pod_changed(self, change: StoreChange) -> None:
        obj = change.entry.obj
        node = obj["spec"].get("nodeName")
        landed = change.previous is not None and node and not change.previous.obj["spec"].get("nodeName")
        if change.type == "MODIFIED" and landed and obj["spec"]["schedulerName"] in self._own_schedulers:
            for claim in claim_names(obj):
                self._check_volume(obj, claim, node)

    def _check_volume(self, pod: Json, claim: str, node: str) -> None:
        space = pod["metadata"]["namespace"]
        prefix = f"{space}/{pod['metadata']['name']} is on {node}, and its claim {claim}"
        stored = self._local.get(CLAIMS, space, claim)
        volume = (
            None if stored is None else self._local.get(VOLUMES, "", stored["spec"].get("volumeName", ""))
        )
        if stored is None or volume is None:
            self._fail(f"{prefix} is not bound")
            return
        if _claim_of_volume(volume) != stored["metadata"]["uid"]:
            self._fail(f"{prefix} has {volume['metadata']['name']}, which is {_claim_of_volume(volume)}'s")
        if node not in _reachable_nodes(volume, node):
            self._fail(
                f"{prefix} has {volume['metadata']['name']}, which is on {_reachable_nodes(volume, node)}"
            )
        if "ReadWriteOncePod" in stored["spec"]["accessModes"]:
            users = [
                pod["metadata"]["name"]
                for pod in self._local.list("pods", space)
                if claim in claim_names(pod) and pod["spec"].get("nodeName")
                if pod["status"].get("phase") not in ("Succeeded", "Failed")
                if pod["spec"]["schedulerName"] in self._own_schedulers
            ]
            if len(users) > 1:
                self._fail(f"{prefix} is ReadWriteOncePod and is used by {users}")


def claim_names(pod: Json) -> list[str]:
    sources = [volume.get("persistentVolumeClaim") for volume in pod["spec"].get("volumes") or ()]
    return [source["claimName"] for source in sources if source]


def _claim_of_volume(volume: Json) -> str:
    return str((volume["spec"].get("claimRef") or {}).get("uid") or "")


def _reachable_nodes(volume: Json, otherwise: str) -> list[str]:
    """The nodes of the volume's node affinity, which lists hostnames; `otherwise` if it has none."""
    terms = volume["spec"].get("nodeAffinity", {}).get("required", {}).get("nodeSelectorTerms")
    if not terms:
        return [otherwise]
    return [
        host for term in terms for expression in term["matchExpressions"] for host in expression["values"]
    ]
