"""The file as values that know their places: line and column of every key, for what is said about it.

YAML, or JSON, which is read the same way. A ConfigMap that holds the configuration under one of its keys (as clusters
have it) is opened: places are then those in the ConfigMap's file.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import yaml

from policysched.policy_files.source_set import UnusableFile
from policysched.schemas import schema, words

Path = tuple[str | int, ...]

_NODES_MAX = 20_000
"""Aliases make a small file large; nothing that configures a scheduler comes near this."""


@dataclass(frozen=True, slots=True)
class LineColumn:
    """A line and a column, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class LocatedDocument:
    """One document: its value, and the place of each of its parts. `name` is what the file is called."""

    name: str
    value: Any
    places: Mapping[Path, LineColumn] = field(repr=False)

    def place(self, path: Path) -> LineColumn:
        """Where the part stands, or the nearest part around it that does."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def unusable_file(self, path: Path, why: str) -> UnusableFile:
        """One line for a file that kube-scheduler would not take either."""
        at = self.place(path)
        return UnusableFile(f"{self.name}:{at.line}:{at.column}: {path_text(path) or '(top level)'}: {why}")


@dataclass(frozen=True, slots=True)
class ConfigSchemaViolation:
    """Something in the document that its schema does not allow."""

    path: Path
    is_unknown_field: (
        bool  # a field that kube-scheduler does not know, as against a value that it would not take
    )
    message: str


def path_text(path: Path) -> str:
    """`profiles[0].plugins.score`, as Kubernetes writes it."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def parse_documents(text: str, name: str) -> list[LocatedDocument]:
    """Every document of the file that is not empty. Raises UnusableFile with the place of the fault."""
    found = [_located(node, name, 0, 0) for node in _nodes(text, name, 0, 0)]
    opened = [inner for one in found for inner in _unwrap_config_map(one, text)]
    if not opened:
        raise UnusableFile(f"{name}: holds no configuration")
    return opened


def check_schema(document: LocatedDocument, schema_name: str) -> list[ConfigSchemaViolation]:
    """What does not fit, in the order of the file."""
    validator = jsonschema.Draft202012Validator(schema(schema_name))
    found = [one for error in validator.iter_errors(document.value) for one in _violations(error)]
    places = {one.path: document.place(one.path) for one in found}
    return sorted(found, key=lambda one: (places[one.path].line, places[one.path].column, one.message))


def _violations(error: jsonschema.ValidationError) -> Iterator[ConfigSchemaViolation]:
    path = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        known, given = error.schema.get("properties", {}), error.instance
        assert isinstance(given, dict), given
        for key in given:
            if key not in known:
                yield ConfigSchemaViolation((*path, key), True, "kube-scheduler knows no such field")
        return
    form = error.schema.get("description") if isinstance(error.schema, dict) else None
    shown = json.dumps(error.instance, default=str)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    yield ConfigSchemaViolation(
        path, False, f"{shown} is not {form}" if form else " ".join(words(error).split())[:200]
    )


# ── YAML with places ───────────────────────────────────────────────────────────────────────────────────────────────


class _Loader(yaml.SafeLoader):
    """As Kubernetes reads YAML: what looks like a date is a text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own way of saying it)
        first: [one for one in resolvers if not one[0].endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _nodes(text: str, name: str, lines_before: int, indent: int) -> list[yaml.Node]:
    if text.lstrip()[:1] == "{":
        # JSON may be indented by tabs, which YAML forbids; strings in JSON cannot hold them, so columns stay.
        text = text.replace("\t", " ")
    try:
        return [node for node in yaml.compose_all(text, Loader=_Loader) if not _is_empty(node)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1 + lines_before}:{mark.column + 1 + indent}" if mark else ""
        raise UnusableFile(f"{name}{place}: is neither YAML nor JSON: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UnusableFile(f"{name}: is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UnusableFile(f"{name}: is nested too deeply") from error


def _is_empty(node: yaml.Node | None) -> bool:
    return node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"))


def _located(node: yaml.Node, name: str, lines_before: int, indent: int) -> LocatedDocument:
    places: dict[Path, LineColumn] = {}
    pending: list[tuple[Path, yaml.Node, yaml.Node]] = [((), node, node)]
    count = 0
    while pending:
        path, at, value = pending.pop()
        count += 1
        place = LineColumn(at.start_mark.line + 1 + lines_before, at.start_mark.column + 1 + indent)
        places[path] = place
        if count > _NODES_MAX or len(path) > 100:
            raise UnusableFile(
                f"{name}:{place.line}:{place.column}: the file is larger than any configuration"
            )
        if isinstance(value, yaml.MappingNode):
            seen: set[str] = set()
            for key, inner in value.value:
                key_at = f"{key.start_mark.line + 1 + lines_before}:{key.start_mark.column + 1 + indent}"
                if not isinstance(key, yaml.ScalarNode):
                    raise UnusableFile(f"{name}:{key_at}: a key must be a word")
                if key.value in seen:
                    raise UnusableFile(f"{name}:{key_at}: `{key.value}` is given twice")
                seen.add(key.value)
                pending.append(((*path, key.value), key, inner))
        elif isinstance(value, yaml.SequenceNode):
            pending.extend(((*path, index), inner, inner) for index, inner in enumerate(value.value))
    return LocatedDocument(name, _value(node, name), places)


def _value(node: yaml.Node, name: str) -> Any:
    loader = _Loader("")
    try:
        return _without_nulls(loader.construct_document(node))
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        why = getattr(error, "problem", None) or str(error)
        raise UnusableFile(f"{name}{place}: is neither YAML nor JSON: {why}") from error
    finally:
        loader.dispose()


def _without_nulls(value: Any) -> Any:
    """A field that is null is absent, to Kubernetes."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    return value


# ── configurations in ConfigMaps ───────────────────────────────────────────────────────────────────────────────────

KINDS = frozenset({"KubeSchedulerConfiguration", "Policy"})


def _unwrap_config_map(document: LocatedDocument, text: str) -> Iterator[LocatedDocument]:
    """A ConfigMap's keys that hold a configuration; any other document as it is."""
    value = document.value
    if (
        not isinstance(value, dict)
        or value.get("kind") != "ConfigMap"
        or not isinstance(value.get("data"), dict)
    ):
        yield document
        return
    lines = text.split("\n")
    for key, inner in value["data"].items():
        if not isinstance(inner, str) or not any(
            kind in inner for kind in (*KINDS, "predicates", "priorities")
        ):
            continue
        before, indent = _block_place(document.place(("data", key)), lines)
        name = f"{document.name} (key {key})" if before < 0 else document.name
        lines_before = max(before, 0)
        for node in _nodes(inner, name, lines_before, indent):
            one = _located(node, name, lines_before, indent)
            if configuration_kind(one.value) is not None:
                yield one


def _block_place(key: LineColumn, lines: list[str]) -> tuple[int, int]:
    """Lines and columns before the text of a block scalar whose key stands there; (-1, 0) for a quoted text."""
    if not lines[key.line - 1].rstrip().endswith(("|", "|-", "|+")):
        return -1, 0
    for line in lines[key.line :]:
        if line.strip(" "):
            return key.line, len(line) - len(line.lstrip(" "))
    return -1, 0


def configuration_kind(value: Any) -> str | None:
    """Which of the two kinds of configuration it is. Old Policy files often do not say it."""
    if not isinstance(value, dict):
        return None
    kind = value.get("kind")
    if kind in KINDS:
        return str(kind)
    if kind is None and ("predicates" in value or "priorities" in value):
        return "Policy"
    return None
