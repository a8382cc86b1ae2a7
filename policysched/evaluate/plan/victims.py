"""The `preemption` clause as a predicate on victims. Only pods of lower priority qualify."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from policysched.evaluate.plan.queue_order import sort_value
from policysched.evaluate.plan.read_set import QUEUE_PATHS
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.evaluate.scalar.leaves import attribute
from policysched.evaluate.scalar.next_change import compile_next_change
from policysched.lang.ir.expr import Stage
from policysched.lang.ir.expr_analysis import stage_of
from policysched.lang.ir.program import Program
from policysched.lang.ir.reads import expr_reads
from policysched.model.pods import Pod

VictimPredicate = Callable[[Pod], bool]
VictimChange = Callable[[Pod], int | None]
"""When a pod that may not be evicted now may be evicted because time passes (ns); None: never."""


VictimOrder = Callable[[Pod], tuple[Any, ...]]
"""A sort key: of two victims the one with the lesser key goes first."""


class CompiledVictims:
    """The compiled clause."""

    def __init__(self, program: Program) -> None:
        clause = program.preemption
        self.mode = clause.mode
        self._condition = None if clause.victims is None else compile_scalar(clause.victims, program)
        self._order = [(compile_scalar(key.value, program), key.descending) for key in clause.order]
        reads = expr_reads(clause.victims, program.inputs)
        for key in clause.order:  # after another order the same pods may be evicted, so no requeue
            reads |= replace(expr_reads(key.value, program.inputs), requeue_events=frozenset())
        self.requeue_events = reads.requeue_events
        """The events after which other pods may be evicted: shares change with placed pods."""
        self._reads = [
            *(attribute("pod", path) for path in sorted(reads.pod - QUEUE_PATHS)),
            *(attribute("namespace", path) for path in sorted(reads.namespace) if path[0] != "share"),
            *([attribute("namespace", ("name",))] if reads.shares else []),
        ]
        self._next_change = (
            compile_next_change(clause.victims, program)
            if clause.victims is not None and Stage.TIME in stage_of(clause.victims)
            else None
        )

    def predicate(self, context: EvalContext) -> VictimPredicate:
        """Whether `context.pod` may evict a pod. A missing condition counts as false."""
        preemptor, condition = context.pod, self._condition
        match self.mode:
            case "never":
                return lambda victim: False
            case "any":
                return lambda victim: victim.priority < preemptor.priority
            case "own":
                return lambda victim: (
                    victim.priority < preemptor.priority and victim.scheduler == preemptor.scheduler
                )
            case "where":
                assert condition is not None, "preemption mode `where` without a condition"
                return lambda victim: (
                    victim.priority < preemptor.priority and condition(context.with_other_pod(victim)) is True
                )

    def order(self, context: EvalContext) -> VictimOrder | None:
        """The `order` of the clause; None: only kube-scheduler's order."""
        if not self._order:
            return None

        def key(victim: Pod) -> tuple[Any, ...]:
            of_victim = context.with_other_pod(victim)
            return tuple(
                sort_key
                for function, descending in self._order
                for sort_key in sort_value(function(of_victim), descending)
            )

        return key

    def next_change(self, context: EvalContext) -> VictimChange | None:
        """None: the clause does not read the clock."""
        change = self._next_change
        if change is None:
            return None
        return lambda victim: (
            change(context.with_other_pod(victim)) if victim.priority < context.pod.priority else None
        )

    def reclaim_predicate(self, context: EvalContext) -> VictimPredicate:
        """Whether `context.pod` may take back quota from a pod, whatever its priority."""
        condition, scheduler = self._condition, context.pod.scheduler
        match self.mode:
            case "never":
                return lambda victim: False
            case "any" | "own":
                return lambda victim: victim.scheduler == scheduler
            case "where":
                assert condition is not None, "preemption mode `where` without a condition"
                return lambda victim: (
                    victim.scheduler == scheduler and condition(context.with_other_pod(victim)) is True
                )

    def reclaim_next_change(self, context: EvalContext) -> VictimChange | None:
        """As `next_change`, for `reclaim_predicate`."""
        change, scheduler = self._next_change, context.pod.scheduler
        if change is None:
            return None
        return lambda victim: (
            change(context.with_other_pod(victim)) if victim.scheduler == scheduler else None
        )

    def key(self, context: EvalContext) -> Hashable:
        """Pods with equal keys may evict the same pods, and the same nominated pods take capacity from them."""
        pod = context.pod
        if self.mode == "never":
            return pod.priority
        return pod.priority, pod.preemption_policy, tuple([read(context) for read in self._reads])
