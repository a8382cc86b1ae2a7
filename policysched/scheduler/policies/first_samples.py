"""First samples: a policy becomes active once each of its metrics was polled once.

    new policy ──► its pods are held ───────────────────┐  every metric polled, with or without success,
    new text with a new metric ──► old text is active ──┴──► or timeout ──► the new text is active

Only the first poll is awaited. What rules do without samples later is part of the policy (`missing`,
`outage`). A process without metric sources awaits nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from policysched.lang.ir.declarations import Metric
from policysched.lang.ir.program import Program
from policysched.scheduler.commands import Command, Log
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.held_policies import HeldForReason
from policysched.scheduler.queue.movable_heap import MovableHeap

SourceNameOf = Callable[[Metric], str | None]


class FirstSamples:
    """Tracks which metrics were polled, and which policies wait for the first poll.

    Pods of `held_policies` are not attempted. `wait_max_s` 0: await nothing. `source_name_of` names
    the source of a metric in messages.
    """

    def __init__(self, wait_max_s: float, source_name_of: SourceNameOf, held_policies: HeldForReason) -> None:
        self._wait_max_ns = round(wait_max_s * SECOND_NS)
        self._source_name_of = source_name_of
        self._polled: dict[str, dict[str, Metric]] = {}
        self._missing: dict[str, dict[str, Metric]] = {}
        self._deadlines: MovableHeap[str] = MovableHeap()
        self.held_policies = held_policies

    def missing(self, policy: str) -> tuple[str, ...]:
        """Metrics whose first poll is awaited, sorted."""
        return tuple(sorted(self._missing.get(policy, ())))

    def message(self, policy: str) -> str:
        """Predicate for "policy NAME ...": the metrics that are awaited, with their sources."""
        missing = self._missing.get(policy, {})
        metrics = [
            f"{name}{source_suffix(self._source_name_of(missing[name]))}" for name in self.missing(policy)
        ]
        return f"is waiting for the first samples of {', '.join(metrics)}"

    def since_ns(self, policy: str) -> int:
        """When a waiting policy began to wait."""
        deadline_ns: int = self._deadlines.key_of(policy)
        return deadline_ns - self._wait_max_ns

    def await_new_metrics(self, before: Program, after: Program, now_ns: int) -> tuple[bool, list[Command]]:
        """A text is about to replace another: whether it must wait for new metrics, and the log lines.

        A metric whose name the old text has as well cannot be polled in parallel, so it is not awaited.
        """
        new = {name: metric for name, metric in after.metrics.items() if name not in before.metrics}
        return self._wait(after.name, new, now_ns, "the previous version stays active until then")

    def hold_policy(self, program: Program, now_ns: int) -> list[Command]:
        """The program is active; hold its pods while it has metrics that were never polled."""
        waiting, commands = self._wait(
            program.name, program.metrics, now_ns, "its pods stay pending until then"
        )
        polled = self._polled.get(program.name, {})
        self._polled[program.name] = {
            name: polled[name]
            for name, metric in program.metrics.items()
            if same_query(polled.get(name), metric)
        }
        if waiting:
            self.held_policies.add(program.name)
        return commands

    def metric_polled(self, policy: str, metric: str, wanted: Mapping[str, Metric]) -> None:
        """The metric was polled, with or without success."""
        if metric in wanted:
            self._polled.setdefault(policy, {})[metric] = wanted[metric]
        missing = self._missing.get(policy)
        if missing is not None and missing.pop(metric, None) is not None and not missing:
            self._end(policy)

    def advance(self, now_ns: int) -> list[Command]:
        """End the waits that have timed out."""
        commands: list[Command] = []
        while (deadline_ns := self._deadlines.first_key()) is not None and deadline_ns <= now_ns:
            policy = self._deadlines.pop()
            assert policy is not None
            late = self._missing[policy]
            commands.append(
                Log(
                    "warning",
                    "timed out waiting for the first samples; scheduling without them",
                    {"policy": policy, "metrics": ", ".join(sorted(late))},
                )
            )
            self._polled.setdefault(policy, {}).update(late)
            self._end(policy)
        return commands

    def next_time_ns(self) -> int | None:
        return self._deadlines.first_key()

    def cancel(self, policy: str) -> None:
        """The text that waited to become active is not wanted any more."""
        if policy not in self.held_policies:
            self._end(policy)

    def forget(self, policy: str) -> None:
        """A removed policy, which waits for nothing."""
        self._polled.pop(policy, None)

    def _wait(
        self, policy: str, metrics: Mapping[str, Metric], now_ns: int, meanwhile: str
    ) -> tuple[bool, list[Command]]:
        polled = self._polled.get(policy, {})
        missing = {
            name: metric for name, metric in metrics.items() if not same_query(polled.get(name), metric)
        }
        deadline_ns = (
            self._deadlines.key_of(policy) if policy in self._deadlines else now_ns + self._wait_max_ns
        )
        self._end(policy)
        if not missing or deadline_ns <= now_ns:
            return False, []
        self._missing[policy] = missing
        self._deadlines.put(policy, deadline_ns)
        message = f"policy {policy} {self.message(policy)}; {meanwhile}"
        return True, [Log("info", message, {"policy": policy})]

    def _end(self, policy: str) -> None:
        self._missing.pop(policy, None)
        self._deadlines.discard(policy)
        self.held_policies.discard(policy)


def source_suffix(name: str | None) -> str:
    """Suffix of a metric's name in messages; empty for a metric without a source."""
    return "" if name is None else f" (source {name})"


def same_query(metric: Metric | None, other: Metric) -> bool:
    """Whether two metrics yield the same samples: same query, source and unit."""
    return (
        metric is not None
        and replace(
            metric,
            poll_interval_ns=other.poll_interval_ns,
            stale_after_ns=other.stale_after_ns,
            assumed_load=other.assumed_load,
            span=other.span,
        )
        == other
    )
