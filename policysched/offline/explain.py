"""Why one pod of a cluster file would go where it would go, rule by rule."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from policysched.cluster.samples import MetricSamples, PairEndpoint
from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_plan
from policysched.harness.cluster_files import ClusterFiles
from policysched.harness.simulate import simulate
from policysched.harness.state_values import state_tables
from policysched.lang.ir.program import Program, rules_for
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.policy_files.source_set import UnusableFile
from policysched.scheduler.explain_record import decision_message


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """`filters` are the rules that apply to the pod, in the order in which they decide; `samples` what the policy's
    metrics had, as of `now_ns`, and `peers` what those between pods call the pod; `message` is what the event on the pod would say, with what preemption could do."""

    program: Program
    pod: Pod
    explanation: PlacementExplanation
    node_count: int
    filters: tuple[str, ...]
    samples: Mapping[str, MetricSamples]
    peers: Mapping[str, PairEndpoint]
    now_ns: int
    message: str
    notes: tuple[str, ...]


def explain_pod(
    program: Program,
    files: ClusterFiles,
    pod_name: str,
    *,
    samples: Mapping[str, MetricSamples],
    kept: str | None = None,
    now_ns: int,
) -> ExplainResult:
    """Evaluate one pod (`NAMESPACE/NAME`) as if it were pending. `kept` are the values of the policy's states as a scheduler keeps
    them. Raises UnusableFile where the pod is not in the files."""
    seen = _find_pod(files, pod_name)
    cache = files.build_cache()
    cache.drop_pod(seen.pod.uid)  # its own room is free for it, wherever it is
    notes = []
    if seen.node is not None:
        notes.append(f"{seen.pod.full_name} is on {seen.node} already; explained as if it were pending")
    if seen.pod.scheduler != program.name:
        notes.append(f"{seen.pod.full_name} names the scheduler {seen.pod.scheduler}, not {program.name}")
    plan = compile_plan(program)
    evaluator = Evaluator(cache)
    facts = QueuedPodInfo(seen.pod.created_ns or now_ns, 0)
    known = {**samples, **state_tables(program, kept, now_ns=now_ns)}
    found = evaluator.explain(plan, seen.pod, now_ns=now_ns, facts=facts, samples=known)
    space = cache.namespaces.get(seen.pod.namespace)
    active = evaluator.active_layers(plan, seen.pod, now_ns=now_ns, facts=facts)
    filters = tuple(rule.name for rule in rules_for(program, active).filters)
    if found.metrics_in_outage:
        notes.append(outage_note(found))
    if program.extenders:
        notes.append(missing_inputs_note(program))
    gang = plan.gang(seen.pod, space)
    if gang is not None:
        notes.append(f"member of gang {gang.key[0]}/{gang.key[1]} (at least {gang.minimum}); explained alone")
    message = decision_message(seen.pod, found, node_count=len(cache.nodes))
    if (
        found.selected is None
        and found.pod_refusal is None
        and gang is None
        and plan.allows_preemption
        and not program.extenders
    ):
        message, evicted = _explain_preemption(
            program, files, seen, samples=samples, kept=kept, now_ns=now_ns
        ) or (
            message,
            "",
        )
        notes += [evicted] if evicted else []
    return ExplainResult(
        program,
        seen.pod,
        found,
        len(cache.nodes),
        filters,
        samples,
        plan.peer_keys(seen.pod, space),
        now_ns,
        message,
        tuple(notes),
    )


def _explain_preemption(
    program: Program,
    files: ClusterFiles,
    seen: ObservedPod,
    *,
    samples: Mapping[str, MetricSamples],
    kept: str | None,
    now_ns: int,
) -> tuple[str, str] | None:
    """What the scheduler itself says of the pod when it alone is pending, and who would be evicted for it, if anybody.
    None where it says nothing of its own."""
    waiting = replace(
        seen, pod=replace(seen.pod, scheduler=program.name), node=None, phase="Pending", deleting=False
    )
    others = [one for one in files.pods if one.node is not None and one.pod.uid != seen.pod.uid]
    alone = replace(files, pods=[*others, waiting])
    answer = simulate(program, alone, samples=samples, kept=kept, scope="named", now_ns=now_ns)
    said = dict(answer.first_messages).get(seen.pod.full_name)
    if said is None:
        return None
    if not answer.preempted:
        return said, ""
    node = next((one.node for one in answer.placements), None)
    return said, f"it would be nominated to {node}, and for it evicted: {', '.join(answer.preempted)}"


def outage_note(found: PlacementExplanation) -> str:
    """Which rules an outage takes out of the answer."""
    rules = (
        f"rules that do not apply: {', '.join(found.disabled_rules)}"
        if found.disabled_rules
        else "no rule that applies reads it"
    )
    return f"outage of {', '.join(found.metrics_in_outage)}, of which too many nodes have no fresh sample; {rules}"


def missing_inputs_note(program: Program) -> str:
    """What is missing from every answer given without a cluster."""
    names = ", ".join(one.name for one in program.extenders)
    return f"not asked: extender {names}; what it refuses and scores is missing here"


def _find_pod(files: ClusterFiles, pod_name: str) -> ObservedPod:
    wanted = pod_name if "/" in pod_name else f"default/{pod_name}"
    for seen in files.pods:
        if seen.pod.full_name == wanted:
            return seen
    here = f"{len(files.pods)} pod{'' if len(files.pods) == 1 else 's'}"
    meant = _suggest_pod(
        wanted.rpartition("/")[2], {seen.pod.name: seen.pod.full_name for seen in files.pods}
    )
    hint = f"; did you mean {meant}?" if meant else ""
    raise UnusableFile(f"pod {wanted} is in none of the cluster files ({here}){hint}")


def _suggest_pod(name: str, there: Mapping[str, str]) -> str | None:
    """The pod of that name in another namespace (or behind kubectl's `pod/`), else of the most similar name; `there` are full names by
    name."""
    near = [name] if name in there else get_close_matches(name, there, n=1)
    return there[near[0]] if near else None
