"""The values that policies keep (`state`): fed by what containers do, held within bounds, written down now and then.

    PodSeen ─► moments not seen before ─► key, value ─► v <- keep * v + (1 - keep) * value ─► row of the key ─► rules
                                                                     │ every half minute
                                     StatesKept at the start ◄─ KeepStates: newest first

A run of a container is fed once: what one picture of a pod shows is remembered until the next one, so a relist feeds nothing,
and after a start nothing is fed that is not younger than the youngest moment that the kept values knew. Everything here
follows from the events alone, so a replay ends with the same values.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from policysched.cluster.samples import EVERYWHERE, MetricSamples, StateRow
from policysched.evaluate.scalar.compiler import compiled
from policysched.evaluate.scalar.eval_context import Function, Seen
from policysched.lang.ir.arithmetic import finite
from policysched.lang.ir.program import Program, State
from policysched.model.objects import ContainerMoment, Namespace, NodeName, ObservedPod, PodUid
from policysched.model.quantity import INT64_MAX

WRITE_EVERY_NS = 30 * 10**9
TEXTS_BYTES_MAX = 512 * 1024
"""Of all values as they are written, in all: a ConfigMap holds 1 MiB, and the policies' texts stand beside them."""

SKEW_NS = 5 * 60 * 10**9
"""How far a node's clock may be ahead of ours. One that is a year ahead says nothing of when something was fed: gone by, nothing
would be fed for a year."""

KEY_LONGEST = 1024
"""Characters of a key: an annotation may have 256 KiB, and each key is held and written down with every value."""

EARLY_MAX = 10_000
"""Pods that are remembered until the first policy runs."""

Entry = tuple[str, NodeName, float]
"""A key, a node and the value there."""

_Moment = tuple[str, str, bool]
"""Container, its run, whether it ended. The pod's own failure is that of a container without a name."""


@dataclass(frozen=True, slots=True)
class StateCounts:
    """How many values a state has of how many it may have, how many were let go because there were more, and how often nothing was fed
    because the key was too long."""

    held: int
    most: int
    dropped: int
    too_long: int = 0


@dataclass(slots=True)
class _Table:
    """One state's values, the one fed the longest ago first. `rows` is what rules see."""

    state: State
    key: Function
    value: Function
    when: Function | None
    held: dict[tuple[str, NodeName], float] = field(default_factory=dict)
    rows: dict[str, StateRow] = field(default_factory=dict)
    dropped: int = 0
    too_long: int = 0

    def wants(self, moment: ContainerMoment) -> bool:
        match self.state.on:
            case "any":
                return True
            case "failed":
                return moment.of_pod
            case "either":
                return not moment.of_pod
            case "started" | "terminated" as word:
                return not moment.of_pod and (word == "terminated") is moment.terminated

    def feed(self, key: str, node: NodeName, value: float) -> None:
        before = self.held.pop((key, node), self.state.start)
        self._put(key, node, finite(self.state.keep * before + (1 - self.state.keep) * value))

    def fill(self, entries: Iterable[Entry]) -> None:
        """With what was kept, each row made once: a row that is put together value by value is copied with each of them."""
        for key, node, value in entries:
            if len(key) > KEY_LONGEST:
                self.too_long += 1
                continue
            self.held.pop((key, node), None)
            self.held[key, node] = value
        beyond = max(0, len(self.held) - self.state.most)
        for oldest in list(islice(self.held, beyond)):
            del self.held[oldest]
        self.dropped += beyond
        rows: dict[str, dict[NodeName, float]] = {}
        for (key, node), value in self.held.items():
            rows.setdefault(key, {})[node] = value
        self.rows = {key: StateRow(row) for key, row in rows.items()}

    def _put(self, key: str, node: NodeName, value: float) -> None:
        self.held[key, node] = value
        row = self.rows.get(key)
        self.rows[key] = StateRow({**({} if row is None else row.values), node: value})
        if len(self.held) > self.state.most:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, node = next(iter(self.held))
        del self.held[key, node]
        left = {name: value for name, value in self.rows[key].values.items() if name != node}
        if left:
            self.rows[key] = StateRow(left)
        else:
            del self.rows[key]
        self.dropped += 1


