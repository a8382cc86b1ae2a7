"""The words in which a pod learns why it waits: kube-scheduler's, so that people and tools that read them still can.

Source of the wording: `FitError.Error` in kubernetes' `pkg/scheduler/framework/types.go`, and `truncateMessage` in its
`schedule_one.go`.
"""

from collections.abc import Mapping, Sequence

EVENT_NOTE_BYTES_MAX = 1024
_TRUNCATION_MARK = " ..."


def unavailable_message(node_count: int, counts: Mapping[str, int], post: str = "") -> str:
    """`0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable.`

    `counts` says how many nodes each reason refuses (a node may have several); they are sorted as texts, count and
    reason together, as kube-scheduler does. `post` is what was tried afterwards (preemption). Not truncated: the
    condition carries it whole, the event's note goes through `truncate_note`.
    """
    if node_count == 0:
        return "no nodes available to schedule pods"
    message = f"0/{node_count} nodes are available:"
    if counts:
        message += f" {', '.join(sorted(f'{count} {reason}' for reason, count in counts.items()))}."
    return f"{message} {post}" if post else message


def pod_refused_message(node_count: int, why: str, post: str = "") -> str:
    """`0/5 nodes are available: persistentvolumeclaim "data" not found.`

    For a pod that a filter refuses as a whole, before any node is looked at.
    """
    if node_count == 0:
        return unavailable_message(0, {})
    message = f"0/{node_count} nodes are available: {why}."
    return f"{message} {post}" if post else message


def truncate_note(message: str) -> str:
    """At most 1,024 bytes, the limit of an event's note; what is cut off is marked by ` ...`."""
    encoded = message.encode()
    if len(encoded) <= EVENT_NOTE_BYTES_MAX:
        return message
    return encoded[: EVENT_NOTE_BYTES_MAX - len(_TRUNCATION_MARK)].decode(errors="ignore") + _TRUNCATION_MARK


def unsupported_message(features: Sequence[str]) -> str:
    """For a pod that uses what no built-in covers yet (`Pod.uncovered`): better waiting than bound wrongly."""
    return f"the pod uses {', '.join(features)}, which this version does not cover yet"


NO_VOLUME_FILTER_MESSAGE = (
    "the pod has volumes with claims, and the policy has no `filter volume_binding` to see to them"
)
"""For a pod whose claims nobody would bind: better waiting than bound wrongly."""

NO_DEVICE_FILTER_MESSAGE = (
    "the pod has resource claims, and the policy has no `filter dynamic_resources` to see to them"
)
"""For a pod whose claims nobody would give devices."""


def no_sample_reason(metric: str) -> str:
    return f"node(s) had no sample of {metric}"


OUTAGE_RULE = "outage"
"""What is named as the rule that refuses a pod which waits for metrics."""


def metric_outage_message(lacking: Mapping[str, int], candidates: int) -> str:
    """Of a pod that waits while a metric is out. `lacking` is how many of the candidates have no sample, by metric."""
    return "; ".join(
        f"waits for metric {name}, of which {count} of {candidates} nodes that would do have no sample"
        for name, count in lacking.items()
    )


def not_recovered_reason(metric: str) -> str:
    """For a node within the limit that is held for having crossed it."""
    return f"node(s) had not recovered since {metric} crossed its limit"


def unsatisfied_reason(rule: str) -> str:
    """For a filter without an `else` text."""
    return f"node(s) didn't satisfy rule {rule}"


# ── values in texts: `receiving {net_rx}, over {hot_link}` ─────────────────────────────────────────────────────────

MISSING_TEXT = "missing"
NODE_VALUE_PLACEHOLDER = "…"
"""What stands for a value that depends on the node where an event counts nodes by their reason."""
