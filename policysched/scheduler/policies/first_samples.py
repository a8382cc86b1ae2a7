"""Nobody is placed blindly: a policy decides once each of its metrics was asked for once, whatever came of it.

    new policy ──► its pods are held ─────────────┐  each metric answered, or failed, or nobody serves it,
    new text, a metric more ──► the old decides ──┴──► or the longest wait is over ──► the new text decides

Only the first question is waited for. What rules do without samples after that, they say themselves (`missing`,
`outage`). Whoever runs without sources of samples waits for nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from policysched.lang.ir.program import Metric, Program
from policysched.scheduler.commands import Command, Log
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.heap import MovableHeap

SourceOf = Callable[[Metric], str | None]


class FirstSamples:
    """`held` are the policies whose pods are not decided for now. `longest_s` 0: nothing is waited for. `source_of` names the source
    that a metric is asked of, for words."""

    def __init__(self, longest_s: float, source_of: SourceOf) -> None:
        self._longest_ns = round(longest_s * SECOND_NS)
        self._source_of = source_of
        self._asked: dict[str, dict[str, Metric]] = {}
        self._missing: dict[str, dict[str, Metric]] = {}
        self._ends: MovableHeap[str] = MovableHeap()
        self.held: set[str] = set()

    def missing(self, policy: str) -> tuple[str, ...]:
        """The metrics whose first question is still waited for."""
        return tuple(sorted(self._missing.get(policy, ())))

    def words(self, policy: str) -> str:
        missing = self._missing.get(policy, {})
        named = [f"{name}{of_source(self._source_of(missing[name]))}" for name in self.missing(policy)]
        return f"waits for the first samples of {', '.join(named)}"

    def since_ns(self, policy: str) -> int:
        """When it began to wait, of a policy that does."""
        ends_ns: int = self._ends.key(policy)
        return ends_ns - self._longest_ns

    def await_new(self, before: Program, after: Program, now_ns: int) -> tuple[bool, list[Command]]:
        """A text is to replace another. Answers whether it has metrics that are to be asked for first; one that the text before has
        under the same name cannot be asked for beside it."""
        new = {name: one for name, one in after.metrics.items() if name not in before.metrics}
        return self._wait(after.name, new, now_ns, "the text before decides until then")

    def hold(self, program: Program, now_ns: int) -> list[Command]:
        """The program runs from now on; its pods are held back while it has metrics that were never asked for."""
        waits, said = self._wait(program.name, program.metrics, now_ns, "its pods wait until then")
        known = self._asked.get(program.name, {})
        self._asked[program.name] = {
            name: known[name] for name, one in program.metrics.items() if same(known.get(name), one)
        }
        if waits:
            self.held.add(program.name)
        return said

    def asked(self, policy: str, metric: str, wanted: Mapping[str, Metric]) -> None:
        """The metric was asked for, with or without an answer."""
        if metric in wanted:
            self._asked.setdefault(policy, {})[metric] = wanted[metric]
        missing = self._missing.get(policy)
        if missing is not None and missing.pop(metric, None) is not None and not missing:
            self._end(policy)

    def advance(self, now_ns: int) -> list[Command]:
        """Wait no longer than the longest."""
        said: list[Command] = []
        while (ends_ns := self._ends.first_key()) is not None and ends_ns <= now_ns:
            policy = self._ends.pop()
            assert policy is not None
            late = self._missing[policy]
            said.append(
                Log(
                    "warning",
                    "the first samples did not come in time; the policy decides without them",
                    {"policy": policy, "metrics": ", ".join(sorted(late))},
                )
            )
            self._asked.setdefault(policy, {}).update(late)
            self._end(policy)
        return said

    def next_time_ns(self) -> int | None:
        return self._ends.first_key()

    def give_up(self, policy: str) -> None:
        """The text that was to take over is not wanted any more."""
        if policy not in self.held:
            self._end(policy)

    def _wait(
        self, policy: str, metrics: Mapping[str, Metric], now_ns: int, meanwhile: str
    ) -> tuple[bool, list[Command]]:
        known = self._asked.get(policy, {})
        missing = {name: one for name, one in metrics.items() if not same(known.get(name), one)}
        ends_ns = self._ends.key(policy) if policy in self._ends else now_ns + self._longest_ns
        self._end(policy)
        if not missing or ends_ns <= now_ns:
            return False, []
        self._missing[policy] = missing
        self._ends.put(policy, ends_ns)
        words = f"the policy {self.words(policy)}; {meanwhile}"
        return True, [Log("info", words, {"policy": policy})]

    def _end(self, policy: str) -> None:
        self._missing.pop(policy, None)
        self._ends.discard(policy)
        self.held.discard(policy)


def of_source(name: str | None) -> str:
    """Behind a metric's name; nothing where it is asked of nobody."""
    return "" if name is None else f" (source {name})"


def same(one: Metric | None, other: Metric) -> bool:
    """Whether samples of one are samples of the other: what is asked, of whom, and in what."""
    return (
        one is not None
        and replace(
            one, every_ns=other.every_ns, stale_ns=other.stale_ns, assume=other.assume, span=other.span
        )
        == other
    )
