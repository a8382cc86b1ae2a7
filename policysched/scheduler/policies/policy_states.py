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

from policysched.cluster.samples import ALL_NODES, MetricSamples, StateRow
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ScalarFunction
from policysched.lang.ir.arithmetic import clamp_finite
from policysched.lang.ir.declarations import StateSpec
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pod_status import ContainerEvent, ObservedPod
from policysched.model.quantity import INT64_MAX

WRITE_INTERVAL_NS = 30 * 10**9
TEXTS_BYTES_MAX = 512 * 1024
"""Of all values as they are written, in all: a ConfigMap holds 1 MiB, and the policies' texts stand beside them."""

CLOCK_SKEW_MAX_NS = 5 * 60 * 10**9
"""How far a node's clock may be ahead of ours. One that is a year ahead says nothing of when something was fed: gone by, nothing
would be fed for a year."""

KEY_CHARS_MAX = 1024
"""Characters of a key: an annotation may have 256 KiB, and each key is held and written down with every value."""

BUFFERED_PODS_MAX = 10_000
"""Pods that are remembered until the first policy runs."""

StateEntry = tuple[str, NodeName, float]
"""A key, a node and the value there."""

_MomentKey = tuple[str, str, bool]
"""Container, its run, whether it ended. The pod's own failure is that of a container without a name."""


@dataclass(frozen=True, slots=True)
class StateCounts:
    """How many values a state has of how many it may have, how many were let go because there were more, and how often nothing was fed
    because the key was too long."""

    value_count: int
    value_count_max: int
    dropped_count: int
    long_key_count: int = 0


@dataclass(slots=True)
class _StateTable:
    """One state's values, the one fed the longest ago first. `rows` is what rules see."""

    state: StateSpec
    key: ScalarFunction
    value: ScalarFunction
    when: ScalarFunction | None
    values: dict[tuple[str, NodeName], float] = field(default_factory=dict)
    rows: dict[str, StateRow] = field(default_factory=dict)
    dropped_count: int = 0
    long_key_count: int = 0

    def matches(self, moment: ContainerEvent) -> bool:
        match self.state.trigger:
            case "any":
                return True
            case "failed":
                return moment.is_pod_event
            case "either":
                return not moment.is_pod_event
            case "started" | "terminated" as word:
                return not moment.is_pod_event and (word == "terminated") is moment.terminated

    def update(self, key: str, node: NodeName, value: float) -> None:
        before = self.values.pop((key, node), self.state.start)
        self._put(key, node, clamp_finite(self.state.keep * before + (1 - self.state.keep) * value))

    def load(self, entries: Iterable[StateEntry]) -> None:
        """With what was kept, each row made once: a row that is put together value by value is copied with each of them."""
        for key, node, value in entries:
            if len(key) > KEY_CHARS_MAX:
                self.long_key_count += 1
                continue
            self.values.pop((key, node), None)
            self.values[key, node] = value
        beyond = max(0, len(self.values) - self.state.entries_max)
        for oldest in list(islice(self.values, beyond)):
            del self.values[oldest]
        self.dropped_count += beyond
        rows: dict[str, dict[NodeName, float]] = {}
        for (key, node), value in self.values.items():
            rows.setdefault(key, {})[node] = value
        self.rows = {key: StateRow(row) for key, row in rows.items()}

    def _put(self, key: str, node: NodeName, value: float) -> None:
        self.values[key, node] = value
        row = self.rows.get(key)
        self.rows[key] = StateRow({**({} if row is None else row.values), node: value})
        if len(self.values) > self.state.entries_max:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, node = next(iter(self.values))
        del self.values[key, node]
        left = {name: value for name, value in self.rows[key].values.items() if name != node}
        if left:
            self.rows[key] = StateRow(left)
        else:
            del self.rows[key]
        self.dropped_count += 1


@dataclass(slots=True)
class _PolicyStateTables:
    """One policy's states. `moments_by_pod`: what the last picture of each pod showed, and how long each run's container was down before. `newest_moment_ns`: the youngest moment that was fed;
    `since_ns`: what is not younger was fed before this process."""

    tables: dict[str, _StateTable]
    moments_by_pod: dict[PodUid, Mapping[_MomentKey, int | None]] = field(default_factory=dict)
    newest_moment_ns: int = 0
    since_ns: int = 0


