"""`0/5 nodes are available`: the message of an unschedulable pod, in kube-scheduler's wording, which tools parse.

Source: `FitError.Error` in kubernetes' `pkg/scheduler/framework/types.go`. The counts come from `evaluate.diagnosis`.
"""

from collections.abc import Mapping
from heapq import nsmallest

from policysched.evaluate import TopologyDomain

REASONS_MAX = 32


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


def most_frequent_reasons(counts: Mapping[str, int]) -> dict[str, int]:
    """At most so many that messages and records stay short: a pod may request thousands of resources that no node has."""
    if len(counts) <= REASONS_MAX:
        return dict(counts)
    kept = nsmallest(REASONS_MAX, counts, key=lambda reason: (-counts[reason], reason))
    return {**{reason: counts[reason] for reason in kept}, "more reasons": len(counts) - REASONS_MAX}


def filter_error_message(error: str) -> str:
    """`running "DynamicResources" filter plugin: claim default/c: selector #0: CEL runtime error: ...`

    For an attempt that stops because a filter failed on a node; no other built-in fails.
    """
    return f'running "DynamicResources" filter plugin: {error}'


def pod_rejected_message(node_count: int, reason: str, post: str = "") -> str:
    """`0/5 nodes are available: persistentvolumeclaim "data" not found.`

    For a pod that PreFilter rejects on every node.
    """
    if node_count == 0:
        return unavailable_message(0, {})
    message = f"0/{node_count} nodes are available: {reason}."
    return f"{message} {post}" if post else message


def outside_domain_reason(domain: TopologyDomain) -> str:
    """Reason for nodes that are feasible but outside the gang's domain (without a value: outside every domain)."""
    if domain.value is None:
        return f"node(s) in no {domain.key} domain with enough capacity for the gang"
    return f"node(s) outside {domain.name}"
