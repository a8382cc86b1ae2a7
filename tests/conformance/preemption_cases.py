"""Compare preemption with recordings: the victims of a pod that found no node, or the message
instead.

kube-scheduler chooses randomly among equally good nodes. Its order of pods with equal priority is
random as well: it prefers to keep the pod that started first, but no kubelet had started the
recorded pods, so each counts as started at the moment of the comparison. Replaying one case on
kube-scheduler evicts different pods each time. So the recorded victims must be right for some order
of equal pods, on a node that is among the best for that order. If this order is not policysched's,
the decision counts as `diced`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice, permutations, product

from policysched import evaluate
from policysched.cluster.devices.availability import AvailableDevices
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.preemption.candidate_search import CandidateSearchResult, find_candidates
from policysched.scheduler.preemption.gang_placement import PREEMPTION_NEVER
from policysched.scheduler.preemption.post_filter_messages import (
    claim_message,
    placement_message,
    preemption_message,
)
from policysched.scheduler.preemption.running_gangs import EvictablePods
from policysched.scheduler.preemption.victim_selection import Candidate, PreemptionInputs
from policysched.scheduler.unschedulable_message import unavailable_message
from tests.conformance.cluster_case import Decision
from tests.inline import run_to_completion

FACTS = QueuedPodInfo(queued_ns=0, attempts=0)
ORDERS_MAX = 5040


@dataclass(frozen=True, slots=True)
class PreemptionDifferences:
    """Differences in the victims and in the message. `diced`: the victims are right for another
    order of equal pods than policysched's.
    """

    victims: list[str] = field(default_factory=list)
    message: list[str] = field(default_factory=list)
    diced: bool = False


def compare_preemption(
    decision: Decision, program: Program, refused: Mapping[str, int]
) -> PreemptionDifferences:
    """`refused`: the number of nodes that each reason of the filters rejects."""
    expected = decision.expected
    victims = sorted(expected.get("victims") or ())
    never = decision.pod.preemption_policy == "Never"
    outcome = find_preemption(decision, program)
    if not victims:
        words = PREEMPTION_NEVER if never else unavailable_message(len(decision.cache.nodes), outcome.reasons)
        claims = claim_message(decision.pod, AvailableDevices(decision.cache.devices))
        message = unavailable_message(
            len(decision.cache.nodes), refused, preemption_message(program, words, claims)
        )
        recorded = expected["message"]
        evicts = outcome.candidates and not never
        return PreemptionDifferences(
            victims=[f"would go from {outcome.candidates[0].node}, recorded without victims"]
            if evicts
            else [],
            message=[] if message == recorded else [f"`{message}`, recorded `{recorded}`"],
        )
    if never or not outcome.candidates:
        return PreemptionDifferences([f"nobody, recorded {victims}"])
    node = NodeName(expected["nodeName"] or expected["nominatedNodeName"])
    message = unavailable_message(
        len(decision.cache.nodes), refused, placement_message(program, node, len(victims))
    )
    recorded = expected.get("message", message)
    differences = [] if message == recorded else [f"`{message}`, recorded `{recorded}`"]
    if agrees(outcome.candidates, node, victims):
        return PreemptionDifferences(message=differences)
    for in_order in orders_of(decision, program, node):
        others = [
            max(orders_of(decision, program, candidate.node), key=lambda other: other.disruption[:4])
            if candidate.disruption[:4] < in_order.disruption[:4]
            else candidate
            for candidate in outcome.candidates
            if candidate.node != node
        ]
        if agrees([*others, in_order], node, victims):
            return PreemptionDifferences(message=differences, diced=True)
    candidates = {str(candidate.node): _names(candidate) for candidate in outcome.candidates}
    return PreemptionDifferences([f"{candidates}, recorded {victims} on {node}"])


def agrees(candidates: Collection[Candidate], node: NodeName, victims: list[str]) -> bool:
    """Whether the recorded victims on the recorded node are among the best candidates."""
    least = min(candidate.disruption[:4] for candidate in candidates)
    return any(
        candidate.node == node and candidate.disruption[:4] == least and _names(candidate) == victims
        for candidate in candidates
    )


def orders_of(decision: Decision, program: Program, node: NodeName) -> Iterator[Candidate]:
    """The candidates on one node for each order of its pods with equal priority. If all start times
    are recorded, there is one order.
    """
    node_pods = decision.cache.ledger.usage(node).pods.values()
    pods = sorted(
        (pod for pod in node_pods if pod.priority < decision.pod.priority), key=lambda lower: lower.priority
    )
    if all(decision.cache.pods[pod.uid].started_ns is not None for pod in pods):
        yield from find_preemption(decision, program, only=node).candidates
        return
    groups = [list(group) for _, group in groupby(pods, key=lambda pod: pod.priority)]
    for order in islice(product(*map(permutations, groups)), ORDERS_MAX):
        ranks = {pod.uid: rank for group in order for rank, pod in enumerate(group)}
        yield from find_preemption(decision, program, only=node, started=ranks).candidates


def find_preemption(
    decision: Decision,
    program: Program,
    *,
    only: NodeName | None = None,
    started: Mapping[PodUid, int] | None = None,
) -> CandidateSearchResult:
    """Candidates for preemption. `only`: evict pods of this node alone. `started`: start times that
    replace the recorded ones.
    """
    cache, pod = decision.cache, decision.pod
    compiled, evaluator = evaluate.compile(program), evaluate.Evaluator(cache)
    evaluator.build_columns(compiled)

    def pods_on(node: NodeName) -> Collection[Pod]:
        return cache.ledger.usage(node).pods.values() if only in (None, node) else ()

    def started_ns(uid: PodUid) -> int | None:
        return cache.pods[uid].started_ns if started is None else started.get(uid)

    return run_to_completion(
        find_candidates(
            evaluator.dry_run(
                compiled, pod, now_ns=0, facts=FACTS, samples={}, nominated_pods=decision.reserved
            ),
            EvictablePods(compiled.may_evict(pod, cache.namespaces.get(pod.namespace), FACTS, 0)),
            PreemptionInputs(pods_on, started_ns, cache.budgets, len(cache.nodes)),
        )
    )


def _names(candidate: Candidate) -> list[str]:
    return sorted(victim.name for victim in candidate.victims)
