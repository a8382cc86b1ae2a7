"""How long the verdict on a pod holds if nothing happens: values change with the clock, and samples go stale."""

import numpy as np

from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.plan.lowering import Variant
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.evaluate.scalar.next_change import crossing_ns, next_change_ns
from policysched.model.quantity import INT64_MAX

_SECOND_NS = 10**9


def valid_until_ns(
    plan: Plan, variant: Variant, evaluation: Evaluation, snapshot: Snapshot, context: EvalContext
) -> int | None:
    """When a sample goes stale or a value changes with the clock; None: the verdict does not expire."""
    machine, clock = variant.machine, variant.clock_reads
    times = [snapshot.metrics_known_until_ns(variant.metrics)]
    times += [change(context) for change in machine.next_changes()]
    times += evaluation.rules.activation.state_changes_ns()
    times += [next_change_ns(layer.condition, context, plan.program) for layer in plan.program.layers]
    times += [next_change_ns(total, context, plan.program) for total in clock.totals]
    if clock.has_other_reads:
        times.append(context.now_ns + _SECOND_NS)
    for left_step, right_step, slope in clock.comparisons:
        frame = evaluation.rules.activation.frame(snapshot.view())
        left, right = machine.run(frame, left_step), machine.run(frame, right_step)
        gaps = np.unique(np.broadcast_to(left.values - right.values, (frame.view.count,)))
        times += [crossing_ns(gap, slope, context.now_ns) for gap in gaps.tolist()]
    return min((time for time in times if time is not None and time < INT64_MAX), default=None)
