"""Nobody is placed blindly: a policy decides once each of its metrics was asked for once, whatever came of it.

    new policy ──► its pods are held ─────────────┐  each metric answered, or failed, or nobody serves it,
    new text, a metric more ──► the old decides ──┴──► or the longest wait is over ──► the new text decides

Only the first question is waited for. What rules do without samples after that, they say themselves (`missing`,
`outage`). Whoever runs without sources of samples waits for nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.program import Program
from policysched.scheduler.commands import Command, Log
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.movable_heap import MovableHeap

SourceNameOf = Callable[[Metric], str | None]


class FirstSamples:
    """`held_policies` are the policies whose pods are not decided for now. `wait_max_s` 0: nothing is waited for. `source_name_of` names the source
    that a metric is asked of, for words."""

    def __init__(self, wait_max_s: float, source_name_of: SourceNameOf) -> None:
        self._wait_max_ns = round(wait_max_s * SECOND_NS)
        self._source_name_of = source_name_of
        self._polled: dict[str, dict[str, Metric]] = {}
        self._missing: dict[str, dict[str, Metric]] = {}
        self._deadlines: MovableHeap[str] = MovableHeap()
        self.held_policies: set[str] = set()

    def missing(self, policy: str) -> tuple[str, ...]:
        """The metrics whose first question is still waited for."""
        return tuple(sorted(self._missing.get(policy, ())))

    def message(self, policy: str) -> str:
        missing = self._missing.get(policy, {})
        named = [
            f"{name}{source_suffix(self._source_name_of(missing[name]))}" for name in self.missing(policy)
        ]
        return f"waits for the first samples of {', '.join(named)}"

    def since_ns(self, policy: str) -> int:
        """When it began to wait, of a policy that does."""
        ends_ns: int = self._deadlines.key_of(policy)
        return ends_ns - self._wait_max_ns

    def await_new_metrics(self, before: Program, after: Program, now_ns: int) -> tuple[bool, list[Command]]:
        """A text is to replace another. Answers whether it has metrics that are to be asked for first; one that the text before has
        under the same name cannot be asked for beside it."""
        new = {name: one for name, one in after.metrics.items() if name not in before.metrics}
        return self._wait(after.name, new, now_ns, "the text before decides until then")

    def hold_policy(self, program: Program, now_ns: int) -> list[Command]:
        """The program runs from now on; its pods are held back while it has metrics that were never asked for."""
        waits, said = self._wait(program.name, program.metrics, now_ns, "its pods wait until then")
        known = self._polled.get(program.name, {})
        self._polled[program.name] = {
            name: known[name] for name, one in program.metrics.items() if same_query(known.get(name), one)
        }
        if waits:
            self.held_policies.add(program.name)
        return said

    def metric_polled(self, policy: str, metric: str, wanted: Mapping[str, Metric]) -> None:
        """The metric was asked for, with or without an answer."""
        if metric in wanted:
            self._polled.setdefault(policy, {})[metric] = wanted[metric]
        missing = self._missing.get(policy)
        if missing is not None and missing.pop(metric, None) is not None and not missing:
            self._end(policy)

    def advance(self, now_ns: int) -> list[Command]:
        """Wait no longer than the longest."""
        said: list[Command] = []
        while (ends_ns := self._deadlines.first_key()) is not None and ends_ns <= now_ns:
            policy = self._deadlines.pop()
            assert policy is not None
            late = self._missing[policy]
            said.append(
                Log(
                    "warning",
                    "the first samples did not come in time; the policy decides without them",
                    {"policy": policy, "metrics": ", ".join(sorted(late))},
                )
            )
            self._polled.setdefault(policy, {}).update(late)
            self._end(policy)
        return said

    def next_time_ns(self) -> int | None:
        return self._deadlines.first_key()

    def cancel(self, policy: str) -> None:
        """The text that was to take over is not wanted any more."""
        if policy not in self.held_policies:
            self._end(policy)

    def _wait(
        self, policy: str, metrics: Mapping[str, Metric], now_ns: int, meanwhile: str
    ) -> tuple[bool, list[Command]]:
        known = self._polled.get(policy, {})
        missing = {name: one for name, one in metrics.items() if not same_query(known.get(name), one)}
        ends_ns = self._deadlines.key_of(policy) if policy in self._deadlines else now_ns + self._wait_max_ns
        self._end(policy)
        if not missing or ends_ns <= now_ns:
            return False, []
        self._missing[policy] = missing
        self._deadlines.put(policy, ends_ns)
        words = f"the policy {self.message(policy)}; {meanwhile}"
        return True, [Log("info", words, {"policy": policy})]

    def _end(self, policy: str) -> None:
        self._missing.pop(policy, None)
        self._deadlines.discard(policy)
        self.held_policies.discard(policy)


def source_suffix(name: str | None) -> str:
    """Behind a metric's name; nothing where it is asked of nobody."""
    return "" if name is None else f" (source {name})"


def same_query(one: Metric | None, other: Metric) -> bool:
    """Whether samples of one are samples of the other: what is asked, of whom, and in what."""
    return (
        one is not None
        and replace(
            one,
            poll_interval_ns=other.poll_interval_ns,
            stale_after_ns=other.stale_after_ns,
            assumed_load=other.assumed_load,
            span=other.span,
        )
        == other
    )
