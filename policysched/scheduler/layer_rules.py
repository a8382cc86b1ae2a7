"""Lowering of the rules with the layers of a pod, before its nodes are evaluated.

Those of a large policy take half a second. They depend on the layers alone, so the cluster may change meanwhile.
"""

from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.steps import Steps


def layers_to_lower(core: SchedulerCore, pod: PendingPod, now_ns: int) -> tuple[int, ...] | None:
    """The layers that apply, if the rules with them are not lowered. None also where many pods have to be read to tell
    which apply: the attempt does that in steps."""
    plan = core.plan(pod.policy)
    if not plan.program.layers or not core.evaluator.reads_few_pods(plan.totals_of_layers):
        return None
    active = core.evaluator.active_layers(plan, pod.pod, now_ns=now_ns, facts=pod.facts)
    return None if plan.is_lowered(active) else active


def lower_rules(core: SchedulerCore, pod: PendingPod, now_ns: int) -> Steps[None]:
    """Each rule ends the time slice."""
    active = layers_to_lower(core, pod, now_ns)
    for _ in () if active is None else core.plan(pod.policy).lower_in_steps(active):
        yield core.limits.attempt_step_cost_max
