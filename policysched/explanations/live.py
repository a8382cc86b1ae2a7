"""Explains a pod of a running scheduler on the state that decides about it: assumed pods, samples, states, queue."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from policysched.cluster.devices.pod_selectors import evaluate_selectors
from policysched.cluster.devices.search_limits import SearchAllowance
from policysched.evaluate import Overlay
from policysched.explanations.proposals import Proposal, Situation, proposals
from policysched.explanations.record import (
    ExplainedGang,
    ExplainResult,
    absent_resources_note,
    decision_message,
    outage_note,
)
from policysched.lang.ir.program import GangMode, rules_for
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import NodeName
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.pending_status import not_pending_reason, pending_status
from policysched.scheduler.steps import OPERATIONS_PER_COST_UNIT

_SELECTOR_SLICES_MAX = 200
"""About a second of the main loop."""
_NODES_PER_SLICE = 50
"""Applying their changes takes about 5 ms if all are new."""
_SLICES_MAX = 2_000
"""Beyond, changes arrive faster than they are applied, and the rest is applied at once."""
_REASONS_MAX = 10_000
"""Why rules reject nodes; of more, nodes are counted and not listed."""


class NotExplainable(Exception):
    """The pod does not exist, no policy here decides about it, or its device selectors are not evaluated yet. The message is
    one line."""


def explain_running(core: SchedulerCore, full_name: str, now_ns: int) -> Iterator[ExplainResult | None]:
    """Yields None between steps of a few milliseconds, in which the cluster may change, and at last the explanation.
    Raises NotExplainable."""
    yield from _prepare(core, _find(core, full_name).pod, now_ns)
    for _ in range(_SELECTOR_SLICES_MAX):
        observed = _find(core, full_name)
        operations_max = core.limits.attempt_step_cost_max * OPERATIONS_PER_COST_UNIT
        if evaluate_selectors([observed.pod], core.cache.devices, operations_max):
            break
        yield None
    else:
        raise NotExplainable(f"the device selectors of pod {full_name} are being evaluated; try again")
    devices, allowance = core.cache.devices.allocation_cache, SearchAllowance()
    pod, policy = observed.pod, observed.pod.scheduler
    placement = core.cache.ledger.placement(pod.uid)
    placed_on = None if placement is None else placement.node
    plan, program = core.plan(policy), core.plan(policy).program
    facts = _facts(core, pod, now_ns)
    samples = core.samples.of_policy(policy)

    def without_the_pod() -> Overlay:
        overlay = core.evaluator.overlay()
        overlay.remove_pod(pod.uid)
        return overlay

    base = without_the_pod if placed_on is not None else None
    node_count = len(core.cache.nodes)
    explaining = core.evaluator.explain_in_steps(
        plan,
        pod,
        now_ns=now_ns,
        facts=facts,
        samples=samples,
        overlay=None if base is None else base(),
        reasons_max=_REASONS_MAX,
    )
    while True:
        try:
            with devices.limited(allowance):
                next(explaining)
        except StopIteration as end:
            explanation: PlacementExplanation = end.value
            break
        yield None
    active = core.evaluator.active_layers(plan, pod, now_ns=now_ns, facts=facts)
    notes = [outage_note(explanation)] if explanation.metrics_in_outage else []
    if (absent := absent_resources_note(pod, core.cache.nodes.values())) is not None:
        notes.append(absent)
    if program.extenders:
        names = ", ".join(extender.name for extender in program.extenders)
        notes.append(f"extender {names} is not called; its rejections and scores are not included")
    refusal = core.quotas.refusal(pod) if placed_on is None else None
    if refusal is not None:
        notes.append(refusal.message)
    gang = _gang(core, pod)
    would_say = decision_message(pod, explanation, node_count=node_count)
    if gang is not None and gang.blocked and explanation.selected is not None:
        would_say = f"gang {gang.name} waits for its attempt"  # alone no member goes anywhere
    message = _message(core, observed, would_say, placed_on)
    if gang is not None and gang.blocked and placed_on is None:
        explanation = replace(explanation, selected=None, pod_rejection=message)
    result = ExplainResult(
        program,
        pod,
        explanation,
        node_count,
        rules_for(program, active).filters,
        samples,
        plan.peer_keys(pod, core.namespace_of(pod)),
        now_ns,
        message,
        tuple(notes),
        placed_on=placed_on,
        gang=gang,
    )
    yield None
    usable_proposals = []
    if explanation.selected is None and placed_on is None and refusal is None:
        situation = Situation(
            core.cache,
            core.evaluator,
            plan,
            pod,
            facts,
            samples,
            now_ns,
            explanation,
            lambda other: (
                (core.plan(other.scheduler), core.samples.of_policy(other.scheduler))
                if other.scheduler in core.policies.running
                else None
            ),
        )
        steps = proposals(situation)
        while True:
            with devices.limited(allowance):
                step: Proposal | Literal["end"] | None = next(steps, "end")
            if step == "end":
                break
            if step is not None:
                usable_proposals.append(step)
            yield None
    yield result.with_proposals(tuple(usable_proposals))


def _prepare(core: SchedulerCore, pod: Pod, now_ns: int) -> Iterator[None]:
    """What an evaluation does first: apply changes, and lower the rules with the pod's layers."""
    evaluator, plan = core.evaluator, core.plan(pod.scheduler)
    for _ in range(_SLICES_MAX):
        if not evaluator.refresh_slice(_NODES_PER_SLICE) and not evaluator.catch_up_slice(plan):
            break
        yield
    facts = _facts(core, pod, now_ns)
    for each in (plan, plan.shadow):
        if each is not None:
            yield from each.lower_in_steps(evaluator.active_layers(each, pod, now_ns=now_ns, facts=facts))


def _find(core: SchedulerCore, full_name: str) -> ObservedPod:
    namespace, _, name = full_name.partition("/")
    with_name = (observed for observed in core.cache.pods.values() if observed.pod.name == name)
    observed = next((observed for observed in with_name if observed.pod.namespace == namespace), None)
    if observed is None or observed.pod.scheduler not in core.policies.running:
        raise NotExplainable(not_pending_reason(core, full_name))
    return observed


def _facts(core: SchedulerCore, pod: Pod, now_ns: int) -> QueuedPodInfo:
    waiting = core.pods.get(pod.uid)
    return QueuedPodInfo(pod.created_ns or now_ns, 0) if waiting is None else waiting.facts


def _message(core: SchedulerCore, observed: ObservedPod, would_say: str, placed_on: NodeName | None) -> str:
    """What the scheduler said last about a pending pod; where it would go if nothing keeps it; where it is."""
    if placed_on is not None:
        decided = [
            decision
            for decision in core.records.decisions
            if decision.uid == observed.pod.uid and decision.node
        ]
        score = f", with a total of {decided[-1].score}" if decided else ""
        return f"{observed.pod.full_name} is on {placed_on}{score}"
    status = pending_status(core, observed.pod.uid)
    return status.message if status is not None and status.message else would_say


def _gang(core: SchedulerCore, pod: Pod) -> ExplainedGang | None:
    gang = core.gangs.gang_of(pod.uid)
    if gang is None:
        return None
    placed, pending = len(gang.placed_members), len(gang.pending_members)
    blocked = gang.mode is GangMode.WHOLE and gang.needed_count > 0
    return ExplainedGang(gang.name, gang.minimum, placed, pending, blocked)
