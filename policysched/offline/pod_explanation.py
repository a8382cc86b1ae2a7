"""Explains the placement of one pod of a cluster file, rule by rule."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import MetricSamples
from policysched.evaluate import Evaluator, GangTerms, Plan
from policysched.evaluate import compile as compile_plan
from policysched.explanations.proposals import Proposal, Situation, proposals
from policysched.explanations.record import (
    ExplainedGang,
    ExplainResult,
    absent_resources_note,
    decision_message,
    outage_note,
)
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.cluster_variants import ClusterVariants
from policysched.from_files.inputs import queued_at_creation
from policysched.from_files.simulate import SimulationResult
from policysched.from_files.state_values import state_tables
from policysched.lang.ir.program import GangMode, Program, rules_for
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.offline.gang_proposals import GangSituation, gang_proposals
from policysched.policy_files.source_set import UnusableFile
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME, PolicyPermissions
from policysched.scheduler.quotas.quota_accounts import QuotaAccounts
from policysched.text.abbreviate import abbreviate_names


def explain_pod(
    program: Program,
    files: ClusterFiles,
    pod_name: str,
    *,
    samples: Mapping[str, MetricSamples],
    saved_states: str | None = None,
    permissions: PolicyPermissions = ANY_POLICY_NAME,
    now_ns: int,
    deadline_s: float = math.inf,
) -> ExplainResult:
    """Evaluates one pod (`NAMESPACE/NAME`) as if it were pending. `saved_states` are saved values of the policy's states,
    `permissions` is what the settings allow policies to do. At `deadline_s` (`time.monotonic`) no more is proposed for a
    gang. Raises UnusableFile if the pod is not in the files."""
    began_s = time.monotonic()
    observed = _find_pod(files, pod_name)
    cache = files.build_cache()
    observed = cache.pod_groups.attach(observed)
    plan = compile_plan(program)
    members = _gang_members(plan, files, cache, observed)
    cache.drop_pod(observed.pod.uid)  # its own requests do not count against it
    notes = []
    if observed.node is not None:
        notes.append(f"{observed.pod.full_name} is on {observed.node}; explained as if it were pending")
    if observed.pod.scheduler != program.name:
        notes.append(
            f"{observed.pod.full_name} has schedulerName {observed.pod.scheduler}, not {program.name}"
        )
    evaluator = Evaluator(cache)
    facts = QueuedPodInfo(queued_at_creation(observed.pod, now_ns), 0)
    values = {**samples, **state_tables(program, saved_states, now_ns=now_ns)}
    explanation = evaluator.explain(plan, observed.pod, now_ns=now_ns, facts=facts, samples=values)
    space = cache.namespaces.get(observed.pod.namespace)
    active = evaluator.active_layers(plan, observed.pod, now_ns=now_ns, facts=facts)
    filters = rules_for(program, active).filters
    if explanation.metrics_in_outage:
        notes.append(outage_note(explanation))
    if (absent := absent_resources_note(observed.pod, files.nodes)) is not None:
        notes.append(absent)
    if program.extenders:
        notes.append(missing_inputs_note(program))
    gang = plan.gang(observed.pod, space)
    refusal = _quota_refusal(plan, cache, observed.pod, now_ns)
    if refusal is not None and explanation.pod_rejection is None:
        explanation = replace(explanation, selected=None, pod_rejection=refusal)
    unserved = permissions.namespace_rejection(program.name, observed.pod.namespace, space)
    message = unserved or decision_message(observed.pod, explanation, node_count=len(cache.nodes))
    tries_preemption = (
        explanation.selected is None
        and explanation.pod_rejection is None
        and plan.allows_preemption
        and not program.extenders
    )
    is_placed_whole = gang is not None and gang.mode is GangMode.WHOLE and not program.extenders

    variants = ClusterVariants(
        program.name,
        _with_only_its_gang_pending(program, files, observed, members),
        samples,
        saved_states,
        permissions,
        now_ns,
    )
    starts = False
    if unserved is None and (tries_preemption or is_placed_whole or refusal is not None):
        result = variants.simulate(program, variants.files)
        message, evicted = _explain_preemption(observed, result, gang) or (message, "")
        starts = bool(result.placements) and not result.preempted
        notes += [evicted] if evicted else []
        if is_placed_whole and explanation.selected is not None and message.startswith("gang "):
            explanation = replace(explanation, selected=None, pod_rejection=message)
    explained_gang = None if gang is None else _explained_gang(plan, cache, members, gang, starts=starts)
    usable_proposals, not_tried = list[Proposal](), None
    if explanation.selected is None and unserved is None:
        situation = Situation(
            cache,
            evaluator,
            plan,
            observed.pod,
            facts,
            values,
            now_ns,
            explanation,
            plan_of=lambda other: (plan, values) if other.scheduler == program.name else None,
        )
        usable_proposals = [proposal for proposal in proposals(situation) if proposal is not None]
        if explained_gang is not None and is_placed_whole:
            of_gang = gang_proposals(
                GangSituation(
                    program,
                    observed.pod,
                    explained_gang,
                    variants,
                    partial(_situation_of, situation, variants),
                    deadline_s,
                ),
                usable_proposals,
            )
            usable_proposals = of_gang.proposals
            if of_gang.not_tried:
                not_tried = not_tried_note(of_gang.not_tried, time.monotonic() - began_s)
                notes.append(not_tried)
    return ExplainResult(
        program,
        observed.pod,
        explanation,
        len(cache.nodes),
        filters,
        samples,
        plan.peer_keys(observed.pod, space),
        now_ns,
        message,
        tuple(notes),
        placed_on=observed.node,
        gang=explained_gang,
        proposals=tuple(usable_proposals),
        not_tried=not_tried,
    )


def not_tried_note(not_tried: Mapping[str, str], elapsed_s: float) -> str:
    """Of which changes it is unknown whether they help, and why."""
    changes = "; ".join(f"{change} ({reason})" for change, reason in not_tried.items())
    return f"these changes were not tried; they may make the gang start ({elapsed_s:.1f} s were spent): {changes}"


def _situation_of(
    situation: Situation, variants: ClusterVariants, files: ClusterFiles, pod: Pod
) -> Situation:
    """A pod alone on other files than those of the situation. The gang's own pods are not to be moved for it."""
    cache, facts = files.build_cache(), QueuedPodInfo(queued_at_creation(pod, situation.now_ns), 0)
    cache.drop_pod(pod.uid)
    evaluator = Evaluator(cache)
    members = {observed.pod.uid for observed in variants.files.pods if observed.node is None}
    return replace(
        situation,
        cache=cache,
        evaluator=evaluator,
        pod=pod,
        facts=facts,
        explanation=evaluator.explain(
            situation.plan, pod, now_ns=situation.now_ns, facts=facts, samples=situation.samples
        ),
        plan_of=lambda other: None if other.uid in members else situation.plan_of(other),
    )


