"""The limits of the scheduler. They come from the settings file."""

from dataclasses import dataclass

from policysched.evaluate import DECISION_BUDGET_DEFAULT

SECOND_NS = 10**9
PREBINDS_PER_SLICE_MAX = 32
"""Pods in PreBind that one call looks at or withdraws, 0.13 ms each: thousands may be of one gang, or use one claim."""
REPORTS_PER_SLICE_MAX = 100
"""Events and conditions of pending pods that are made at once, about 3 ms: thousands of members of a gang have theirs at one time."""
_RECOUNT_DELAY_MAX_NS = 300 * SECOND_NS


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """backoff_*: kube-scheduler's backoff, 1 s doubled with each attempt up to 10 s. It also limits how often the
        reported message of a pod changes (see `recount_delay_ns`).
    binds_in_flight_max: no attempt while more binds than this are without an answer, except for namespaces with less than a
        tenth of that number (`queue.prompt_binds`).
    gang_backtracks_max: how often one attempt of a gang with unequal members takes back the node of a member.
    gang_report_delay_s: a gang with too few members is reported after this long.
    rekey_pods_max: pods that one call of `decide` evaluates at most for a policy text that is about to take over.
    decision_records_max: records of `/decisions`.
    repeat_evictions_max: after this many evictions of recreated pods of one owner, in vain or in turn, within
        `repeat_evictions_window_s`, the pods of that namespace do not evict the owner's pods for a while.
    eviction_forbidden_retry_s: time without evictions after the API server forbade one.
    extender_answer_age_max_s: an older answer of an extender is requested again.
    extender_retry_s: a pod that extenders rejected on every node is tried again after this long without an event.
    rejection_hold_s: how long capacity is held back after a kubelet rejected a pod; doubled with each repetition, up
        to `rejection_hold_max_s`.
    attempt_step_cost_max: cost of an attempt that one call of `decide` runs, in the units of `steps` (about 10 µs).
        The next call continues a longer attempt.
    pending_log_interval_s: the interval of the log line with the most frequent causes of pending pods, written while
        a pod has been pending for longer than the interval (0: never).
    gang_piece_cost_max: the cost, in the same units, after which the search for a gang pauses: events are applied, and
        other pods are decided for as long.
    gang_piece_cost_by_member: a piece is at least this long for each member that has a node, because continuing
        after a pause places these members again.
    gang_head_start_cost: the cost after which pauses also decide pods behind the gang in the order of its policy.
    failed_attempts_share: the maximum share of the scheduling time for failed attempts of one namespace; above it, pods of
        other namespaces come first, and then the namespace rests (see `queue.decision_time`); 1: no limit.
    decision_budget: a pod is not evaluated if that would take more operations (see `evaluate.decision_cost`).
    """

    backoff_initial_s: float = 1.0
    backoff_max_s: float = 10.0
    binds_in_flight_max: int = 500
    gang_report_delay_s: float = 1.0
    gang_backtracks_max: int = 100
    rekey_pods_max: int = 200
    decision_records_max: int = 1000
    repeat_evictions_max: int = 20
    repeat_evictions_window_s: float = 600.0
    eviction_forbidden_retry_s: float = 300.0
    extender_answer_age_max_s: float = 10.0
    extender_retry_s: float = 60.0
    rejection_hold_s: float = 60.0
    rejection_hold_max_s: float = 600.0
    attempt_step_cost_max: int = 500
    pending_log_interval_s: float = 60.0
    gang_piece_cost_max: int = 5_000
    gang_piece_cost_by_member: int = 5
    gang_head_start_cost: int = 50_000
    failed_attempts_share: float = 0.05
    decision_budget: int = DECISION_BUDGET_DEFAULT

    def backoff_ns(self, attempts: int) -> int:
        """The backoff after the n-th failed attempt, from 1: initial * 2^(n-1), at most the maximum."""
        doublings = min(max(attempts, 1) - 1, 32)
        return round(min(self.backoff_initial_s * float(2**doublings), self.backoff_max_s) * SECOND_NS)

    def recount_delay_ns(self, reports: int) -> int:
        """How long a report waits that has only other numbers than the one before, after so many reports of that kind: 10 s,
        20 s and so on, at most five minutes, as client-go limits the events about one object."""
        return min(round(self.backoff_max_s * SECOND_NS) << min(reports, 10), _RECOUNT_DELAY_MAX_NS)