@dataclass(slots=True)
class _Kept:
    """One policy's states. `seen`: what the last picture of each pod showed, and how long each run's container was down before. `fed_ns`: the youngest moment that was fed;
    `since_ns`: what is not younger was fed before this process."""

    tables: dict[str, _Table]
    seen: dict[PodUid, Mapping[_Moment, int | None]] = field(default_factory=dict)
    fed_ns: int = 0
    since_ns: int = 0


class States:
    """The states of all running policies. Deterministic; knows no clock but what it is told."""

    def __init__(self, namespace_of: Callable[[ObservedPod], Namespace]) -> None:
        self._namespace_of = namespace_of
        self._policies: dict[str, _Kept] = {}
        self._early: dict[PodUid, ObservedPod] | None = {}
        self._restored: dict[str, Mapping[str, Any]] = {}
        self._unread: dict[str, str] = {}
        self._write_at_ns: int | None = None
        self._written_ns: int | None = None

    # ── policies ───────────────────────────────────────────────────────────────────────────────────────────────────

    def restore(self, texts: Mapping[str, str]) -> list[str]:
        """What an earlier process wrote, by policy; before the policies run. Answers what of it could not be read."""
        problems = []
        for policy, text in texts.items():
            try:
                self._restored[policy] = readable(json.loads(text))
                self._unread[policy] = text
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                problems.append(f"the kept values of policy {policy} cannot be read and start anew: {error}")
        return problems

    def follow(self, program: Program, now_ns: int) -> dict[str, MetricSamples]:
        """The program runs from now on. A state that its text before declared alike goes on; answers the tables."""
        before = self._policies.pop(program.name, None)
        restored = self._restored.pop(program.name, {})
        self._unread.pop(program.name, None)
        if not program.states:
            return {}
        tables = {name: self._table(one, program, before, restored) for name, one in program.states.items()}
        kept = self._policies[program.name] = _Kept(tables)
        if before is not None:
            kept.seen, kept.fed_ns, kept.since_ns = before.seen, before.fed_ns, before.since_ns
        else:
            kept.fed_ns = kept.since_ns = min(int(restored.get("fed_ns", 0)), now_ns + SKEW_NS)
            for seen in list((self._early or {}).values()):
                self.see(seen, now_ns)
        return {name: MetricSamples({}, 0, rows=table.rows) for name, table in tables.items()}

    def _table(
        self, state: State, program: Program, before: _Kept | None, restored: Mapping[str, Any]
    ) -> _Table:
        when = None if state.when is None else compiled(state.when, program)
        table = _Table(state, compiled(state.key, program), compiled(state.value, program), when)
        old = None if before is None else before.tables.get(state.name)
        if old is not None and old.state == state:
            table.dropped, table.too_long = old.dropped, old.too_long
            table.fill((key, node, value) for (key, node), value in old.held.items())
        elif before is None:
            kept = restored.get("values", {}).get(state.name, [])
            table.fill((key, NodeName(node), float(value)) for key, node, value in kept)
        return table

    # ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def see(self, seen: ObservedPod, now_ns: int) -> str | None:
        """A pod was shown. Answers the policy whose values moved."""
        policy, node, uid = seen.pod.scheduler, seen.node, seen.pod.uid
        kept = self._policies.get(policy)
        if node is None or not seen.containers:
            return None
        if kept is None:
            if self._early is not None and len(self._early) < EARLY_MAX:
                self._early[uid] = seen
            return None
        before = kept.seen.get(uid, {})
        shown = {
            (one.name, one.id, one.terminated): before.get((one.name, one.id, False))
            if one.down_ns is None
            else one.down_ns
            for one in seen.containers
        }
        if shown.keys() == before.keys():
            return None
        kept.seen[uid] = shown
        moved = False
        for moment in sorted(seen.containers, key=lambda one: (one.at_ns, one.name, one.terminated)):
            named = (moment.name, moment.id, moment.terminated)
            if named not in before and moment.at_ns > kept.since_ns:
                moved |= self._feed(kept, seen, node, replace(moment, down_ns=shown[named]), now_ns)
        if moved and self._write_at_ns is None:
            since_ns = now_ns if self._written_ns is None else self._written_ns
            self._write_at_ns = max(now_ns, since_ns + WRITE_EVERY_NS)
        return policy if moved else None

    def gone(self, uid: PodUid) -> None:
        if self._early is not None:
            self._early.pop(uid, None)
        for kept in self._policies.values():
            kept.seen.pop(uid, None)

    def begun(self) -> None:
        """Policies run: pods shown from now on are some running policy's or nobody's."""
        self._early = None

    def _feed(
        self, kept: _Kept, seen: ObservedPod, node: NodeName, moment: ContainerMoment, now_ns: int
    ) -> bool:
        if moment.at_ns <= now_ns + SKEW_NS:
            kept.fed_ns = max(kept.fed_ns, moment.at_ns)
        at = Seen(seen.pod, self._namespace_of(seen), element=_fields(moment))
        moved = False
        for table in kept.tables.values():
            if not table.wants(moment) or (table.when is not None and table.when(at) is not True):
                continue
            key, value = table.key(at), table.value(at)
            if isinstance(key, str) and len(key) > KEY_LONGEST:
                table.too_long += 1
            elif isinstance(key, str) and isinstance(value, int | float):
                table.feed(key, EVERYWHERE if table.state.per == "cluster" else node, float(value))
                moved = True
        return moved

    # ── keeping ────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_time_ns(self) -> int | None:
        """When the values are to be written next; None while nothing has moved."""
        return self._write_at_ns

    def due(self, now_ns: int) -> dict[str, str] | None:
        """The texts to be written now, by policy; None when it is not time."""
        if self._write_at_ns is None or now_ns < self._write_at_ns:
            return None
        self._write_at_ns, self._written_ns = None, now_ns
        return self.texts()

    def texts(self) -> dict[str, str]:
        """What is to be kept, by policy: as much of each state's latest as there is room for, and as it was read what belongs to
        a policy that does not run for the moment."""
        left = TEXTS_BYTES_MAX - sum(len(text.encode()) for text in self._unread.values())
        room = left // max(1, sum(len(kept.tables) for kept in self._policies.values()))
        return self._unread | {
            policy: _written(kept, room) for policy, kept in sorted(self._policies.items())
        }

    def counts(self) -> dict[tuple[str, str], StateCounts]:
        """By policy and state."""
        return {
            (policy, name): StateCounts(len(table.held), table.state.most, table.dropped, table.too_long)
            for policy, kept in self._policies.items()
            for name, table in kept.tables.items()
        }