class PolicyStates:
    """The states of all running policies. Deterministic; knows no clock but what it is told."""

    def __init__(self, namespace_of: Callable[[ObservedPod], Namespace]) -> None:
        self._namespace_of = namespace_of
        self._policies: dict[str, _PolicyStateTables] = {}
        self._buffered_pods: dict[PodUid, ObservedPod] | None = {}
        self._restored: dict[str, Mapping[str, Any]] = {}
        self._unclaimed_texts: dict[str, str] = {}
        self._write_at_ns: int | None = None
        self._written_ns: int | None = None

    # ── policies ───────────────────────────────────────────────────────────────────────────────────────────────────

    def restore(self, texts: Mapping[str, str]) -> list[str]:
        """What an earlier process wrote, by policy; before the policies run. Answers what of it could not be read."""
        problems = []
        for policy, text in texts.items():
            try:
                self._restored[policy] = parse_state_text(json.loads(text))
                self._unclaimed_texts[policy] = text
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                problems.append(f"the kept values of policy {policy} cannot be read and start anew: {error}")
        return problems

    def activate(self, program: Program, now_ns: int) -> dict[str, MetricSamples]:
        """The program runs from now on. A state that its text before declared alike goes on; answers the tables."""
        before = self._policies.pop(program.name, None)
        restored = self._restored.pop(program.name, {})
        self._unclaimed_texts.pop(program.name, None)
        if not program.states:
            return {}
        tables = {name: self._table(one, program, before, restored) for name, one in program.states.items()}
        kept = self._policies[program.name] = _PolicyStateTables(tables)
        if before is not None:
            kept.moments_by_pod, kept.newest_moment_ns, kept.since_ns = (
                before.moments_by_pod,
                before.newest_moment_ns,
                before.since_ns,
            )
        else:
            kept.newest_moment_ns = kept.since_ns = min(
                int(restored.get("fed_ns", 0)), now_ns + CLOCK_SKEW_MAX_NS
            )
            for seen in list((self._buffered_pods or {}).values()):
                self.pod_updated(seen, now_ns)
        return {name: MetricSamples({}, 0, state_rows=table.rows) for name, table in tables.items()}

    def _table(
        self,
        state: StateSpec,
        program: Program,
        before: _PolicyStateTables | None,
        restored: Mapping[str, Any],
    ) -> _StateTable:
        when = None if state.when is None else compile_scalar(state.when, program)
        table = _StateTable(
            state, compile_scalar(state.key, program), compile_scalar(state.value, program), when
        )
        old = None if before is None else before.tables.get(state.name)
        if old is not None and old.state == state:
            table.dropped_count, table.long_key_count = old.dropped_count, old.long_key_count
            table.load((key, node, value) for (key, node), value in old.values.items())
        elif before is None:
            kept = restored.get("values", {}).get(state.name, [])
            table.load((key, NodeName(node), float(value)) for key, node, value in kept)
        return table

    # ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def pod_updated(self, seen: ObservedPod, now_ns: int) -> str | None:
        """A pod was shown. Answers the policy whose values moved."""
        policy, node, uid = seen.pod.scheduler, seen.node, seen.pod.uid
        kept = self._policies.get(policy)
        if node is None or not seen.container_events:
            return None
        if kept is None:
            if self._buffered_pods is not None and len(self._buffered_pods) < BUFFERED_PODS_MAX:
                self._buffered_pods[uid] = seen
            return None
        before = kept.moments_by_pod.get(uid, {})
        shown = {
            (one.name, one.run_id, one.terminated): before.get((one.name, one.run_id, False))
            if one.downtime_ns is None
            else one.downtime_ns
            for one in seen.container_events
        }
        if shown.keys() == before.keys():
            return None
        kept.moments_by_pod[uid] = shown
        moved = False
        for moment in sorted(seen.container_events, key=lambda one: (one.at_ns, one.name, one.terminated)):
            named = (moment.name, moment.run_id, moment.terminated)
            if named not in before and moment.at_ns > kept.since_ns:
                moved |= self._apply_moment(
                    kept, seen, node, replace(moment, downtime_ns=shown[named]), now_ns
                )
        if moved and self._write_at_ns is None:
            since_ns = now_ns if self._written_ns is None else self._written_ns
            self._write_at_ns = max(now_ns, since_ns + WRITE_INTERVAL_NS)
        return policy if moved else None

    def pod_deleted(self, uid: PodUid) -> None:
        if self._buffered_pods is not None:
            self._buffered_pods.pop(uid, None)
        for kept in self._policies.values():
            kept.moments_by_pod.pop(uid, None)

    def stop_buffering(self) -> None:
        """Policies run: pods shown from now on are some running policy's or nobody's."""
        self._buffered_pods = None

    def _apply_moment(
        self, kept: _PolicyStateTables, seen: ObservedPod, node: NodeName, moment: ContainerEvent, now_ns: int
    ) -> bool:
        if moment.at_ns <= now_ns + CLOCK_SKEW_MAX_NS:
            kept.newest_moment_ns = max(kept.newest_moment_ns, moment.at_ns)
        at = EvalContext(seen.pod, self._namespace_of(seen), element=_fields(moment))
        moved = False
        for table in kept.tables.values():
            if not table.matches(moment) or (table.when is not None and table.when(at) is not True):
                continue
            key, value = table.key(at), table.value(at)
            if isinstance(key, str) and len(key) > KEY_CHARS_MAX:
                table.long_key_count += 1
            elif isinstance(key, str) and isinstance(value, int | float):
                table.update(key, ALL_NODES if table.state.scope == "cluster" else node, float(value))
                moved = True
        return moved

    # ── keeping ────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_time_ns(self) -> int | None:
        """When the values are to be written next; None while nothing has moved."""
        return self._write_at_ns

    def due_texts(self, now_ns: int) -> dict[str, str] | None:
        """The texts to be written now, by policy; None when it is not time."""
        if self._write_at_ns is None or now_ns < self._write_at_ns:
            return None
        self._write_at_ns, self._written_ns = None, now_ns
        return self.texts()

    def texts(self) -> dict[str, str]:
        """What is to be kept, by policy: as much of each state's latest as there is room for, and as it was read what belongs to
        a policy that does not run for the moment."""
        left = TEXTS_BYTES_MAX - sum(len(text.encode()) for text in self._unclaimed_texts.values())
        room = left // max(1, sum(len(kept.tables) for kept in self._policies.values()))
        return self._unclaimed_texts | {
            policy: _serialize(kept, room) for policy, kept in sorted(self._policies.items())
        }

    def counts(self) -> dict[tuple[str, str], StateCounts]:
        """By policy and state."""
        return {
            (policy, name): StateCounts(
                len(table.values), table.state.entries_max, table.dropped_count, table.long_key_count
            )
            for policy, kept in self._policies.items()
            for name, table in kept.tables.items()
        }