def _explained_gang(
    plan: Plan, cache: ClusterCache, members: list[ObservedPod], terms: GangTerms, *, starts: bool
) -> ExplainedGang:
    """`starts`: with the present minimum, at once."""
    terms_of_members = [
        plan.gang(member.pod, cache.namespaces.get(member.pod.namespace)) for member in members
    ]
    minimum = max(gang_terms.minimum for gang_terms in (terms, *terms_of_members) if gang_terms is not None)
    placed = sum(member.node is not None for member in members)
    is_whole = terms.mode is GangMode.WHOLE and not plan.program.extenders
    blocked = is_whole and placed < minimum and not starts
    return ExplainedGang("/".join(terms.key), minimum, placed, len(members) - placed, blocked)


def _quota_refusal(plan: Plan, cache: ClusterCache, pod: Pod, now_ns: int) -> str | None:
    """Why the quotas of the policy do not admit the pod, beside the placed pods of the files."""
    quotas = QuotaAccounts(cache)
    quotas.activate(plan, now_ns)
    refusal = quotas.refusal(replace(pod, scheduler=plan.program.name))
    return None if refusal is None else refusal.message


def _explain_preemption(
    observed: ObservedPod, result: SimulationResult, gang: GangTerms | None
) -> tuple[str, str] | None:
    """The scheduler's message for the pod when only it is pending, or its gang, and a note about the pods it would evict.
    None if there is no message."""
    message = dict(result.first_messages).get(observed.pod.full_name)
    if message is None and gang is not None:
        message = dict(result.pending).get(observed.pod.full_name)
    if message is None:
        return None
    if not result.preempted:
        return message, ""
    node = next((placement.node for placement in result.placements), None)
    return message, f"would be nominated to {node}, evicting {', '.join(result.preempted)}"


