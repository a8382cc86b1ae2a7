"""Whom a policy lets a pod evict: its `preemption` clause as a function.

Only pods of lower priority ever qualify, whatever the clause says.
"""

from collections.abc import Callable, Hashable

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.evaluate.scalar.leaves import attribute
from policysched.lang.ir.program import Program
from policysched.lang.ir.reads import expr_reads
from policysched.model.pods import Pod

VictimPredicate = Callable[[Pod], bool]

_QUEUE_PATHS = frozenset({("queued",), ("waited",), ("attempts",)})


class CompiledVictims:
    def __init__(self, program: Program) -> None:
        clause = program.preemption
        self.mode = clause.mode
        self._condition = None if clause.victims is None else compile_scalar(clause.victims, program)
        reads = expr_reads(clause.victims, program.inputs)
        self._reads = [
            *(attribute("pod", path) for path in sorted(reads.pod - _QUEUE_PATHS)),
            *(attribute("namespace", path) for path in sorted(reads.namespace)),
        ]

    def predicate(self, seen: EvalContext) -> VictimPredicate:
        """Whether `seen.pod` may evict a pod. A condition that is missing allows nothing."""
        preemptor, condition = seen.pod, self._condition
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
                assert condition is not None, "a clause with a condition has none"
                return lambda victim: (
                    victim.priority < preemptor.priority and condition(seen.with_other_pod(victim)) is True
                )

    def key(self, seen: EvalContext) -> Hashable:
        """Pods that agree on it may evict the same pods."""
        if self.mode == "never":
            return None
        pod = seen.pod
        return pod.priority, pod.preemption_policy, tuple([read(seen) for read in self._reads])
