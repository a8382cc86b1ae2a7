"""Parses values of a policy's states from a test or a file: the tables that a scheduler would have learned.

    reward:           {D: {n1: 0.43, n2: 1.0}}      of a state with a `key`: key, node, value
    reward_of_node:   {n1: 0.9}                     without a key: node, value
    reward_of_type:   {D: 0.81}                     `per = cluster`: key, value

The scheduler restores them like the values saved by an earlier process. A file may also have the saved form, as in the
ConfigMap of the last known good policies (`POLICY.state.json`).
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from policysched.cluster.metric_samples import ALL_NODES, MetricSamples
from policysched.files import UnreadableFile, read_text
from policysched.lang.ir.arithmetic import clamp_finite
from policysched.lang.ir.declarations import StateSpec
from policysched.lang.ir.expr import Const
from policysched.lang.ir.program import Program
from policysched.lang.types.units import parse_value
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.policy_files.source_set import UnusableFile
from policysched.scheduler.policies.policy_states import (
    PolicyStates,
    parse_state_text,
    state_entry,
    state_text,
)
from policysched.scheduler.policies.state_table import StateEntry
from policysched.scheduler.policy_permissions import COUNTS_ALWAYS
from policysched.text.abbreviate import abbreviate_names
from policysched.yaml_values import parse_yaml


class BadStateValues(Exception):
    """The value at `path` is not a value or table of the state."""

    def __init__(self, message: str, path: tuple[str, ...]) -> None:
        super().__init__(message)
        self.path = path


def parse_state_entries(state: StateSpec, values: Any) -> list[StateEntry]:
    """Raises BadStateValues."""
    return list(_entries(state, values))


def _entries(state: StateSpec, values: Any) -> Iterator[StateEntry]:
    keyed = not (isinstance(state.key, Const) and state.key.value == "")
    for key, of_key, path in _map_items(values, (), "keys") if keyed else [("", values, ())]:
        if state.scope == "cluster":
            yield key, ALL_NODES, _number(state, of_key, path)
            continue
        for node, value, value_path in _map_items(of_key, path, "nodes"):
            yield key, NodeName(node), _number(state, value, value_path)


def _map_items(values: Any, path: tuple[str, ...], noun: str) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    if not isinstance(values, dict):
        raise BadStateValues(f"expected a map of {noun}", path)
    for name, value in values.items():
        if not isinstance(name, str):
            raise BadStateValues(f"the key `{name}` is not a string; put it in quotes", path)
        yield name, value, (*path, name)


def _number(state: StateSpec, value: Any, path: tuple[str, ...]) -> float:
    number = parse_value(str(value), state.type, None) if isinstance(value, str | int | float) else None
    if (
        not isinstance(number, int | float)
        or isinstance(value, bool)
        or clamp_finite(float(number)) != number
    ):
        raise BadStateValues(f"`{value}` is not a value of type {state.type}", path)
    return float(number)


def load_state_values(
    path: Path | None, program: Program, nodes: Collection[NodeName], *, now_ns: int
) -> tuple[str | None, list[str]]:
    """The values of the policy's states in the saved form as of `now_ns`, and notes for the user about states without
    values and values without a state or a node. Raises UnusableFile."""
    if path is None:
        starts = ", ".join(f"{name} {state.start:g}" for name, state in program.states.items())
        notes = [f"states have their start values: {starts} (no --state file was given)"] if starts else []
        return None, notes
    document = _document(path)
    if document.keys() == {"fed_ns", "values"}:
        try:
            state_values: Mapping[str, Any] = parse_state_text(document)["values"]
        except (TypeError, ValueError, OverflowError) as error:
            raise UnusableFile(f"{path}: {error}") from error
        tables = {
            name: list(map(state_entry, entries))
            for name, entries in state_values.items()
            if name in program.states
        }
    else:
        state_values, tables = document, {}
        for name, values in document.items():
            if name in program.states:
                try:
                    tables[name] = parse_state_entries(program.states[name], values)
                except BadStateValues as error:
                    value_path = ".".join((name, *error.path))
                    raise UnusableFile(f"{path}: {value_path}: {error}") from error
    notes = [f"state {name} has no values ({path})" for name in program.states if name not in state_values]
    notes += [
        f"{path}: the policy declares no state {name}" for name in state_values if name not in program.states
    ]
    for name, entries in tables.items():
        unknown = dict.fromkeys(node for _, node, *_ in entries if node != ALL_NODES and node not in nodes)
        if unknown:
            notes.append(
                f"{path}: state {name} has values of unknown nodes: {abbreviate_names(list(unknown))}"
            )
    return state_text(now_ns, tables), notes


def _document(path: Path) -> dict[str, Any]:
    try:
        document = parse_yaml(read_text(path))
    except UnreadableFile as error:
        raise UnusableFile(f"{path}: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise UnusableFile(f"{path}: not a map of states")
    return document


def state_tables(program: Program, saved_states: str | None, *, now_ns: int) -> Mapping[str, MetricSamples]:
    """The state tables that rules read, restored from saved values."""
    states = PolicyStates(lambda observed: Namespace(observed.pod.namespace, {}, {}), COUNTS_ALWAYS)
    if saved_states is not None:
        problems = states.restore({program.name: saved_states})
        assert not problems, problems
    return states.activate(program, now_ns)