def _with_only_its_gang_pending(
    program: Program, files: ClusterFiles, observed: ObservedPod, members: list[ObservedPod]
) -> ClusterFiles:
    """The placed pods, and of the pending ones the pod and its gang."""
    others = [member for member in members if member.node is None and member.pod.uid != observed.pod.uid]
    waiting = [
        replace(
            pending,
            pod=replace(pending.pod, scheduler=program.name),
            node=None,
            phase="Pending",
            deleting=False,
        )
        for pending in (observed, *others)
    ]
    placed_pods = [
        placed for placed in files.pods if placed.node is not None and placed.pod.uid != observed.pod.uid
    ]
    return replace(files, pods=[*placed_pods, *waiting])


def _gang_members(
    plan: Plan, files: ClusterFiles, cache: ClusterCache, observed: ObservedPod
) -> list[ObservedPod]:
    """The pods of the pod's gang that have not finished, itself included; with their PodGroups."""

    def key(attached: ObservedPod) -> tuple[str, str] | None:
        pod = attached.pod
        terms = plan.gang(pod, cache.namespaces.get(pod.namespace))
        return None if terms is None else terms.key

    gang = key(observed)
    if gang is None:
        return []
    pod = observed.pod
    candidates = [
        cache.pod_groups.attach(other)
        for other in files.pods
        if not other.finished
        and other.pod.scheduler == pod.scheduler
        and other.pod.namespace == pod.namespace
    ]
    return [candidate for candidate in candidates if key(candidate) == gang]


def missing_inputs_note(program: Program) -> str:
    """The inputs that no offline result includes."""
    names = ", ".join(extender.name for extender in program.extenders)
    return f"extender {names} is not called; its rejections and scores are not included"


def _find_pod(files: ClusterFiles, pod_name: str) -> ObservedPod:
    if "/" not in pod_name:
        named = [observed for observed in files.pods if observed.pod.name == pod_name]
        if len({observed.pod.full_name for observed in named}) == 1:
            return named[0]
        if named:
            names = sorted(observed.pod.full_name for observed in named)
            raise UnusableFile(
                f"several pods are named {pod_name}: {abbreviate_names(names, 5)}; name one as NAMESPACE/NAME"
            )
    for observed in files.pods:
        if observed.pod.full_name == pod_name:
            return observed
    pod_count = f"{len(files.pods)} pod{'' if len(files.pods) == 1 else 's'}"
    suggestion = _suggest_pod(
        pod_name.rpartition("/")[2], {observed.pod.name: observed.pod.full_name for observed in files.pods}
    )
    hint = f"; did you mean {suggestion}?" if suggestion else ""
    raise UnusableFile(f"pod {pod_name} is in none of the cluster files ({pod_count}){hint}")


def _suggest_pod(name: str, full_names: Mapping[str, str]) -> str | None:
    """The pod of that name in another namespace (or after kubectl's `pod/`), otherwise the one with the most similar
    name."""
    matches = [name] if name in full_names else get_close_matches(name, full_names, n=1)
    return full_names[matches[0]] if matches else None
