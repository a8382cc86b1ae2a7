"""Explanations of a pod while other pods are nominated to nodes.

A node has to be feasible with its nominated pods and without them; scores ignore them. The compiled
plan is evaluated as in a real decision. The reference implementation does not know nominations: it
evaluates the cluster as it is and, for each node, a cluster in which the nominated pods are on that
node.
"""

from dataclasses import replace

from policysched import evaluate as plan
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import NodeName
from policysched.model.pods import QueuedPodInfo
from tests.builders import pending, placed
from tests.conformance.cluster_case import Decision
from tests.reference import evaluate

FACTS = QueuedPodInfo(queued_ns=0, attempts=0)


def explanations_beside_nominated(decision: Decision, program: Program) -> dict[str, PlacementExplanation]:
    """If nominations remove a node, there are no single scores, and the reference's totals are
    taken from the plan.
    """
    by_plan = _of_plan(decision, program)
    return {"reference": _of_reference(decision, program, by_plan), "plan": by_plan}


def _of_plan(decision: Decision, program: Program) -> PlacementExplanation:
    evaluator, compiled = plan.Evaluator(decision.cache), plan.compile(program)
    evaluator.build_columns(compiled)
    plain = evaluator.explain(compiled, decision.pod, now_ns=0, facts=FACTS, samples={})
    if plain.pod_rejection is not None:
        return plain
    evaluated = evaluator.evaluate_nodes(
        compiled,
        decision.pod,
        decision.cache.nodes,
        now_ns=0,
        facts=FACTS,
        samples={},
        nominated_pods=decision.reserved,
    )
    rejected = {node: (refusal,) for node, refusal in evaluated.rejections.items()}
    if evaluated.totals.keys() == set(plain.feasible):
        return replace(plain, rejections=rejected)
    return PlacementExplanation(
        pod_rejection=None,
        feasible=tuple(evaluated.totals),
        rejections=rejected,
        scores={},
        totals=evaluated.totals,
        selected=max(evaluated.totals, key=lambda node: evaluated.totals[node], default=None),
    )


def _of_reference(
    decision: Decision, program: Program, by_plan: PlacementExplanation
) -> PlacementExplanation:
    cache, pod = decision.cache, decision.pod
    plain = evaluate(program, pod, cache, now_ns=0, facts=FACTS)
    taken = set()
    for node in {node for _, node in decision.reserved}:
        reserved_pods = [reserved_pod for reserved_pod, at in decision.reserved if at == node]
        for reserved_pod in reserved_pods:
            cache.put_pod(placed(reserved_pod, node))
        if node not in evaluate(program, pod, cache, now_ns=0, facts=FACTS).feasible:
            taken.add(node)
        for reserved_pod in reserved_pods:
            cache.drop_pod(reserved_pod.uid)
            cache.put_pod(replace(pending(reserved_pod), nominated_node=NodeName(node)))
    feasible = tuple(node for node in plain.feasible if node not in taken)
    return plain if feasible == plain.feasible else replace(by_plan, feasible=feasible)
