"""Policy state (`state`): values that policies learn from container events, bounded and persisted.

    PodUpdated ─► new container events ─► key, value ─► v <- keep * v + (1 - keep) * value ─► row of the key ─► rules
                                              with `half_life`, v is first what decay left of it
                                                               │ every 30 s
                            SavedPolicyStatesLoaded at start ◄─ SavePolicyStates: newest values first

Each container event is applied once: the events of a pod are remembered until its next update, so a
relist applies nothing, and after a restart only events newer than the newest one in the saved values
are applied. State depends on events alone, so a replay ends with the same values.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from policysched.cluster.metric_samples import ALL_NODES, MetricSamples
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.arithmetic import clamp_finite
from policysched.lang.ir.declarations import StateSpec
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pod_status import ContainerEvent, ObservedPod
from policysched.model.quantity import INT64_MAX
from policysched.scheduler.policies.state_table import KEY_CHARS_MAX, StateEntry, StateTable
from policysched.scheduler.policy_permissions import Counts

WRITE_INTERVAL_NS = 30 * 10**9
TEXTS_BYTES_MAX = 512 * 1024
"""Limit of all saved values: a ConfigMap holds 1 MiB, and policy texts share it."""

CLOCK_SKEW_MAX_NS = 5 * 60 * 10**9
"""How far a node's clock may be ahead. A later event does not advance the newest event time: with a
clock one year ahead nothing would be applied for a year."""

BUFFERED_PODS_MAX = 10_000
"""Pods buffered until the first policy is active."""

_EventKey = tuple[str, str, bool]
"""Container, run, whether it terminated. A failure of the pod itself has an empty container name."""


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Sizes of one state: its values, their limit, values dropped at the limit, and events ignored
    because the key was too long."""

    value_count: int
    value_count_max: int
    dropped_count: int
    long_key_count: int = 0


@dataclass(slots=True)
class _PolicyStateTables:
    """State tables of one policy.

    `events_by_pod`: the events in the last update of each pod, with the downtime of the container
    before each run. `newest_event_ns`: the newest event applied. `since_ns`: events up to this time
    were applied by an earlier process.
    """

    tables: dict[str, StateTable]
    events_by_pod: dict[PodUid, Mapping[_EventKey, int | None]] = field(default_factory=dict)
    newest_event_ns: int = 0
    since_ns: int = 0


