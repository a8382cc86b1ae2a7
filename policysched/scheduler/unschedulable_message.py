"""`0/5 nodes are available`: the message of an unschedulable pod, in kube-scheduler's wording, which tools parse.

Source: `FitError.Error` in kubernetes' `pkg/scheduler/framework/types.go`. The counts come from `evaluate.diagnosis`.
"""

from collections.abc import Mapping
from heapq import nsmallest

from policysched.evaluate import TopologyDomain

REASONS_MAX = 32
REASONS_CHARACTERS_MAX = 2_000
MESSAGE_CHARACTERS_MAX = 4_096
"""Of a condition, and of what is kept for each pod. kube-scheduler and the API server have no limit below the size of a
pod; an event's note is cut further by `truncate_note`."""
_MORE = "more reasons"
_CUT = " ..."


def unavailable_message(node_count: int, counts: Mapping[str, int], post: str = "") -> str:
    """`0/5 nodes are available: 2 Insufficient cpu, 3 node(s) were unschedulable.`

    `counts` is the number of nodes by reason (a node may have several reasons); the texts "count reason" are sorted, as
    in kube-scheduler. `post` is the result of PostFilter (preemption).
    """
    if node_count == 0:
        return "no nodes available to schedule pods"
    message = f"0/{node_count} nodes are available:"
    counts = most_frequent_reasons(counts)
    if counts:
        message += f" {', '.join(sorted(f'{count} {reason}' for reason, count in counts.items()))}."
    return f"{message} {post}" if post else message


def most_frequent_reasons(counts: Mapping[str, int]) -> dict[str, int]:
    """As many as keep messages and records short, and how many more there are: a pod may request thousands of resources
    that no node has, and a policy says what it likes."""
    reasons = [reason for reason in counts if reason != _MORE]
    if len(reasons) <= REASONS_MAX and sum(map(len, reasons)) <= REASONS_CHARACTERS_MAX:
        return dict(counts)
    kept: dict[str, int] = {}
    left = REASONS_CHARACTERS_MAX
    for reason in nsmallest(REASONS_MAX, reasons, key=lambda reason: (-counts[reason], reason)):
        left -= len(reason)
        if kept and left < 0:
            break
        kept[short_text(reason, REASONS_CHARACTERS_MAX)] = counts[reason]
    hidden_count = counts.get(_MORE, 0) + len(reasons) - len(kept)
    return {**kept, _MORE: hidden_count} if hidden_count else kept


def short_text(text: str, characters_max: int = MESSAGE_CHARACTERS_MAX) -> str:
    """The beginning of a long text."""
    return text if len(text) <= characters_max else text[: characters_max - len(_CUT)] + _CUT


def filter_error_message(error: str) -> str:
    """`running "DynamicResources" filter plugin: claim default/c: selector #0: CEL runtime error: ...`

    For an attempt that stops because a filter failed on a node; no other built-in fails.
    """
    return f'running "DynamicResources" filter plugin: {short_text(error, REASONS_CHARACTERS_MAX)}'


def pod_rejected_message(node_count: int, reason: str, post: str = "") -> str:
    """`0/5 nodes are available: persistentvolumeclaim "data" not found.`

    For a pod that PreFilter rejects on every node.
    """
    if node_count == 0:
        return unavailable_message(0, {})
    message = f"0/{node_count} nodes are available: {short_text(reason, REASONS_CHARACTERS_MAX)}."
    return f"{message} {post}" if post else message


def outside_domain_reason(domain: TopologyDomain) -> str:
    """Reason for nodes that are feasible but outside the gang's domain (without a value: outside every domain)."""
    if domain.value is None:
        return f"node(s) in no {domain.key} domain with enough capacity for the gang"
    return f"node(s) outside {domain.name}"