def _fields(moment: ContainerMoment) -> tuple[bool | int | str | None, ...]:
    """As `lang.ir.program.CONTAINER` has them."""
    return (
        moment.name,
        moment.terminated,
        moment.exit_code,
        moment.reason,
        moment.ran_ns,
        moment.restarts,
        moment.down_ns,
        moment.pod_failed,
    )


def _written(kept: _Kept, room: int) -> str:
    values: dict[str, list[Entry]] = {}
    for name, table in kept.tables.items():
        left, latest = room, list[Entry]()
        for (key, node), value in islice(reversed(table.held.items()), table.state.most):
            left -= len(key.encode()) + len(node) + 40
            if left < 0:
                break
            latest.append((key, node, value))
        values[name] = latest[::-1]
    return kept_text(kept.fed_ns, values)


def kept_text(fed_ns: int, values: Mapping[str, Sequence[Entry]]) -> str:
    """Of one policy's states, as it is kept: each state's values, the one fed the longest ago first."""
    return json.dumps({"fed_ns": fed_ns, "values": values}, separators=(",", ":"), ensure_ascii=False)


def readable(found: Any) -> Mapping[str, Any]:
    """What was read of `kept_text`. Raises ValueError, TypeError, KeyError, OverflowError where it is not of that shape."""
    fed_ns, values = found["fed_ns"], found["values"]
    if not isinstance(fed_ns, int) or abs(fed_ns) > INT64_MAX or not isinstance(values, dict):
        raise TypeError("it is not shaped as it was written")
    for entries in values.values():
        for key, node, value in entries:
            if not isinstance(key, str) or not isinstance(node, str):
                raise TypeError(f"{key!r} on {node!r} is no key on a node")
            key.encode(), node.encode()  # half of a surrogate pair could not be written down again
            if not isinstance(value, int | float) or isinstance(value, bool) or finite(float(value)) != value:
                raise ValueError(f"{value!r} is no value")
    return {"fed_ns": fed_ns, "values": values}
