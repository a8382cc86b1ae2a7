"""The words in which a pod learns why it waits: kube-scheduler's, so that people and tools that read them still can.

Source of the wording: `FitError.Error` in kubernetes' `pkg/scheduler/framework/types.go`, and `truncateMessage` in its
`schedule_one.go`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from policysched.lang.types import QOS_CLASSES, Kind, Type

NOTE_BYTES_MAX = 1024
_CUT = " ..."


def unavailable_message(node_count: int, counts: Mapping[str, int], post: str = "") -> str:
    """`0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable.`

    `counts` says how many nodes each reason refuses (a node may have several); they are sorted as texts, count and
    reason together, as kube-scheduler does. `post` is what was tried afterwards (preemption). Not truncated: the
    condition carries it whole, the event's note goes through `truncated`.
    """
    if node_count == 0:
        return "no nodes available to schedule pods"
    message = f"0/{node_count} nodes are available:"
    if counts:
        message += f" {', '.join(sorted(f'{count} {reason}' for reason, count in counts.items()))}."
    return f"{message} {post}" if post else message


def truncated(message: str) -> str:
    """At most 1,024 bytes, the limit of an event's note; what is cut off is marked by ` ...`."""
    encoded = message.encode()
    if len(encoded) <= NOTE_BYTES_MAX:
        return message
    return encoded[: NOTE_BYTES_MAX - len(_CUT)].decode(errors="ignore") + _CUT


def uncovered_message(features: Sequence[str]) -> str:
    """For a pod that uses what no built-in covers yet (`Pod.uncovered`): better waiting than bound wrongly."""
    return f"the pod uses {', '.join(features)}, which this version does not cover yet"


ANTI_AFFINITY_OF_OTHERS = (
    "the required anti-affinity of a placed pod may refuse this pod, which this version does not cover yet"
)
"""For a pod that a placed pod's required anti-affinity selects."""


def no_sample_reason(metric: str) -> str:
    return f"node(s) had no sample of {metric}"


def unsatisfied_reason(rule: str) -> str:
    """For a filter without an `else` text."""
    return f"node(s) didn't satisfy rule {rule}"


# ── values in texts: `receiving {net_rx}, over {hot_link}` ─────────────────────────────────────────────────────────

MISSING_TEXT = "missing"
VARYING_TEXT = "…"
"""What stands for a value that depends on the node where an event counts nodes by their reason."""

_BINARY = (("Ei", 2**60), ("Pi", 2**50), ("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10), ("", 1))
_BITS = (("Tbps", 1e12), ("Gbps", 1e9), ("Mbps", 1e6), ("kbps", 1e3), ("bps", 1))
_TIME = (("h", 3600 * 10**9), ("m", 60 * 10**9), ("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))


def value_text(value: bool | int | float | str | tuple[int | float | str, ...], type_: Type) -> str:
    """A value as a person writes it in a policy, to four digits where it is not exact in a unit: `512Mi`, `820Mbps`,
    `85%`, `90s`. `value` is held as `type_` says, or in float64."""
    if isinstance(value, tuple):
        element = type_.element or Type(Kind.STRING)
        return f"[{', '.join(value_text(one, element) for one in value)}]"
    if isinstance(value, str):
        return value
    match type_.kind:
        case Kind.BOOL:
            return "true" if value else "false"
        case Kind.CPU:
            return _digits(value / 1000) if value % 1000 == 0 else f"{_digits(value)}m"
        case Kind.BYTES:
            return _in_largest_unit(value, _BINARY)
        case Kind.BANDWIDTH:
            return _in_largest_unit(value, _BITS)
        case Kind.RATIO:
            return f"{_digits(value * 100)}%"
        case Kind.DURATION:
            return _in_largest_unit(value, _TIME)
        case Kind.TIMESTAMP:
            return _moment(value)
        case Kind.QOS:
            return QOS_CLASSES[int(value)]
        case _:
            return str(value) if isinstance(value, int) else _digits(value)


def _in_largest_unit(value: int | float, units: Sequence[tuple[str, float]]) -> str:
    """In the largest unit that divides it; else in the largest that is not above it."""
    smallest, _ = units[-1]
    if value == 0:
        return f"0{smallest}"
    exact = [(name, size) for name, size in units if value % size == 0]
    below = [(name, size) for name, size in units if abs(value) >= size]
    name, size = (exact or below or units[-1:])[0]
    if below and abs(value) / size >= 10_000:
        name, size = below[0]
    return f"{_digits(value / size)}{name}"


def _digits(number: int | float) -> str:
    if isinstance(number, float) and number.is_integer() and abs(number) < 2**53:
        number = int(number)
    return str(number) if isinstance(number, int) else f"{number:.4g}"


def _moment(value: int | float) -> str:
    try:
        return datetime.fromtimestamp(int(value) // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):  # beyond the years that a calendar has
        return f"{int(value) // 10**9}s since 1970"
