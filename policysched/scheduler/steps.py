"""Long thinking in steps, so that a decision that looks at many nodes does not hold up everything else.

Whoever thinks long is a generator: it yields, after each piece of work, what that piece has cost, and returns what it found. How
much is done at a time is for `Scheduler.decide` to say; nothing of the cluster may change until it is through. Costs are estimates
that come from counts, not from a clock, so that the same cluster gives the same steps. The unit is about 10 µs: what it takes to
lift one pod off an overlay or to lay it back, and to look at what that changes.
"""

from collections.abc import Generator
from typing import TypeVar

Value = TypeVar("Value")
Steps = Generator[int, None, Value]

_NODES_PER_COST_UNIT = 50


def evaluation_cost(node_count: int) -> int:
    """What it costs to ask about a pod on every node."""
    return 1 + node_count // _NODES_PER_COST_UNIT


def run_to_completion(steps: Steps[Value]) -> Value:
    """For whoever has the time."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Value = end.value
            return found
