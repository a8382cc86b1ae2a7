"""What the extender server has instead of a queue: texts of policies are prepared and take over without pods."""

from collections.abc import Iterator

from policysched.evaluate import Plan
from policysched.lang.ir.program import Program
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.queue.pre_enqueue import PreEnqueueResult


class NoPendingPods:
    """The extender server has no pending pods."""

    def precompute_pre_enqueue(
        self, program: Program, plan: Plan, now_ns: int
    ) -> Iterator[dict[PodUid, PreEnqueueResult]]:
        del program, plan, now_ns
        return iter(())

    def pods_of(self, policy: str) -> Iterator[Pod]:
        del policy
        return iter(())

    def unpark_in_steps(self, policy: str, now_ns: int) -> Iterator[None]:
        del policy, now_ns
        return iter(())

    def forget(self, policy: str) -> None:
        del policy

    def enqueue_again(
        self, policy: str, now_ns: int, precomputed: object = None, *, before_attempts: bool
    ) -> None:
        del policy, now_ns, precomputed, before_attempts
