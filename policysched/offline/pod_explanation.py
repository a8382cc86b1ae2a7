"""Explains the placement of one pod of a cluster file, rule by rule."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache as cache_result
from functools import partial

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import MetricSamples
from policysched.evaluate import Evaluator, GangTerms, Plan
from policysched.evaluate import compile as compile_plan
from policysched.explanations.proposals import Situation, proposals
from policysched.explanations.record import (
    ExplainedGang,
    ExplainResult,
    absent_resources_note,
    decision_message,
    outage_note,
)
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.inputs import queued_at_creation
from policysched.from_files.simulate import SimulationResult, simulate
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
) -> ExplainResult:
    """Evaluates one pod (`NAMESPACE/NAME`) as if it were pending. `saved_states` are saved values of the policy's states,
    `permissions` is what the settings allow policies to do. Raises UnusableFile if the pod is not in the files."""
    observed = _find_pod(files, pod_name)
    cache = files.build_cache()
    observed = cache.pod_groups.attach(observed)
    cache.drop_pod(observed.pod.uid)  # its own requests do not count against it
    notes = []
    if observed.node is not None:
        notes.append(f"{observed.pod.full_name} is on {observed.node}; explained as if it were pending")
    if observed.pod.scheduler != program.name:
        notes.append(
            f"{observed.pod.full_name} has schedulerName {observed.pod.scheduler}, not {program.name}"
        )
    plan = compile_plan(program)
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

    @cache_result
    def gang_alone() -> ClusterFiles:
        return _with_only_its_gang_pending(program, files, observed)

    def simulated(by: Program, gang_files: ClusterFiles) -> SimulationResult:
        return simulate(
            by,
            gang_files,
            samples=samples,
            saved_states=saved_states,
            permissions=permissions,
            scope="named",
            now_ns=now_ns,
        )

    starts = False
    if unserved is None and (tries_preemption or is_placed_whole or refusal is not None):
        result = simulated(program, gang_alone())
        message, evicted = _explain_preemption(program, files, observed, result) or (message, "")
        starts = bool(result.placements) and not result.preempted
        notes += [evicted] if evicted else []
        if is_placed_whole and explanation.selected is not None and message.startswith("gang "):
            explanation = replace(explanation, selected=None, pod_rejection=message)
    explained_gang = None if gang is None else _explained_gang(program, files, observed, gang, starts=starts)
    usable_proposals = []
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
            gang_situation = GangSituation(
                program,
                observed.pod,
                explained_gang,
                gang_alone(),
                simulated,
                partial(_looked_at, situation, gang_alone()),
            )
            usable_proposals = list(gang_proposals(gang_situation, usable_proposals))
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
    )


def _looked_at(situation: Situation, gang_alone: ClusterFiles, files: ClusterFiles, pod: Pod) -> Situation:
    """A pod alone on other files than those of the situation. The gang's own pods are not to be moved for it."""
    cache, facts = files.build_cache(), QueuedPodInfo(queued_at_creation(pod, situation.now_ns), 0)
    cache.drop_pod(pod.uid)
    evaluator = Evaluator(cache)
    members = {observed.pod.uid for observed in gang_alone.pods if observed.node is None}
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
    program: Program, files: ClusterFiles, observed: ObservedPod, terms: GangTerms, *, starts: bool
) -> ExplainedGang:
    """`starts`: with the present minimum, at once."""
    plan, cache = compile_plan(program), files.build_cache()
    members = [cache.pod_groups.attach(member) for member in _gang_members(program, files, observed)]
    terms_of_members = [
        plan.gang(member.pod, cache.namespaces.get(member.pod.namespace)) for member in members
    ]
    minimum = max(gang_terms.minimum for gang_terms in (terms, *terms_of_members) if gang_terms is not None)
    placed = sum(member.node is not None for member in members)
    blocked = terms.mode is GangMode.WHOLE and not program.extenders and placed < minimum and not starts
    return ExplainedGang("/".join(terms.key), minimum, placed, len(members) - placed, blocked)


def _quota_refusal(plan: Plan, cache: ClusterCache, pod: Pod, now_ns: int) -> str | None:
    """Why the quotas of the policy do not admit the pod, beside the placed pods of the files."""
    quotas = QuotaAccounts(cache)
    quotas.activate(plan, now_ns)
    refusal = quotas.refusal(replace(pod, scheduler=plan.program.name))
    return None if refusal is None else refusal.message


def _explain_preemption(
    program: Program, files: ClusterFiles, observed: ObservedPod, result: SimulationResult
) -> tuple[str, str] | None:
    """The scheduler's message for the pod when only it is pending, or its gang, and a note about the pods it would evict.
    None if there is no message."""
    message = dict(result.first_messages).get(observed.pod.full_name)
    gang = compile_plan(program).gang(
        observed.pod, files.build_cache().namespaces.get(observed.pod.namespace)
    )
    if message is None and gang is not None:
        message = dict(result.pending).get(observed.pod.full_name)
    if message is None:
        return None
    if not result.preempted:
        return message, ""
    node = next((placement.node for placement in result.placements), None)
    return message, f"would be nominated to {node}, evicting {', '.join(result.preempted)}"


def _with_only_its_gang_pending(program: Program, files: ClusterFiles, observed: ObservedPod) -> ClusterFiles:
    """The placed pods, and of the pending ones the pod and its gang."""
    waiting = [
        replace(
            pending,
            pod=replace(pending.pod, scheduler=program.name),
            node=None,
            phase="Pending",
            deleting=False,
        )
        for pending in (observed, *_pending_gang_members(program, files, observed))
    ]
    others = [
        placed for placed in files.pods if placed.node is not None and placed.pod.uid != observed.pod.uid
    ]
    return replace(files, pods=[*others, *waiting])


def _pending_gang_members(program: Program, files: ClusterFiles, observed: ObservedPod) -> list[ObservedPod]:
    """The other pending pods of the pod's gang."""
    members = _gang_members(program, files, observed)
    return [member for member in members if member.node is None and member.pod.uid != observed.pod.uid]


def _gang_members(program: Program, files: ClusterFiles, observed: ObservedPod) -> list[ObservedPod]:
    """The pods of the pod's gang that have not finished, itself included."""
    plan, cache = compile_plan(program), files.build_cache()

    def key(member: ObservedPod) -> tuple[str, str] | None:
        pod = cache.pod_groups.attach(member).pod
        terms = plan.gang(pod, cache.namespaces.get(pod.namespace))
        return None if terms is None else terms.key

    gang = key(observed)
    return [
        other
        for other in files.pods
        if gang is not None
        and not other.finished
        and other.pod.scheduler == observed.pod.scheduler
        and key(other) == gang
    ]


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
