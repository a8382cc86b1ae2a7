"""The reference implementation of the policy language, in plain Python: one pod, one node, one rule
at a time.

This package defines what a policy means. Tests compare `policysched.evaluate` with it on every node
for every checked program. It is written to be read, not to be fast, and never imports
`policysched.evaluate`. It shares the choice of volumes and devices (`cluster.volumes.binder`,
`cluster.devices.pod_claims`) with the product, so it does not check those.

    evaluate(program, pod, cache, ...)             rejections, scores and the selected node, as a PlacementExplanation
    select_node(totals, pod)                       the selected node for these totals
    judge(program, pod, cache, among)              the verdict on a subset of the nodes
    value(expr, context)                           the value of an expression, or MISSING
    order_key(program, pod, ...)                   the sort key of the pod in the queue
    samples_after_placement(program, samples, ..)  the samples with the assumed load of one more placed pod
    gang_terms(program, pod, namespace)            the gang of the pod and its terms
    selected_by_policy(program, pod, ..., victim)  whether the policy lets the pod evict the victim
    protected_by_settings(ceiling, victim, space)  whether the settings protect the pod from all policies
"""

from tests.reference.assumed_load import samples_after_placement
from tests.reference.context import ExpressionContext
from tests.reference.evaluate import evaluate, select_node
from tests.reference.expressions import value
from tests.reference.gang import GangTerms, gang_terms
from tests.reference.judge import judge
from tests.reference.order import order_key
from tests.reference.values import MISSING
from tests.reference.victims import protected_by_settings, selected_by_policy

__all__ = [
    "MISSING",
    "ExpressionContext",
    "GangTerms",
    "evaluate",
    "gang_terms",
    "judge",
    "order_key",
    "protected_by_settings",
    "samples_after_placement",
    "select_node",
    "selected_by_policy",
    "value",
]