def _fields(moment: ContainerEvent) -> tuple[bool | int | str | None, ...]:
    """As `lang.ir.program.CONTAINER` has them."""
    return (
        moment.name,
        moment.terminated,
        moment.exit_code,
        moment.reason,
        moment.run_duration_ns,
        moment.restarts,
        moment.downtime_ns,
        moment.pod_failed,
    )


def _serialize(kept: _PolicyStateTables, room: int) -> str:
    values: dict[str, list[StateEntry]] = {}
    for name, table in kept.tables.items():
        left, latest = room, list[StateEntry]()
        for (key, node), value in islice(reversed(table.values.items()), table.state.entries_max):
            left -= len(key.encode()) + len(node) + 40
            if left < 0:
                break
            latest.append((key, node, value))
        values[name] = latest[::-1]
    return state_text(kept.newest_moment_ns, values)


def state_text(fed_ns: int, values: Mapping[str, Sequence[StateEntry]]) -> str:
    """Of one policy's states, as it is kept: each state's values, the one fed the longest ago first."""
    return json.dumps({"fed_ns": fed_ns, "values": values}, separators=(",", ":"), ensure_ascii=False)


def parse_state_text(found: Any) -> Mapping[str, Any]:
    """What was read of `state_text`. Raises ValueError, TypeError, KeyError, OverflowError where it is not of that shape."""
    fed_ns, values = found["fed_ns"], found["values"]
    if not isinstance(fed_ns, int) or abs(fed_ns) > INT64_MAX or not isinstance(values, dict):
        raise TypeError("it is not shaped as it was written")
    for entries in values.values():
        for key, node, value in entries:
            if not isinstance(key, str) or not isinstance(node, str):
                raise TypeError(f"{key!r} on {node!r} is no key on a node")
            key.encode(), node.encode()  # half of a surrogate pair could not be written down again
            if (
                not isinstance(value, int | float)
                or isinstance(value, bool)
                or clamp_finite(float(value)) != value
            ):
                raise ValueError(f"{value!r} is no value")
    return {"fed_ns": fed_ns, "values": values}
