"""Generates the table of exported metrics and the list of missing kube-scheduler metrics."""

from collections.abc import Mapping

from tests.house.exported_metrics import exported

KUBE_SCHEDULERS = "scheduler_"

NOT_HERE: Mapping[str, str] = {
    "async_api_call_execution_duration_seconds": "binds: `policysched_bind_duration_seconds`",
    "async_api_call_execution_total": "`policysched_binds_total`, `policysched_reports_total`, `policysched_evictions_total`",
    "batch_attempts_total": "pods of one equivalence class always share a verdict; there are no batches",
    "batch_cache_flushed_total": "as above",
    "batch_rescore_attempts_total": "there are no batches",
    "batch_rescore_duration_seconds": "there are no batches",
    "dra_bindingconditions_allocations_total": "pods whose devices could not be bound count as `error` in `scheduler_schedule_attempts_total`",
    "dra_bindingconditions_wait_duration_seconds": "part of `scheduler_scheduling_attempt_duration_seconds`",
    "event_handling_duration_seconds": "events are applied between decisions, in slices of the main loop",
    "framework_extension_point_duration_seconds": "a decision is one evaluation of the policy: `scheduler_scheduling_algorithm_duration_seconds`",
    "generated_placements_total": "a gang's places are part of one decision in `scheduler_scheduling_algorithm_duration_seconds`",
    "get_node_hint_duration_seconds": "there are no batches and no hints",
    "goroutines": "decisions use one thread",
    "inflight_events": "no event is applied during a decision",
    "pending_async_api_calls": "`policysched_binds_in_flight`, `policysched_reports_waiting`",
    "permit_wait_duration_seconds": "nothing is held while a gang waits; its pods are `gated` in `scheduler_pending_pods`",
    "placement_evaluation_duration_seconds": "a gang is one decision in `scheduler_scheduling_algorithm_duration_seconds`",
    "placement_evaluations_total": "a gang is one decision in `scheduler_scheduling_algorithm_duration_seconds`",
    "plugin_evaluation_total": "`policysched show` prints which rules apply to which pods",
    "plugin_execution_duration_seconds": "rules are evaluated together; `policysched show` has the cost of each",
    "pod_scheduled_after_flush_total": "there is no flush; it would always be 0",
    "podgroup_schedule_attempts_total": "members of gangs count in `scheduler_schedule_attempts_total`",
    "podgroup_scheduling_algorithm_duration_seconds": "a gang is one decision in `scheduler_scheduling_algorithm_duration_seconds`",
    "podgroup_scheduling_attempt_duration_seconds": "members count in `scheduler_scheduling_attempt_duration_seconds`",
    "pre_queueing_hint_evaluations_total": "requeue events follow from the policy and cost one look-up",
    "preemption_evaluation_duration_seconds": "part of `scheduler_scheduling_algorithm_duration_seconds`",
    "preemption_execution_duration_seconds": "`policysched_evictions_total`",
    "preemption_goroutines_duration_seconds": "no goroutines",
    "preemption_goroutines_execution_total": "`policysched_evictions_total`",
    "preemption_pdb_violations_total": "the log line of a preemption names the victims",
    "preemption_workload_disruptions": "`policysched_evictions_total` counts the pods",
    "queue_incoming_entities_total": "`scheduler_queue_incoming_pods_total` counts the pods, members of gangs too",
    "queued_entities": "`scheduler_pending_pods` counts the pods, members of gangs too",
    "queueing_hint_execution_duration_seconds": "requeue events follow from the policy and cost one look-up",
    "resourceclaim_creates_total": "claims for extended resources are not counted separately",
    "store_schedule_results_duration_seconds": "there are no batches",
    "unschedulable_pods": "`/decisions` and the event name the rules; `scheduler_pending_pods` counts the pods",
    "workload_preemption_attempts_total": "gangs count in `scheduler_preemption_attempts_total`",
    "workload_preemption_victims": "victims of gangs count in `scheduler_preemption_victims`",
}
"""kube-scheduler 1.37's metrics that policysched does not have, without their prefix: the
replacement, or the reason. Source: `pkg/scheduler/metrics/metrics.go`.
"""


def table() -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in sorted(
        exported(), key=lambda export: (not export.name.startswith(KUBE_SCHEDULERS), export.name)
    ):
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.help} |")
    return "\n".join(lines)


def not_here() -> str:
    lines = ["| kube-scheduler's metric | here |", "|---|---|"]
    lines += [f"| `{KUBE_SCHEDULERS}{name}` | {reason} |" for name, reason in sorted(NOT_HERE.items())]
    return "\n".join(lines)
