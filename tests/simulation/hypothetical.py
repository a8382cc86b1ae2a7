"""What a checker asks about clusters that differ from the real one."""

from collections.abc import Iterator
from contextlib import contextmanager

from policysched.cluster.ledger import Ledger
from policysched.model.identifiers import NodeName
from policysched.scheduler.core import SchedulerCore


@contextmanager
def without_listeners(ledger: Ledger) -> Iterator[None]:
    """Nobody is told of changes of the ledger, which the caller takes back: a release of quota that never happened would
    requeue who waits for one, and the recorded run would differ from its replay."""
    listeners, ledger.listeners = ledger.listeners, []
    try:
        yield
    finally:
        ledger.listeners = listeners


def has_samples(core: SchedulerCore, policy: str, node: NodeName, now_ns: int) -> bool:
    """Whether no metric of the policy can be out because it lacks a sample of this node."""
    program, samples = core.policies.running[policy].program, core.samples.of_policy(policy)
    return program.outage is None or all(
        name in samples
        and node in samples[name].values
        and now_ns - samples[name].values[node].at_ns <= metric.stale_after_ns
        for name, metric in program.metrics.items()
    )
