"""A hypothetical cluster on which members of a gang are placed and taken back, with the quotas that they use."""

from collections.abc import Sequence
from dataclasses import replace

from policysched.evaluate import NodeSelection, Overlay
from policysched.model.pods import Pod
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_result import AttemptFailure, AttemptSuccess, reject_for_quota
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_overlay import gang_overlay
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from policysched.scheduler.steps import NEW_CLASS_COST, Steps, evaluation_cost


class MemberTrial:
    """Call `reset` first: nothing is copied before. `removed`: pods that would be evicted; `usage`: of the quotas without
    them (None: as it is)."""

    _overlay: Overlay
    _quotas: QuotaUsage | None

    def __init__(
        self,
        core: SchedulerCore,
        attempts: PodAttempts,
        gang: QueuedGang,
        removed: Sequence[Pod],
        usage: QuotaUsage | None,
        now_ns: int,
    ) -> None:
        self._core, self._attempts, self._gang = core, attempts, gang
        self._removed, self._usage, self._now_ns = removed, usage, now_ns

    def reset(self) -> None:
        """No member is placed."""
        self._overlay = gang_overlay(self._core, self._gang)
        for victim in self._removed:
            self._overlay.remove_pod(victim.uid)
        self._quotas = (
            self._core.quotas.trial(self._gang.representative_pod, excluding=self._gang.pending_members)
            if self._usage is None
            else self._usage.trial()
        )

    def evaluate(self, pod: PendingPod, nodes: NodeSelection | None) -> AttemptSuccess | AttemptFailure:
        """A node for the member, beside those that are placed; None of `nodes`: all. A failure has no reasons."""
        refusal = None if self._quotas is None else self._core.quotas.refusal(pod.pod, self._quotas)
        if refusal is not None:
            return reject_for_quota(refusal.message)
        return self._attempts.evaluate(pod, self._overlay, self._now_ns, nodes, diagnosed=False)

    def evaluate_in_steps(
        self, pod: PendingPod, nodes: NodeSelection | None
    ) -> Steps[AttemptSuccess | AttemptFailure]:
        """The same, as one step."""
        core = self._core
        operations = core.evaluator.decision_cost(pod.pod)
        yield NEW_CLASS_COST + evaluation_cost(len(core.cache.nodes), operations)
        return self.evaluate(pod, nodes)

    def place(self, pod: PendingPod, success: AttemptSuccess) -> Steps[AttemptSuccess]:
        """Place the member. Returns the result with its prebind work."""
        if self._quotas is not None:
            self._quotas.add(self._core.quotas.charge_of(pod.pod))
        work = self._attempts.add_to_overlay(pod, success.node, self._overlay, self._now_ns)
        yield from ()
        return replace(success, prebind_work=work)

    def take_back(self, pod: PendingPod, success: AttemptSuccess) -> bool:
        """Take back a member. False: it has reservations, which only `reset` undoes."""
        if success.prebind_work is not None:
            return False
        self._overlay.remove_pod(pod.uid)
        if self._quotas is not None:
            self._quotas.add(self._core.quotas.charge_of(pod.pod), -1)
        return True
