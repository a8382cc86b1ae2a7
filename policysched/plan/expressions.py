"""Which function makes the step of each kind of expression. The meaning is that of `lang.expr`'s docstring, operation by
operation; every function takes expressions of the class that it stands under."""

from collections.abc import Mapping

from policysched.lang import expr as e
from policysched.lang.program import Program
from policysched.plan.aggregates import aggregate
from policysched.plan.arithmetic import arithmetic, call, conditional, negative, otherwise
from policysched.plan.conditions import comparison, conjunction, disjunction, has, membership, negation, rank
from policysched.plan.elements import element, over_elements
from policysched.plan.machine import Machine, Maker
from policysched.plan.of_node import attribute, count_pods, held, metric, node_input, state, sum_pods
from policysched.plan.traffic import traffic_to

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
