"""Which function makes the step of each kind of expression. The meaning is that of `lang.ir.expr`'s docstring, operation by
operation; every function takes expressions of the class that it stands under."""

from collections.abc import Mapping

from policysched.evaluate.vector.aggregates import aggregate
from policysched.evaluate.vector.arithmetic import (
    arithmetic,
    call,
    conditional,
    negative,
    otherwise,
)
from policysched.evaluate.vector.conditions import (
    comparison,
    conjunction,
    disjunction,
    has,
    membership,
    negation,
    rank,
)
from policysched.evaluate.vector.elements import element, over_elements
from policysched.evaluate.vector.machine import Machine, Maker
from policysched.evaluate.vector.node_values import (
    attribute,
    count_pods,
    held,
    metric,
    node_input,
    state,
    sum_pods,
)
from policysched.evaluate.vector.traffic import traffic_to
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import Program

MAKERS: Mapping[type, Maker] = {
    e.Attr: attribute,
    e.InputRef: node_input,
    e.MetricRef: metric,
    e.Has: has,
    e.Not: negation,
    e.And: conjunction,
    e.Or: disjunction,
    e.Compare: comparison,
    e.In: membership,
    e.Arith: arithmetic,
    e.Negate: negative,
    e.Call: call,
    e.Rank: rank,
    e.Else: otherwise,
    e.If: conditional,
    e.Held: held,
    e.StateRef: state,
    e.TrafficTo: traffic_to,
    e.Aggregate: aggregate,
    e.CountPods: count_pods,
    e.SumPods: sum_pods,
    e.Element: element,
    e.Fold: over_elements,
}


def machine(program: Program, *, share: bool = True) -> Machine:
    """A machine for the expressions of one program."""
    return Machine(program, MAKERS, share=share)
