"""The numbers that bound the core: how long, how many. The shell's settings file fills them."""

from dataclasses import dataclass

SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """`backoff_*`: kube-scheduler's, 1 s doubled with each attempt up to 10 s; the same steps bound how often the
    words about one pod may change. `binds_in_flight_max`: no decision while more binds than this wait for an answer.
    `gang_report_delay_s`: a gang that is still gathering says so only after this long. `rekey_pods_max`: how many pods a
    call of `decide` re-keys while a policy is being replaced. `decisions_kept`: how many records `/decisions` has.
    `repeat_evictions_max`: after so many evictions within `repeat_evictions_window_s` of pods that were made anew after
    an eviction, their owner's pods are not evicted for a while. `eviction_forbidden_retry_s`: how long no eviction is tried
    after the API server has forbidden one. `extender_answer_age_max_s`: an extender's answer that is older is asked for again.
    `extender_retry_s`: after so long a pod that extenders refused everywhere is tried again even if nothing happened.
    `rejection_hold_s`: how long room that a kubelet said it does not have is held back, doubled each time that it comes to
    that again, up to `rejection_hold_max_s`. `attempt_step_cost_max`: how much a call of `decide` thinks of one decision, in
    the units of `steps` (about 10 µs): a longer one is carried on by the next call.
    """

    backoff_initial_s: float = 1.0
    backoff_max_s: float = 10.0
    binds_in_flight_max: int = 500
    gang_report_delay_s: float = 1.0
    rekey_pods_max: int = 200
    decisions_kept: int = 1000
    repeat_evictions_max: int = 20
    repeat_evictions_window_s: float = 600.0
    eviction_forbidden_retry_s: float = 300.0
    extender_answer_age_max_s: float = 10.0
    extender_retry_s: float = 60.0
    rejection_hold_s: float = 60.0
    rejection_hold_max_s: float = 600.0
    attempt_step_cost_max: int = 500

    def backoff_ns(self, attempts: int) -> int:
        """How long a pod waits after its n-th failed attempt (from 1): initial * 2^(n-1), at most the maximum."""
        doublings = min(max(attempts, 1) - 1, 32)
        return round(min(self.backoff_initial_s * float(2**doublings), self.backoff_max_s) * SECOND_NS)
