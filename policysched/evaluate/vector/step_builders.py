"""`STEP_BUILDERS`: the function that builds the step of each class of expression.

The docstring of `lang.ir.expr` defines the meaning of each operation.
"""

from collections.abc import Mapping

from policysched.evaluate.vector.aggregates import aggregate
from policysched.evaluate.vector.arithmetic import (
    arithmetic_negation,
    binary_arithmetic,
    conditional,
    function_call,
    value_or_fallback,
)
from policysched.evaluate.vector.conditions import (
    bucket,
    comparison,
    conjunction,
    disjunction,
    has,
    logical_not,
    membership,
    rank,
    starts_with,
)
from policysched.evaluate.vector.elements import element_field, fold_elements
from policysched.evaluate.vector.machine import StepBuilder, VectorMachine
from policysched.evaluate.vector.node_values import (
    awaiting_recovery,
    node_attribute,
    node_input,
    node_metric,
    pod_count,
    pod_sum,
    policy_state,
)
from policysched.evaluate.vector.pod_totals import by_domain, pod_total
from policysched.evaluate.vector.traffic import traffic_to
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import Program

STEP_BUILDERS: Mapping[type, StepBuilder] = {
    e.Attr: node_attribute,
    e.InputRef: node_input,
    e.MetricRef: node_metric,
    e.Has: by_domain(has),
    e.Not: by_domain(logical_not),
    e.And: by_domain(conjunction),
    e.Or: by_domain(disjunction),
    e.Compare: by_domain(comparison),
    e.In: membership,
    e.Arith: by_domain(binary_arithmetic),
    e.Negate: by_domain(arithmetic_negation),
    e.Call: by_domain(function_call),
    e.Rank: rank,
    e.StartsWith: starts_with,
    e.Bucket: bucket,
    e.Else: by_domain(value_or_fallback),
    e.If: by_domain(conditional),
    e.NotRecovered: awaiting_recovery,
    e.StateRef: policy_state,
    e.GangTraffic: traffic_to,
    e.Aggregate: aggregate,
    e.CountPodsOnNode: pod_count,
    e.PodTotal: pod_total,
    e.SumPodsOnNode: pod_sum,
    e.ElementField: element_field,
    e.ListFold: fold_elements,
}


def build_machine(program: Program, *, share: bool = True) -> VectorMachine:
    """A machine for the expressions of one program."""
    return VectorMachine(program, STEP_BUILDERS, share=share)
