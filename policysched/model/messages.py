"""Messages of conditions and events for unschedulable pods, with kube-scheduler's wording, which tools parse.

Source: `FitError.Error` in kubernetes' `pkg/scheduler/framework/types.go`, and `truncateMessage` in its
`schedule_one.go`.
"""

from collections.abc import Mapping, Sequence

EVENT_NOTE_BYTES_MAX = 1024
_TRUNCATION_MARK = " ..."


def unavailable_message(node_count: int, counts: Mapping[str, int], post: str = "") -> str:
    """`0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable.`

    `counts` is the number of nodes by reason (a node may have several reasons); the texts "count reason" are sorted, as
    in kube-scheduler. `post` is the result of PostFilter (preemption). Not truncated: the condition has the full
    message, and the event's note is cut by `truncate_note`.
    """
    if node_count == 0:
        return "no nodes available to schedule pods"
    message = f"0/{node_count} nodes are available:"
    if counts:
        message += f" {', '.join(sorted(f'{count} {reason}' for reason, count in counts.items()))}."
    return f"{message} {post}" if post else message


def pod_refused_message(node_count: int, reason: str, post: str = "") -> str:
    """`0/5 nodes are available: persistentvolumeclaim "data" not found.`

    For a pod that PreFilter rejects on every node.
    """
    if node_count == 0:
        return unavailable_message(0, {})
    message = f"0/{node_count} nodes are available: {reason}."
    return f"{message} {post}" if post else message


def truncate_note(message: str) -> str:
    """The message cut to 1,024 bytes, the limit of an event's note; ` ...` marks the cut."""
    encoded = message.encode()
    if len(encoded) <= EVENT_NOTE_BYTES_MAX:
        return message
    return encoded[: EVENT_NOTE_BYTES_MAX - len(_TRUNCATION_MARK)].decode(errors="ignore") + _TRUNCATION_MARK


def unsupported_message(features: Sequence[str]) -> str:
    """For a pod with fields that no built-in supports (`Pod.uncovered`): it stays pending rather than bound wrongly."""
    return f"the pod uses {', '.join(features)}, which this version does not support"


NO_VOLUME_FILTER_MESSAGE = (
    "the pod has persistent volume claims, but the policy has no `filter volume_binding`"
)
"""The pod stays pending: without the filter its claims would not be bound."""

NO_DEVICE_FILTER_MESSAGE = "the pod has resource claims, but the policy has no `filter dynamic_resources`"
"""The pod stays pending: without the filter its claims would not be allocated."""


def no_sample_reason(metric: str) -> str:
    return f"node(s) had no sample of {metric}"


OUTAGE_RULE = "outage"
"""The rule name reported for a pod that waits for metrics."""


def metric_outage_message(lacking: Mapping[str, int], candidates: int) -> str:
    """For a pod that waits during a metric outage. `lacking` is the number of candidates without a sample, by metric."""
    return "; ".join(
        f"waits for metric {name}: {count} of {candidates} candidate nodes have no sample"
        for name, count in lacking.items()
    )


def not_recovered_reason(metric: str) -> str:
    """For a node that is below the limit again but has not reached the recovery mark."""
    return f"node(s) had not recovered since {metric} crossed its limit"


def unsatisfied_reason(rule: str) -> str:
    """For a filter without an `else` text."""
    return f"node(s) didn't satisfy rule {rule}"


# ── values in messages: `receiving {net_rx}, over {hot_link}` ─────────────────────────────────────────────────────────

MISSING_TEXT = "missing"
NODE_VALUE_PLACEHOLDER = "…"
"""Replaces a value that depends on the node, where an event counts nodes by reason."""