class PolicyStates:
    """States of all active policies. Deterministic: time comes in as an argument."""

    def __init__(self, namespace_of: Callable[[ObservedPod], Namespace], counts: Counts) -> None:
        self._namespace_of = namespace_of
        self._counts = counts
        self._policies: dict[str, _PolicyStateTables] = {}
        self._buffered_pods: dict[PodUid, ObservedPod] | None = {}
        self._restored: dict[str, Mapping[str, Any]] = {}
        self._unclaimed_texts: dict[str, str] = {}
        self._write_at_ns: int | None = None
        self._cleaning: Iterator[None] | None = None  # before a save
        self._written_ns: int | None = None

    # ── policies ───────────────────────────────────────────────────────────────────────────────────────────────────

    def restore(self, texts: Mapping[str, str]) -> list[str]:
        """Restore what an earlier process saved, before policies are active; return the read errors."""
        problems = []
        for policy, text in texts.items():
            try:
                self._restored[policy] = parse_state_text(json.loads(text))
                self._unclaimed_texts[policy] = text
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                problems.append(f"saved state of policy {policy} is unreadable and is reset: {error}")
        return problems

    def activate(self, program: Program, now_ns: int) -> dict[str, MetricSamples]:
        """Activate a program and return its tables. A state with an unchanged declaration keeps its values."""
        before = self._policies.pop(program.name, None)
        restored = self._restored.pop(program.name, {})
        self._unclaimed_texts.pop(program.name, None)
        if not program.states:
            return {}
        tables = {
            name: self._table(spec, program, before, restored, now_ns)
            for name, spec in program.states.items()
        }
        policy_tables = self._policies[program.name] = _PolicyStateTables(tables)
        if before is not None:
            policy_tables.events_by_pod, policy_tables.newest_event_ns, policy_tables.since_ns = (
                before.events_by_pod,
                before.newest_event_ns,
                before.since_ns,
            )
        else:
            policy_tables.newest_event_ns = policy_tables.since_ns = min(
                int(restored.get("fed_ns", 0)), now_ns + CLOCK_SKEW_MAX_NS
            )
            for observed in list((self._buffered_pods or {}).values()):
                self.pod_updated(observed, now_ns)
        return {name: MetricSamples({}, 0, state_rows=table.rows) for name, table in tables.items()}

    def _table(
        self,
        state: StateSpec,
        program: Program,
        before: _PolicyStateTables | None,
        restored: Mapping[str, Any],
        now_ns: int,
    ) -> StateTable:
        when = None if state.when is None else compile_scalar(state.when, program)
        table = StateTable(
            state, compile_scalar(state.key, program), compile_scalar(state.value, program), when
        )
        old = None if before is None else before.tables.get(state.name)
        if old is not None and old.state == state:
            table.dropped_count, table.long_key_count = old.dropped_count, old.long_key_count
            # Loading 100,000 again takes a second.
            table.values, table.rows, table.namespaces = old.values, old.rows, old.namespaces
        elif before is None:
            entries = restored.get("values", {}).get(state.name, [])
            table.load(map(state_entry, entries), now_ns)
        return table

    # ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def pod_updated(self, observed: ObservedPod, now_ns: int) -> str | None:
        """Apply the new container events of a pod; return the policy whose values changed."""
        policy, node, uid = observed.pod.scheduler, observed.node, observed.pod.uid
        policy_tables = self._policies.get(policy)
        if node is None or not observed.container_events:
            return None
        if policy_tables is None:
            if self._buffered_pods is not None and len(self._buffered_pods) < BUFFERED_PODS_MAX:
                self._buffered_pods[uid] = observed
            return None
        before = policy_tables.events_by_pod.get(uid, {})
        downtimes = {
            (event.name, event.run_id, event.terminated): before.get((event.name, event.run_id, False))
            if event.downtime_ns is None
            else event.downtime_ns
            for event in observed.container_events
        }
        if downtimes.keys() == before.keys() or not self._counts(policy, observed.pod.namespace):
            return None
        policy_tables.events_by_pod[uid] = downtimes
        changed = False
        for event in sorted(
            observed.container_events, key=lambda event: (event.at_ns, event.name, event.terminated)
        ):
            event_key = (event.name, event.run_id, event.terminated)
            if event_key not in before and event.at_ns > policy_tables.since_ns:
                changed |= self._apply_event(
                    policy_tables, observed, node, replace(event, downtime_ns=downtimes[event_key]), now_ns
                )
        if changed and self._write_at_ns is None:
            since_ns = now_ns if self._written_ns is None else self._written_ns
            self._write_at_ns = max(now_ns, since_ns + WRITE_INTERVAL_NS)
        return policy if changed else None

    def pod_deleted(self, uid: PodUid) -> None:
        if self._buffered_pods is not None:
            self._buffered_pods.pop(uid, None)
        for policy_tables in self._policies.values():
            policy_tables.events_by_pod.pop(uid, None)

    def stop_buffering(self) -> None:
        """Stop buffering: policies are active, so each pod belongs to an active policy or to none."""
        self._buffered_pods = None

    def _apply_event(
        self,
        policy_tables: _PolicyStateTables,
        observed: ObservedPod,
        node: NodeName,
        event: ContainerEvent,
        now_ns: int,
    ) -> bool:
        if event.at_ns <= now_ns + CLOCK_SKEW_MAX_NS:
            policy_tables.newest_event_ns = max(policy_tables.newest_event_ns, event.at_ns)
        at = EvalContext(observed.pod, self._namespace_of(observed), element=_fields(event))
        changed = False
        for table in policy_tables.tables.values():
            if not table.matches(event) or (table.when is not None and table.when(at) is not True):
                continue
            key, value = table.key(at), table.value(at)
            if isinstance(key, str) and len(key) > KEY_CHARS_MAX:
                table.long_key_count += 1
            elif isinstance(key, str) and isinstance(value, int | float):
                row_node = ALL_NODES if table.state.scope == "cluster" else node
                at_ns = min(event.at_ns, now_ns)
                table.update(key, row_node, float(value), at_ns, observed.pod.namespace)
                changed = True
        return changed

    # ── persistence ────────────────────────────────────────────────────────────────────────────────────────────────────

    def request_save(self, now_ns: int) -> None:
        """For what is saved beside the values: now, or when the last save is old enough."""
        at_ns = now_ns if self._written_ns is None else max(now_ns, self._written_ns + WRITE_INTERVAL_NS)
        self._write_at_ns = at_ns if self._write_at_ns is None else min(self._write_at_ns, at_ns)

    def next_time_ns(self) -> int | None:
        """When the values are saved next; None while they are unchanged."""
        return self._write_at_ns

    def due_texts(self, now_ns: int) -> dict[str, str] | None:
        """The texts to save now, by policy; None if no save is due, or a step before it is done: then it is still due."""
        if self._write_at_ns is None or now_ns < self._write_at_ns:
            return None
        if self._cleaning is None:
            self._cleaning = self._drop_decayed_in_steps(now_ns)
        for _ in self._cleaning:
            return None
        self._cleaning, self._write_at_ns, self._written_ns = None, None, now_ns
        return self.texts()

    def _drop_decayed_in_steps(self, now_ns: int) -> Iterator[None]:
        tables = [table for of_policy in self._policies.values() for table in of_policy.tables.values()]
        for table in tables:
            yield from table.drop_decayed_in_steps(now_ns)

    def texts(self) -> dict[str, str]:
        """Texts to save, by policy: the most recent values of each state within the size limit.

        The text of a policy that is not active is returned as it was read.
        """
        bytes_left = TEXTS_BYTES_MAX - sum(len(text.encode()) for text in self._unclaimed_texts.values())
        # The same for each policy, so that one with many states takes nothing from the others.
        bytes_of_policy = bytes_left // max(1, len(self._policies))
        return self._unclaimed_texts | {
            policy: _serialize(policy_tables, bytes_of_policy // len(policy_tables.tables))
            for policy, policy_tables in sorted(self._policies.items())
        }

    def counts(self) -> dict[tuple[str, str], StateCounts]:
        """Counts by policy and state."""
        return {
            (policy, name): StateCounts(
                len(table.values), table.state.entries_max, table.dropped_count, table.long_key_count
            )
            for policy, policy_tables in self._policies.items()
            for name, table in policy_tables.tables.items()
        }


def _fields(event: ContainerEvent) -> tuple[bool | int | str | None, ...]:
    """Fields of the event in the order of `lang.ir.program.CONTAINER`."""
    return (
        event.name,
        event.terminated,
        event.exit_code,
        event.reason,
        event.run_duration_ns,
        event.restarts,
        event.downtime_ns,
        event.pod_failed,
    )


def _serialize(policy_tables: _PolicyStateTables, bytes_max: int) -> str:
    values: dict[str, list[StateEntry]] = {}
    for name, table in policy_tables.tables.items():
        left, latest = bytes_max, list[StateEntry]()
        for entry in table.entries():
            left -= len(entry[0].encode()) + len(entry[1]) + 20 * len(entry) - 20
            if left < 0:
                break
            latest.append(entry)
        values[name] = latest[::-1]
    return state_text(policy_tables.newest_event_ns, values)


def state_text(fed_ns: int, values: Mapping[str, Sequence[StateEntry]]) -> str:
    """Serialize the states of one policy; values are least recently updated first."""
    return json.dumps({"fed_ns": fed_ns, "values": values}, separators=(",", ":"), ensure_ascii=False)


def state_entry(values: Sequence[Any]) -> StateEntry:
    """An entry as `parse_state_text` has it."""
    key, node, value, *updated_ns = values
    return (key, NodeName(node), float(value), *updated_ns)


def is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INT64_MAX


def parse_state_text(document: Any) -> Mapping[str, Any]:
    """Validate a parsed `state_text`. Raises ValueError, TypeError, KeyError or OverflowError."""
    fed_ns, values = document["fed_ns"], document["values"]
    if not is_time(fed_ns) or not isinstance(values, dict):
        raise TypeError("unexpected structure")
    for entries in values.values():
        for key, node, value, *updated_ns in entries:
            if not isinstance(key, str) or not isinstance(node, str):
                raise TypeError(f"invalid key {key!r} on node {node!r}")
            if updated_ns and not (len(updated_ns) == 1 and is_time(updated_ns[0])):
                raise TypeError(f"invalid time {updated_ns!r}")
            key.encode(), node.encode()  # a lone surrogate could not be saved again
            if (
                not isinstance(value, int | float)
                or isinstance(value, bool)
                or clamp_finite(float(value)) != value
            ):
                raise ValueError(f"invalid value {value!r}")
    return {"fed_ns": fed_ns, "values": values}
