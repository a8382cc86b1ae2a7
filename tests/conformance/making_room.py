"""Preemption beside its recordings: who was evicted for a pod that found no node, or what was said instead.

Where kube-scheduler had several equally good nodes it took any of them, and which pod of equal priority had run longest
it could not know: no kubelet had taken up a recorded pod. So the recorded node must be among those that do the least
harm in the first four steps, and the victims there must be the recorded ones.
"""

from collections.abc import Mapping

from policysched import plan
from policysched.cluster.objects import NodeName, PodFacts
from policysched.lang.message import unavailable_message
from policysched.lang.program import Program
from policysched.schedule.candidates import Cluster, Found, find_candidates
from policysched.schedule.preemption import NEVER, words_of
from tests.conformance.cluster_case import Decision

FACTS = PodFacts(queued_ns=0, attempts=0)


def room_differences(decision: Decision, program: Program, refused: Mapping[str, int]) -> list[str]:
    """`refused`: how many nodes each reason of the filters refuses."""
    expected, name = decision.expected, decision.name
    victims = sorted(expected.get("victims") or ())
    found = making_room(decision, program)
    never = decision.pod.preemption_policy == "Never"
    if not victims:
        if found.candidates and not never:
            return [f"{name}: would evict for {found.candidates[0].node}, recorded to evict nobody"]
        words = NEVER if never else unavailable_message(len(decision.cache.nodes), found.reasons)
        post = words_of(program, words)
        message = unavailable_message(len(decision.cache.nodes), refused, post)
        recorded = expected["message"]
        return [] if message == recorded else [f"{name}: says `{message}`, recorded `{recorded}`"]
    if not found.candidates or never:
        return [f"{name}: evicts nobody, recorded {victims}"]
    least = min(one.harm[:4] for one in found.candidates)
    right = {
        one.node: sorted(victim.name for victim in one.victims)
        for one in found.candidates
        if one.harm[:4] == least
    }
    node = NodeName(expected["nodeName"] or expected["nominatedNodeName"])
    return [] if right.get(node) == victims else [f"{name}: evicts {right}, recorded {victims} on {node}"]


def making_room(decision: Decision, program: Program) -> Found:
    cache, pod = decision.cache, decision.pod
    compiled, evaluator = plan.compile(program), plan.Evaluator(cache)
    evaluator.prepare(compiled)
    dry_run = evaluator.dry_run(compiled, pod, now_ns=0, facts=FACTS, samples={})
    return find_candidates(
        dry_run,
        compiled.may_evict(pod, cache.namespaces.get(pod.namespace), FACTS, 0),
        Cluster(
            lambda node: cache.ledger.usage(node).pods.values(),
            lambda uid: cache.pods[uid].started_ns,
            cache.budgets.values(),
            len(cache.nodes),
        ),
    )
