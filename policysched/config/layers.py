"""The layers of settings (file, environment variables, flags), merged in this order.

All problems are collected, so that one run reports every one. Each layer is checked against `schemas/settings.json` on
its own, so that a problem is reported at its origin: the file with its line, or the variable by name. Checks that a
schema cannot express run on the merged settings and are reported at the layer of the value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policysched.files import UnreadableFile, read_text
from policysched.metric_sources.source_kind import SettingProblem
from policysched.schemas import KeyLines, schema, schema_violations
from policysched.yaml_values import parse_yaml

ENVIRONMENT_PREFIX = "POLICYSCHED_"
_NOT_SETTINGS = frozenset({"POLICYSCHED_REQUIRE", "POLICYSCHED_CONFIG"})
"""Variables of the project's tests, and the path of the settings file."""


class BadSettings(Exception):
    """Unusable settings. `problems` has one line each: where, and what."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class _Layer:
    """`name` is the path of the file, the variable, or `flags`; `text` is the YAML source."""

    name: str
    value: Any
    text: str = ""


class LayeredSettings:
    """`value` is the merged settings in the form of the file. `add_problems` adds problems found later."""

    def __init__(self, file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> None:
        self.problems: list[str] = []
        self._invalid_paths: list[tuple[str, ...]] = []
        self._layers: list[_Layer] = []
        if file is not None:
            self._add_file_layer(file)
        for name, value in _environment_layers(environment):
            self._add_layer(_Layer(f"environment variable {name}", value))
        self._add_layer(_Layer("flags", flags))
        self.value: dict[str, Any] = {}
        for layer in self._layers:
            self.value = _merge(self.value, layer.value)

    def valid(self, *path: str) -> Any:
        """The setting at `path`; None if it is not given, or violates the schema."""
        if any(invalid[: len(path)] == path[: len(invalid)] for invalid in self._invalid_paths):
            return None
        value: Any = self.value
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def valid_sections(self, section: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The valid entries of a section with named entries, such as `sources`."""
        entries = self.value.get(section)
        for name in entries if isinstance(entries, Mapping) else ():
            entry = self.valid(section, name)
            if entry is not None:
                yield name, entry

    def is_missing(self, name: str) -> bool:
        """Whether a setting is not given, and no unreadable file may contain it."""
        return name not in self.value and () not in self._invalid_paths

    def add_problems(self, problems: Iterable[SettingProblem]) -> None:
        """Add problems that the schema cannot express."""
        for path, reason in problems:
            layer = self._layer_of(path)
            problem = KeyLines("" if layer is None else layer.text).located_message(path, reason)
            self.problems.append(problem if layer is None else f"{layer.name}: {problem}")

    def raise_problems(self) -> None:
        """Raises BadSettings with all problems."""
        if self.problems:
            raise BadSettings(self.problems)

    def _add_file_layer(self, path: Path) -> None:
        try:
            text = read_text(path)
            value = parse_yaml(text)
        except UnreadableFile as error:
            self.problems.append(f"{path}: {error}")
            self._invalid_paths.append(())  # any setting may be in the file
        else:
            self._add_layer(_Layer(str(path), {} if value is None else value, text))

    def _add_layer(self, layer: _Layer) -> None:
        lines = KeyLines(layer.text)
        violations = schema_violations("settings", layer.value, lines)
        self.problems += [
            f"{layer.name}: {lines.located_message(path, reason)}" for path, reason in violations
        ]
        self._invalid_paths += [tuple(str(part) for part in path) for path, _ in violations]
        if isinstance(layer.value, Mapping):
            self._layers.append(layer)

    def _layer_of(self, path: Sequence[str]) -> _Layer | None:
        """The highest layer with this setting, or with the longest prefix of its path."""
        for length in range(len(path), 0, -1):
            for layer in reversed(self._layers):
                if _has(layer.value, path[:length]):
                    return layer
        return None


def _environment_layers(environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Variables with our prefix, in the form of the file. Misspelt ones are included, so that they are reported."""
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in _NOT_SETTINGS:
            continue
        path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        try:
            value = parse_yaml(environment[name])
        except UnreadableFile:
            value = environment[name]
        nested: Any = (
            value if _is_number_or_boolean(path) or isinstance(value, dict | list) else environment[name]
        )
        for part in reversed(path):
            nested = {part: nested}
        yield name, nested


def _is_number_or_boolean(path: list[str]) -> bool:
    """Whether the setting is a number or a boolean: then `5` is 5 and not a string."""
    rule: Any = schema("settings")
    for part in path:
        rule = rule.get("properties", {}).get(part, {})
        if "$ref" in rule:
            rule = schema("settings")["$defs"][rule["$ref"].rpartition("/")[2]]
    return rule.get("type") in ("integer", "number", "boolean")


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        nested = isinstance(value, Mapping) and isinstance(old, Mapping)
        merged[name] = _merge(old, value) if nested and isinstance(old, Mapping) else value
    return merged


def _has(value: Any, path: Sequence[str]) -> bool:
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True
