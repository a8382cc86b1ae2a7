"""What is kept of ResourceClaims with thousands of finalizers, which take twice their JSON in memory."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policysched.kube.decode.devices import decode_resource_claim
from policysched.model.devices import ResourceClaim

_FINALIZERS_MAX = 64


def decode_watched_claim(obj: Mapping[str, Any]) -> ResourceClaim:
    """As `decode_resource_claim`, without finalizers if there are very many. Who writes them reads the claim."""
    claim = decode_resource_claim(obj)
    is_large = len(claim.finalizers or ()) > _FINALIZERS_MAX
    return replace(claim, finalizers=None) if is_large else claim
