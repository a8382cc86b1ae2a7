"""`PodTotals`: counts and sums of pods that satisfy a condition, kept as pods come and go.

Pods are grouped by the group key of the `PodQuery`. In a group, pods are counted by class and by
topology domain. A total that was read once follows the changes of its group, and the age of its pods.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.interner import UNKNOWN, Interner
from policysched.evaluate.columns.pod_query import (
    ClassKey,
    GroupKey,
    PodQuery,
    PodTotalSpec,
    other_pod_context,
)
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.arithmetic import ExactNumber, rounded_total
from policysched.model.nodes import Node
from policysched.model.pods import Pod

_RESULTS_MAX = 1_000
_CHANGES_MAX = 1_000
_CHANGES_PER_PART = 32
_AMOUNTS_MAX = 10_000
_LONG_CHARACTERS_MAX = 2**20
"""Of long texts, in the changes of all groups. One change of each group is kept, whatever its length."""
_AGEING_MIN = 64
_REVISIONS = count(1)

Array = NDArray[Any]
CountedKeys = tuple[GroupKey, ClassKey]
PodValues = tuple[Hashable, ...]
"""What the totals of a group depend on of the pod being scheduled."""
Domain = str | None
"""The value of the topology label; None: no topology key, or the node lacks the label."""


class DomainTotals:
    """Totals by domain; domains without a counted pod are absent or 0. `revision` changes whenever they do."""

    __slots__ = ("_changed", "_domains", "_dropped", "_log", "_table", "by_domain", "revision")

    def __init__(self) -> None:
        self.by_domain: dict[Domain, ExactNumber] = {}
        self.revision = 0
        self._log: list[Domain] = []  # the latest changes
        self._dropped = 0  # earlier ones
        self._table: Array | None = None
        self._domains: Interner[str] | None = None  # that the table is for
        self._changed: set[Domain] = set()  # since the table was made

    @property
    def position(self) -> int:
        """Of the latest change, for `changed_since`."""
        return self._dropped + len(self._log)

    def changed_since(self, position: int) -> list[Domain] | None:
        """The domains of the changes after the position; None: they are not known any more."""
        return None if position < self._dropped else self._log[position - self._dropped :]

    def copy(self) -> "DomainTotals":
        """Of the same revision until it changes."""
        copy = DomainTotals()
        copy.by_domain, copy.revision = dict(self.by_domain), self.revision
        if self._table is not None:
            copy._table, copy._domains, copy._changed = self._table.copy(), self._domains, set(self._changed)
        return copy

    def add(self, domain: Domain, amount: ExactNumber) -> None:
        self.by_domain[domain] = self.by_domain.get(domain, 0) + amount
        self._changed.add(domain)
        self._log.append(domain)
        if len(self._log) > _CHANGES_MAX:
            self._dropped += _CHANGES_MAX // 2
            del self._log[: _CHANGES_MAX // 2]
        self.revision = next(_REVISIONS)

    def table(self, domains: Interner[str], *, floating: bool) -> Array:
        """[1 + number of domains]: totals by code of `DomainColumn`. Read-only, valid until the next change."""
        kind = np.dtype(np.float64 if floating else np.int64)
        if (
            self._table is None
            or self._domains is not domains
            or len(self._table) != 1 + len(domains)
            or self._table.dtype != kind  # the totals of no pods are those of integers and of floats
        ):
            self._table = np.zeros(1 + len(domains), kind)
            self._domains, self._changed = domains, set(self.by_domain)
        for domain in self._changed:
            code = UNKNOWN if domain is None else domains.find(domain)
            if code != UNKNOWN:
                self._table[1 + code] = rounded_total(self.by_domain[domain], floating=floating)
        self._changed.clear()
        return self._table


_NO_TOTALS = DomainTotals()


@dataclass(slots=True)
class _PodClass:
    """Pods that count alike, by domain. `pod`, of which only what is read has to be there, and `node` represent all of them."""

    pod: Pod
    node: Node | None
    long_characters: int = 0
    counts: dict[Domain, int] = field(default_factory=dict)


class _Change(NamedTuple):
    """A pod that came (`delta` 1) or left (-1)."""

    class_key: ClassKey
    pod_class: _PodClass
    domain: Domain
    delta: int


@dataclass(slots=True)
class _Result:
    """`totals` include the group's changes before `position`, as of `now_ns`. `ageing`: the classes that count otherwise from a
    time on, the next first; `ageing_amounts`: what a pod of these adds until then."""

    totals: DomainTotals
    position: int
    now_ns: int
    ageing: list[tuple[int, int, ClassKey]] = field(default_factory=list)
    ageing_amounts: dict[ClassKey, ExactNumber] = field(default_factory=dict)


@dataclass(slots=True)
class _Group:
    """`changes`: the latest; `dropped` earlier ones are not kept. `results`: by what is read of the pod being scheduled."""

    classes: dict[ClassKey, _PodClass] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)
    dropped: int = 0
    long_characters: int = 0
    results: dict[PodValues, _Result] = field(default_factory=dict)

    @property
    def position(self) -> int:
        return self.dropped + len(self.changes)

    def append(self, change: _Change) -> None:
        self.changes.append(change)
        self.long_characters += change.pod_class.long_characters
        if len(self.changes) > _CHANGES_MAX:
            self.drop(_CHANGES_MAX // 2)

    def drop(self, number: int) -> None:
        """Forget the oldest changes, and the results that did not apply them yet."""
        self.dropped += number
        self.long_characters -= sum(change.pod_class.long_characters for change in self.changes[:number])
        del self.changes[:number]
        self.results = {
            values: result for values, result in self.results.items() if result.position >= self.dropped
        }


@contextmanager
def _dropping(group: _Group, values: PodValues) -> Iterator[None]:
    """An error leaves the result half updated."""
    try:
        yield
    except Exception:
        group.results.pop(values, None)
        raise


class PodTotals:
    """The totals of one spec over pods that `adjust` adds and removes."""

    def __init__(self, spec: PodTotalSpec) -> None:
        self._topology_key = spec.topology_key
        self.query = PodQuery(spec)
        self._groups: dict[GroupKey, _Group] = {}
        self.class_count = 0
        self._long_characters = 0  # of the groups
        self._amounts: dict[tuple[ClassKey, PodValues], ExactNumber] = {}

    def keys(self, other: EvalContext) -> CountedKeys | None:
        """Where a pod on its node counts; None: nowhere."""
        group_key = self.query.group_key(other)
        return None if group_key is None else (group_key, self.query.class_key(other))

    def domain(self, node: Node | None) -> Domain:
        return None if node is None or self._topology_key is None else node.labels.get(self._topology_key)

    def adjust(self, pod: Pod, node: Node | None, delta: int) -> CountedKeys | None:
        """Add (1) or remove (-1) a pod that is on the node, and return where it counts; None: nowhere."""
        return self.adjust_by(other_pod_context(pod, node), delta)

    def adjust_by(self, other: EvalContext, delta: int) -> CountedKeys | None:
        """As `adjust`, by the context of the pod."""
        keys = self.keys(other)
        if keys is not None:
            self._change(keys, other.pod, other.other_node, delta)
        return keys

    def remove(self, keys: CountedKeys) -> None:
        """Remove a pod that was added without a node."""
        group_key, class_key = keys
        self._change(keys, self._groups[group_key].classes[class_key].pod, None, -1)

    def _change(self, keys: CountedKeys, pod: Pod, node: Node | None, delta: int) -> None:
        key, class_key = keys
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        pod_class = group.classes.get(class_key)
        if pod_class is None:
            pod_class = group.classes[class_key] = self._new_class(pod, node)
            self.class_count += 1
        domain = self.domain(node)
        total = pod_class.counts.get(domain, 0) + delta
        assert total >= 0, f"{total} pods of a class in {domain}"
        long_before = group.long_characters
        group.append(_Change(class_key, pod_class, domain, delta))
        if group.long_characters != long_before:
            self._limit_long_texts(group, long_before)
        if total:
            pod_class.counts[domain] = total
            return
        del pod_class.counts[domain]
        if not pod_class.counts:
            del group.classes[class_key]
            self.class_count -= 1
            if not group.classes:
                self._long_characters -= group.long_characters
                del self._groups[key]

    def _new_class(self, pod: Pod, node: Node | None) -> _PodClass:
        query = self.query
        length = query.long_characters(other_pod_context(pod, node)) if query.long_reads else 0
        return _PodClass(query.part_of(pod), node, length)

    def _limit_long_texts(self, group: _Group, before: int) -> None:
        self._long_characters += group.long_characters - before
        if self._long_characters > _LONG_CHARACTERS_MAX:
            self._long_characters -= group.long_characters
            group.drop(len(group.changes) - 1)
            self._long_characters += group.long_characters

    def totals(self, context: EvalContext) -> DomainTotals:
        """For the pod being scheduled."""
        result = self._result(context)
        return _NO_TOTALS if result is None else result.totals

    def next_change_ns(self, context: EvalContext) -> int | None:
        """When a pod comes of age, so that it counts or ceases to; None: never."""
        result = self._result(context)
        return None if result is None or not result.ageing else result.ageing[0][0]

    def amount(
        self, class_key: ClassKey, pod_class: _PodClass, values: PodValues, context: EvalContext
    ) -> ExactNumber:
        """What each pod of the class adds at this time; 0 also where it does not count."""
        if self.query.next_change is not None:
            return self.query.amount(context, pod_class.pod, pod_class.node) or 0
        key = class_key, values
        amount = self._amounts.get(key)
        if amount is None:
            if len(self._amounts) >= _AMOUNTS_MAX:
                self._amounts.clear()
            amount = self._amounts[key] = self.query.amount(context, pod_class.pod, pod_class.node) or 0
        return amount

    def _result(self, context: EvalContext) -> _Result | None:
        """Up to date; None: no pod has the wanted key."""
        key = self.query.wanted_key(context)
        group = None if key is None else self._groups.get(key)
        if group is None:
            return None
        values = self.query.pod_values(context)
        result = group.results.get(values)
        if result is None or not self._may_follow(group, result, context.now_ns):
            for _ in self._new_result(group, values, context):
                pass
            result = group.results[values]
        elif result.position != group.position:
            self._follow(group, result, values, context, group.position)
        if result.ageing:
            if result.ageing[0][0] <= context.now_ns:
                for _ in self._pass_time(group, result, values, context):
                    pass
            result.now_ns = context.now_ns
        return result

    def prepare_in_steps(self, context: EvalContext) -> Iterator[int]:
        """What `totals` does first; yields what each part of it visits. The pods do not change meanwhile."""
        key = self.query.wanted_key(context)
        group = None if key is None else self._groups.get(key)
        if group is not None:
            values = self.query.pod_values(context)
            result = group.results.get(values)
            if result is None or not self._may_follow(group, result, context.now_ns):
                yield from self._new_result(group, values, context)
            else:
                while result.position != group.position:
                    before = result.position
                    self._follow(
                        group, result, values, context, min(before + _CHANGES_PER_PART, group.position)
                    )
                    yield result.position - before
                yield from self._pass_time(group, result, values, context)

    def _new_result(self, group: _Group, values: PodValues, context: EvalContext) -> Iterator[int]:
        """Add the result to the group. Yields the domains that each class of pods visits."""
        result = _Result(DomainTotals(), group.position, context.now_ns)
        for class_key, pod_class in group.classes.items():
            amount = self._counted_amount(result, class_key, pod_class, values, context)
            for domain, number in pod_class.counts.items() if amount else ():
                result.totals.add(domain, amount * number)
            yield len(pod_class.counts)
        if len(group.results) >= _RESULTS_MAX:
            group.results.clear()
        group.results[values] = result

    def _follow(
        self, group: _Group, result: _Result, values: PodValues, context: EvalContext, position: int
    ) -> None:
        """Apply the changes up to the position."""
        with _dropping(group, values):
            for change in group.changes[result.position - group.dropped : position - group.dropped]:
                amount = self._counted_amount(result, change.class_key, change.pod_class, values, context)
                if amount:
                    result.totals.add(change.domain, amount * change.delta)
            result.position = position

    def _may_follow(self, group: _Group, result: _Result, now_ns: int) -> bool:
        """Whether the changes since are kept, and time did not go back. Classes without pods must not fill the memory."""
        if result.position < group.dropped:
            return False
        if self.query.next_change is None:
            return True
        return now_ns >= result.now_ns and len(result.ageing) <= _AGEING_MIN + 2 * len(group.classes)

    def _counted_amount(
        self,
        result: _Result,
        class_key: ClassKey,
        pod_class: _PodClass,
        values: PodValues,
        context: EvalContext,
    ) -> ExactNumber:
        """What each pod of the class adds as of the result; for a class that is new to it as of now."""
        amount = result.ageing_amounts.get(class_key)
        if amount is not None:
            return amount
        amount = self.amount(class_key, pod_class, values, context)
        if self.query.next_change is not None:
            changes_ns = self.query.next_change(context.with_other_pod(pod_class.pod, pod_class.node))
            if changes_ns is not None:
                result.ageing_amounts[class_key] = amount
                heappush(result.ageing, (changes_ns, next(_REVISIONS), class_key))
        return amount

    def _pass_time(
        self, group: _Group, result: _Result, values: PodValues, context: EvalContext
    ) -> Iterator[int]:
        """Yields the domains that each class of pods visits that has come of age."""
        result.now_ns = context.now_ns
        with _dropping(group, values):
            while result.ageing and result.ageing[0][0] <= context.now_ns:
                class_key = heappop(result.ageing)[2]
                before = result.ageing_amounts.pop(class_key)
                pod_class = group.classes.get(class_key)
                if pod_class is None:
                    continue
                after = self._counted_amount(result, class_key, pod_class, values, context)
                for domain, number in pod_class.counts.items() if after != before else ():
                    result.totals.add(domain, (after - before) * number)
                yield len(pod_class.counts)


class HypotheticalPodTotals:
    """The totals on an overlay. Valid while the base does not change, or after it was followed."""

    def __init__(self, base: PodTotals) -> None:
        self._base = base
        self.query = base.query
        self._changes: dict[GroupKey, list[_Change]] = {}
        self._changes_applied = 0
        self._results: dict[tuple[GroupKey, PodValues], tuple[Hashable, int, DomainTotals]] = {}

    def catch_up(self, changes: Sequence[tuple[int, Pod, int]], nodes: Sequence[Node | None]) -> None:
        """Apply the new changes of an overlay, which are pods by row. `changes` are all of them, in order."""
        for row, pod, delta in changes[self._changes_applied :]:
            node = nodes[row]
            keys = self._base.keys(other_pod_context(pod, node))
            if keys is not None:
                change = _Change(keys[1], _PodClass(pod, node), self._base.domain(node), delta)
                self._changes.setdefault(keys[0], []).append(change)
        self._changes_applied = len(changes)

    def totals(self, context: EvalContext) -> DomainTotals:
        """For the pod being scheduled."""
        totals, key = self._base.totals(context), self.query.wanted_key(context)
        changes = None if key is None else self._changes.get(key)
        if key is None or changes is None:
            return totals
        values = self.query.pod_values(context)
        as_of = totals.revision, context.now_ns if self.query.next_change is not None else None
        known_as_of, position, known = self._results.get((key, values), (None, 0, totals))
        if known_as_of != as_of:
            position, known = 0, totals.copy()
        for change in changes[position:]:
            amount = self._base.amount(change.class_key, change.pod_class, values, context)
            if amount:
                known.add(change.domain, amount * change.delta)
        self._results[key, values] = as_of, len(changes), known
        return known
