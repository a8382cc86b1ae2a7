"""Invariants of reserved volumes and devices: each is reserved for one claim. A claim that was deleted reserves nothing, nor
does one whose allocation was written and removed again: its pod is gone, too, although that event may arrive later.

The server's objects cannot show a violation: the API server refuses a volume's second claim, and
devices that are not written yet are not visible.
"""

from collections.abc import Iterator
from typing import Any

from policysched.model.devices import ResourceClaim
from policysched.scheduler.scheduler import Scheduler


def duplicate_reservations(scheduler: Scheduler) -> list[str]:
    """A message for each volume and each device that is reserved for two claims."""
    promised: dict[Any, set[str]] = {}
    for reserved, claim in _reservations(scheduler):
        promised.setdefault(reserved, set()).add(claim)
    return [
        f"{reserved} is reserved for {len(claims)} claims: {sorted(claims)}"
        for reserved, claims in promised.items()
        if len(claims) > 1
    ]


def _reservations(scheduler: Scheduler) -> Iterator[tuple[str, str]]:
    for preparation in scheduler._core.binds.prebinding.values():
        needs = preparation.prebind_work
        if needs.volumes is not None:
            for claim, volume in needs.volumes.choice.static_bindings:
                yield f"volume {volume.name}", f"{claim.key} {claim.uid}"
        written = preparation.written_versions or {}
        for asking, given in needs.devices.allocated:
            claim = scheduler._core.cache.devices.claims.get(asking.key)
            if asking.uid and claim is None:
                continue
            if claim is not None and _is_released(claim, written.get(asking.key)):
                continue
            for device in given.devices:
                yield f"device {device.device}", f"{asking.key} {asking.uid}"


def _is_released(claim: ResourceClaim, written_version: int | None) -> bool:
    """Whether its allocation was removed after it was written."""
    return written_version is not None and claim.allocation is None and claim.version > written_version
