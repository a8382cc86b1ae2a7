"""What each rule of a policy takes, for the page: one pod is evaluated again while a user looks at the page.

Decisions are not measured, since they share most of their work with the ones before. The number is what a rule costs for a
pod that is unlike any other, on all nodes: that is comparable between rules and between edits.
"""

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median
from time import perf_counter_ns

from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.core import SchedulerCore

_MEASUREMENTS_KEPT = 15


class RuleTimes:
    """`measure` evaluates one pod of a policy; `of` has the medians of the latest measurements, in µs by rule."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[str, deque[dict[str, int]]]] = {}

    def measure(self, core: SchedulerCore, policy: str, now_ns: int) -> None:
        """Nothing is measured if no pod of the policy is known, or if its decision would be long."""
        pod = _pod_of(core, policy)
        if pod is None or not core.evaluator.is_short_decision(pod):
            return
        running = core.policies.running[policy]
        sha256, taken = self._taken.get(policy, ("", deque[dict[str, int]]()))
        if sha256 != running.program.sha256:
            taken = deque(maxlen=_MEASUREMENTS_KEPT)
            self._taken[policy] = running.program.sha256, taken
        facts = QueuedPodInfo(now_ns, 0)
        samples = core.samples.of_policy(policy)
        times: dict[str, int] = {}
        steps = core.evaluator.rule_steps(running.plan, pod, now_ns=now_ns, facts=facts, samples=samples)
        began_ns = perf_counter_ns()
        for rule in steps:
            ended_ns = perf_counter_ns()
            times[rule] = times.get(rule, 0) + ended_ns - began_ns
            began_ns = ended_ns
        taken.append(times)

    def keep_only(self, policies: Collection[str]) -> None:
        """Forget policies that are gone: a team can rename its own at each edit."""
        self._taken = {name: taken for name, taken in self._taken.items() if name in policies}

    def of(self, policy: str) -> Mapping[str, float]:
        _, taken = self._taken.get(policy, ("", deque[dict[str, int]]()))
        if not taken:
            return {}
        return {rule: median(times[rule] for times in taken if rule in times) / 1000 for rule in taken[-1]}


def _pod_of(core: SchedulerCore, policy: str) -> Pod | None:
    """A pending pod, or the one that was decided last. None for which devices are searched: only attempts limit that."""
    for pending in core.pods.values():
        if pending.policy == policy and not _needs_devices(core, pending.pod):
            return pending.pod
    for decision in reversed(core.records.decisions):
        observed = core.cache.pods.get(decision.uid) if decision.policy == policy else None
        if observed is not None and not _needs_devices(core, observed.pod):
            return observed.pod
    return None


def _needs_devices(core: SchedulerCore, pod: Pod) -> bool:
    class_of = core.cache.devices.class_of_resource
    return bool(pod.device_claims) or any(class_of(request.resource) for request in pod.extended)
