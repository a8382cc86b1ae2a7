"""A hypothetical cluster on which members of a gang are placed and taken back, with the quotas that they use."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from policysched.evaluate import NodeSelection, Overlay, TopologyDomain
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_result import AttemptFailure, AttemptSuccess, reject_for_quota
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_overlay import (
    add_member,
    gang_overlay,
    nodes_of,
    present_overlay,
    present_quotas,
)
from policysched.scheduler.gangs.gang_search_result import GangSearchResult, SearchPauses, wanted
from policysched.scheduler.layer_rules import lower_rules
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from policysched.scheduler.steps import NEW_CLASS_COST, Steps, evaluation_cost


class MemberTrial:
    """Call `begin` first: nothing is copied before. `removed`: pods that would be evicted; `usage`: of the quotas without
    them (None: as it is), which is judged again at the end."""

    _quotas: QuotaUsage | None

    def __init__(
        self,
        core: SchedulerCore,
        attempts: PodAttempts,
        gang: QueuedGang,
        removed: Sequence[Pod],
        usage: QuotaUsage | None,
        pauses: SearchPauses,
    ) -> None:
        self._core, self._attempts, self._gang = core, attempts, gang
        self._removed, self._usage, self._pauses = removed, usage, pauses
        self._search = GangSearchResult(wanted=wanted(gang), reclaims=usage is not None)  # for pauses

    def begin(self, domain: TopologyDomain | None) -> None:
        """No member is placed. `domain`: that they must not leave in a pause."""
        self._search.domain = domain
        self.reset()

    def reset(self) -> None:
        """No member is placed."""
        overlay = gang_overlay(self._core, self._gang)
        self._search.victims = nodes_of(self._core, self._removed)
        for uid in self._search.victims:
            overlay.remove_pod(uid)
        self._search.fits.clear()
        self._search.overlay = overlay
        self._quotas = (
            present_quotas(self._core, self._gang, self._search)
            if self._usage is None
            else self._usage.trial()
        )

    @property
    def _overlay(self) -> Overlay:
        overlay = self._search.overlay
        assert overlay is not None, "it is made again after a pause"
        return overlay

    def pause(self, pod: PendingPod) -> Steps[bool]:
        """A step in which the attempt may pause, and what the evaluation of the member needs after one. Returns whether the
        cluster has changed."""
        core, pauses, search = self._core, self._pauses, self._search
        pauses.search = search
        yield 0
        if pauses.count:
            yield from lower_rules(core, pod, pauses.now_ns)
        pauses.search = None
        has_changed, pauses.cluster_changed = pauses.cluster_changed, False
        if has_changed:
            search.overlay = yield from present_overlay(core, self._gang, search)
            if not search.reclaims:
                self._quotas = present_quotas(core, self._gang, search)
        if pauses.count:
            yield from self._attempts.warm_up(pod, pauses.now_ns, self._overlay)
        return has_changed

    def take_lost(self) -> Collection[PodUid]:
        lost = self._search.take_lost()
        if self._search.reclaims and self._quotas is not None:
            for pod, _ in lost:
                self._quotas.add(self._core.quotas.charge_of(pod.pod), -1)
        return {pod.uid for pod, _ in lost}

    def is_pending(self, pod: PendingPod) -> bool:
        return self._gang.pending_members.get(pod.uid) is pod

    def evaluate(self, pod: PendingPod, nodes: NodeSelection | None) -> AttemptSuccess | AttemptFailure:
        """A node for the member, beside those that are placed; None of `nodes`: all. A failure has no reasons."""
        refusal = None if self._quotas is None else self._core.quotas.refusal(pod.pod, self._quotas)
        if refusal is not None:
            return reject_for_quota(refusal.message)
        return self._attempts.evaluate(pod, self._overlay, self._pauses.now_ns, nodes, diagnosed=False)

    def evaluate_in_steps(
        self, pod: PendingPod, nodes: NodeSelection | None
    ) -> Steps[AttemptSuccess | AttemptFailure]:
        """The same, as one step."""
        core = self._core
        operations = core.evaluator.decision_cost(pod.pod)
        yield NEW_CLASS_COST + evaluation_cost(len(core.cache.nodes), operations)
        return self.evaluate(pod, nodes)

    def place(self, pod: PendingPod, success: AttemptSuccess) -> Steps[AttemptSuccess]:
        """Place the member. Returns the result with its prebind work. One that was placed before keeps its volumes: what a storage
        class allows may have changed in a pause."""
        if self._quotas is not None:
            self._quotas.add(self._core.quotas.charge_of(pod.pod))
        if success.prebind_work is None:
            work = self._attempts.add_to_overlay(pod, success.node, self._overlay, self._pauses.now_ns)
            success = replace(success, prebind_work=work)
        else:
            add_member(self._overlay, pod, success)
        self._search.fits.append((pod, success))
        yield from ()
        return success

    def take_back(self, pod: PendingPod, success: AttemptSuccess) -> bool:
        """Take back the latest member. False: it has reservations, which only `reset` undoes."""
        if success.prebind_work is not None:
            return False
        self._overlay.remove_pod(pod.uid)
        self._search.fits.pop()
        if self._quotas is not None:
            self._quotas.add(self._core.quotas.charge_of(pod.pod), -1)
        return True
