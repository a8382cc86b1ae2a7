"""Which time zones a CEL selector may name: `timestamp("2026-01-01T12:00:00Z").getHours("Europe/Berlin")`.

The runtime opens the file of that name, an absolute path too, reads it while the process waits, and keeps the name for ever. So
a zone is a constant, and one of the zones of this machine.
"""

import re
from zoneinfo import ZoneInfo

from policysched.cluster.devices.cel_tree import all_bytes, bytes_of, calls_in, message, text_of, tree_of

_OFFSET = re.compile(r"[+-]?\d\d:\d\d", re.ASCII)
_NAME_MAX = 64
_ZONES_MAX = 8
"""Different ones. Looking one up takes 0.1 ms."""
_CONSTANT, _STRING = 3, 6


def unusable_zone(serialized: bytes) -> str | None:
    """What is wrong with a time zone of the expression, `serialized` as by `Expression.serialize`."""
    zones = set[str]()
    for call in calls_in(tree_of(serialized)):
        operands = all_bytes(call, 1) + all_bytes(call, 3)
        if text_of(call, 2).startswith("get") and len(operands) > 1:
            constant = message(bytes_of(message(operands[-1]), _CONSTANT))
            if _STRING not in constant:
                return "policysched knows no time zone but a constant"
            zones.add(text_of(constant, _STRING))
    if len(zones) > _ZONES_MAX:
        return f"more than {_ZONES_MAX} time zones"
    return None if all(map(_is_zone, zones)) else "unknown time zone"


def _is_zone(name: str) -> bool:
    if not name or _OFFSET.fullmatch(name):
        return True
    try:
        return len(name) <= _NAME_MAX and bool(ZoneInfo(name))
    except (KeyError, OSError, ValueError):
        return False
