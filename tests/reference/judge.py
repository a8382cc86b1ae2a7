"""The verdict of a policy on a subset of the nodes, as another scheduler requests it by the
extender protocol.

Other nodes are not candidates, but the pods on them count.
"""

from collections.abc import Collection

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import Samples
from policysched.lang.ir.program import Program, rules_for
from policysched.lang.ir.verdict import NodeSubsetVerdict
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo
from tests.reference.builtin_interface import MAX_SCORE
from tests.reference.context import namespace_of, pod_context
from tests.reference.evaluate import active_layers, evaluate_among


def judge(
    program: Program,
    pod: Pod,
    cache: ClusterCache,
    among: Collection[NodeName],
    *,
    now_ns: int,
    facts: QueuedPodInfo,
    samples: Samples | None = None,
) -> NodeSubsetVerdict:
    """Names in `among` that are not nodes are ignored."""
    explanation = evaluate_among(program, pod, cache, among, now_ns=now_ns, facts=facts, samples=samples)
    if explanation.pod_rejection is not None:
        return NodeSubsetVerdict(explanation.pod_rejection, {}, {}, 0)
    context = pod_context(
        program, pod, namespace_of(pod, cache), now_ns=now_ns, facts=facts, samples=samples or {}, cache=cache
    )
    scores = rules_for(program, active_layers(context)).scores
    return NodeSubsetVerdict(
        pod_rejection=None,
        totals=explanation.totals,
        rejections={name: rejections[0] for name, rejections in explanation.rejections.items()},
        total_max=MAX_SCORE * sum(rule.weight for rule in scores),
    )
