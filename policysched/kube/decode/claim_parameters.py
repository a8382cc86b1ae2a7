"""ResourceClaims whose opaque parameters cannot be written again, such as hundreds of levels of JSON."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from policysched.model.devices import ResourceClaim

Json = Mapping[str, Any]


def with_used_devices(claim: Json, decode: Callable[[Json], ResourceClaim]) -> ResourceClaim:
    """Such parameters are left out of a claim that another scheduler has allocated: its devices are in use."""
    try:
        return decode(claim)
    except orjson.JSONEncodeError:
        if not (claim.get("status") or {}).get("allocation"):
            raise
    spec, status = claim.get("spec") or {}, claim["status"]
    allocation = {**status["allocation"], "devices": _without_config(status["allocation"].get("devices"))}
    return decode(
        {
            **claim,
            "spec": {**spec, "devices": _without_config(spec.get("devices"))},
            "status": {**status, "allocation": allocation},
        }
    )


def _without_config(devices: Json | None) -> Json:
    return {**(devices or {}), "config": ()}
