"""Reasons why a pod or a node is rejected, as conditions and events show them.

`scheduler.unschedulable_message` joins them to `0/5 nodes are available`.
"""

from collections.abc import Mapping, Sequence


def unsupported_message(features: Sequence[str]) -> str:
    """For a pod with fields that no built-in supports (`Pod.uncovered`): it stays pending rather than bound wrongly."""
    return f"the pod uses {', '.join(features)}, which this version of policysched does not support"


NO_VOLUME_FILTER_MESSAGE = (
    "the pod has persistent volume claims, but the policy has no `filter volume_binding`"
)
"""The pod stays pending: without the filter its claims would not be bound."""

NO_DEVICE_FILTER_MESSAGE = "the pod has resource claims, but the policy has no `filter dynamic_resources`"
"""The pod stays pending: without the filter its claims would not be allocated."""


NO_POD_GROUPS_MESSAGE = (
    "the pod has spec.schedulingGroup, but the policy does not read PodGroups: add `include pod_groups`"
)
"""The pod stays pending: alone it would start without its group."""


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
    return f"node(s) crossed the limit of {metric} and had not recovered"


def unsatisfied_reason(rule: str) -> str:
    """For a filter without a message."""
    return f"node(s) didn't satisfy rule {rule}"


# ── values in messages: `receiving {net_rx}, over {hot_link}` ─────────────────────────────────────────────────────────

MISSING_TEXT = "missing"
NODE_VALUE_PLACEHOLDER = "…"
"""Replaces a value that depends on the node, where an event counts nodes by reason."""
