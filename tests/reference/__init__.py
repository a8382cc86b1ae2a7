"""What a policy means, in plain Python: one pod, one node, one rule at a time.

This package is the definition of the language. `plan` must agree with it on every node for every checked program, and
tests say so; where they differ, this one is read first. It is written to be read, not to be fast, and it knows nothing
of `plan`, of columns or of arrays.

    evaluate(program, pod, cache, ...)    every verdict, every score and the choice, as an Explanation
    selected(totals, pod)                 the node that is chosen among these totals
    judge(program, pod, cache, among)     the same on some nodes alone, as a Judgement
    value(expr, context)                  what one expression is worth, or MISSING
    order_key(program, pod, ...)          the pod's place in the queue
    with_placed(program, samples, ...)    the samples with what their metrics assume of one more pod on a node
    gang_terms(program, pod, namespace)   which gang it is in, and on what terms
"""

from tests.reference.assumed_load import samples_after_placement
from tests.reference.context import ExpressionContext
from tests.reference.evaluate import evaluate, select_node
from tests.reference.expressions import value
from tests.reference.gang import GangTerms, gang_terms
from tests.reference.judge import judge
from tests.reference.order import order_key
from tests.reference.values import MISSING

__all__ = [
    "MISSING",
    "ExpressionContext",
    "GangTerms",
    "evaluate",
    "gang_terms",
    "judge",
    "order_key",
    "samples_after_placement",
    "select_node",
    "value",
]
