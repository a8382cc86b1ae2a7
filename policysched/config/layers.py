"""The layers in which settings are given (a file, variables, flags), laid over each other.

Everything that is wrong is collected, so that one run says it all. A layer is checked against `schemas/settings.json` on
its own, for a mistake is to be reported where it was made: the file with its line, or the variable by its name. What a
schema cannot say is checked on what the layers come to, and reported where the value comes from.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policysched.files import UnreadableFile, parse_yaml, read_text
from policysched.metric_sources.source_kind import SettingProblem
from policysched.schemas import Lines, misfits, schema

ENVIRONMENT_PREFIX = "POLICYSCHED_"
_NOT_SETTINGS = frozenset({"POLICYSCHED_REQUIRE", "POLICYSCHED_CONFIG"})
"""What the project's tests are told, and the file itself."""


class BadSettings(Exception):
    """Settings that cannot be used. `problems` has a line for each: where, and what."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class _Layer:
    """`name` is the file's, the variable's or `flags`; `text` the YAML that it was read from."""

    name: str
    value: Any
    text: str = ""


class LayeredSettings:
    """What was given, in the form of the file: `value`. `add_problems` adds what else is wrong."""

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
        """The setting there; None where it is not given, or the schema has found something wrong in it."""
        if any(wrong[: len(path)] == path[: len(wrong)] for wrong in self._invalid_paths):
            return None
        found: Any = self.value
        for part in path:
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    def valid_sections(self, section: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The sound ones of a section that has its parts by name, such as `sources`."""
        parts = self.value.get(section)
        for name in parts if isinstance(parts, Mapping) else ():
            one = self.valid(section, name)
            if one is not None:
                yield name, one

    def is_missing(self, name: str) -> bool:
        """Whether a setting is not given and nothing explains that away, such as a file that cannot be read."""
        return name not in self.value and () not in self._invalid_paths

    def add_problems(self, found: Iterable[SettingProblem]) -> None:
        """What no schema can say."""
        for path, why in found:
            layer = self._layer_of(path)
            said = Lines("" if layer is None else layer.text).said(path, why)
            self.problems.append(said if layer is None else f"{layer.name}: {said}")

    def raise_problems(self) -> None:
        """Raises BadSettings with all that was found."""
        if self.problems:
            raise BadSettings(self.problems)

    def _add_file_layer(self, path: Path) -> None:
        try:
            text = read_text(path)
            value = parse_yaml(text)
        except UnreadableFile as error:
            self.problems.append(f"{path}: {error}")
            self._invalid_paths.append(())  # what the file may say is not known
        else:
            self._add_layer(_Layer(str(path), {} if value is None else value, text))

    def _add_layer(self, layer: _Layer) -> None:
        lines = Lines(layer.text)
        found = misfits("settings", layer.value, lines)
        self.problems += [f"{layer.name}: {lines.said(path, why)}" for path, why in found]
        self._invalid_paths += [tuple(str(part) for part in path) for path, _ in found]
        if isinstance(layer.value, Mapping):
            self._layers.append(layer)

    def _layer_of(self, path: Sequence[str]) -> _Layer | None:
        """Where the value comes from: the highest layer that gives it, or as much of the way to it as any does."""
        for length in range(len(path), 0, -1):
            for layer in reversed(self._layers):
                if _has(layer.value, path[:length]):
                    return layer
        return None


def _environment_layers(environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Variables with our prefix, in the form of the file. A misspelt one is among them: it must not be ignored."""
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
    """Whether the setting is a number or a truth: then `5` is 5 and not a text."""
    found: Any = schema("settings")
    for part in path:
        found = found.get("properties", {}).get(part, {})
        if "$ref" in found:
            found = schema("settings")["$defs"][found["$ref"].rpartition("/")[2]]
    return found.get("type") in ("integer", "number", "boolean")


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    laid = dict(below)
    for name, value in above.items():
        old = laid.get(name)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        laid[name] = _merge(old, value) if both and isinstance(old, Mapping) else value
    return laid


def _has(value: Any, path: Sequence[str]) -> bool:
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True
