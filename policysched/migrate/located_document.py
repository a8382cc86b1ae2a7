"""Parses a configuration file and keeps the line and column of every key, for messages.

The file is YAML, or JSON, which is parsed as YAML. A ConfigMap that holds the configuration in one of
its keys is unwrapped; positions are those in the file of the ConfigMap.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import yaml

from policysched.policy_files.source_set import UnusableFile
from policysched.schemas import schema, violation_message

Path = tuple[str | int, ...]

_NODES_MAX = 20_000
"""The limit of nodes in a document: aliases can expand a small file without bound."""


@dataclass(frozen=True, slots=True)
class LineColumn:
    """A line and a column, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class LocatedDocument:
    """A document with the position of each of its parts. `name` is the name of the file."""

    name: str
    value: Any
    places: Mapping[Path, LineColumn] = field(repr=False)

    def place(self, path: Path) -> LineColumn:
        """The position of the part, or of the nearest enclosing part that exists."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]

    def unusable_file(self, path: Path, why: str) -> UnusableFile:
        """The error for a file that kube-scheduler rejects too: one line with the position."""
        at = self.place(path)
        return UnusableFile(f"{self.name}:{at.line}:{at.column}: {path_text(path) or '(top level)'}: {why}")


@dataclass(frozen=True, slots=True)
class ConfigSchemaViolation:
    """A violation of the document's schema."""

    path: Path
    is_unknown_field: bool  # True: a field that kube-scheduler does not know; False: an invalid value
    message: str


def path_text(path: Path) -> str:
    """A path in Kubernetes notation: `profiles[0].plugins.score`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def parse_documents(text: str, name: str) -> list[LocatedDocument]:
    """Parse the non-empty documents of a file. Raises UnusableFile with the position of the error."""
    documents = [_located(node, name, 0, 0) for node in _nodes(text, name, 0, 0)]
    opened = [inner for document in documents for inner in _unwrap_config_map(document, text)]
    if not opened:
        raise UnusableFile(f"{name}: contains no configuration")
    return opened


def check_schema(document: LocatedDocument, schema_name: str) -> list[ConfigSchemaViolation]:
    """The schema violations, in the order of the file."""
    validator = jsonschema.Draft202012Validator(schema(schema_name))
    violations = [
        violation for error in validator.iter_errors(document.value) for violation in _violations(error)
    ]
    places = {violation.path: document.place(violation.path) for violation in violations}
    return sorted(
        violations,
        key=lambda violation: (places[violation.path].line, places[violation.path].column, violation.message),
    )


def _violations(error: jsonschema.ValidationError) -> Iterator[ConfigSchemaViolation]:
    path = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        known, given = error.schema.get("properties", {}), error.instance
        assert isinstance(given, dict), given
        for key in given:
            if key not in known:
                yield ConfigSchemaViolation((*path, key), True, "kube-scheduler has no such field")
        return
    form = error.schema.get("description") if isinstance(error.schema, dict) else None
    shown = json.dumps(error.instance, default=str)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    yield ConfigSchemaViolation(
        path, False, f"{shown} is not {form}" if form else " ".join(violation_message(error).split())[:200]
    )


# ── YAML with positions ────────────────────────────────────────────────────────────────────────────────────────────


class _Loader(yaml.SafeLoader):
    """Reads YAML as Kubernetes does: dates are strings."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's convention)
        first: [resolver for resolver in resolvers if not resolver[0].endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _nodes(text: str, name: str, lines_before: int, indent: int) -> list[yaml.Node]:
    if text.lstrip()[:1] == "{":
        # JSON may be indented with tabs, which YAML forbids. JSON strings cannot contain tabs, and
        # columns do not change.
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
                f"{name}:{place.line}:{place.column}: the file is too large for a configuration"
            )
        if isinstance(value, yaml.MappingNode):
            keys: set[str] = set()
            for key, inner in value.value:
                key_at = f"{key.start_mark.line + 1 + lines_before}:{key.start_mark.column + 1 + indent}"
                if not isinstance(key, yaml.ScalarNode):
                    raise UnusableFile(f"{name}:{key_at}: a key must be a string")
                if key.value in keys:
                    raise UnusableFile(f"{name}:{key_at}: `{key.value}` is given twice")
                keys.add(key.value)
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
    """Remove null fields: Kubernetes treats them as absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


# ── configurations in ConfigMaps ───────────────────────────────────────────────────────────────────────────────────

KINDS = frozenset({"KubeSchedulerConfiguration", "Policy"})


def _unwrap_config_map(document: LocatedDocument, text: str) -> Iterator[LocatedDocument]:
    """Yield the configurations in a ConfigMap's keys; any other document unchanged."""
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
            inner_document = _located(node, name, lines_before, indent)
            if configuration_kind(inner_document.value) is not None:
                yield inner_document


def _block_place(key: LineColumn, lines: list[str]) -> tuple[int, int]:
    """Lines and columns before the text of the key's block scalar; (-1, 0) for a quoted string."""
    if not lines[key.line - 1].rstrip().endswith(("|", "|-", "|+")):
        return -1, 0
    for line in lines[key.line :]:
        if line.strip(" "):
            return key.line, len(line) - len(line.lstrip(" "))
    return -1, 0


def configuration_kind(value: Any) -> str | None:
    """The kind of configuration, None for other documents. Legacy Policy files often have no `kind`."""
    if not isinstance(value, dict):
        return None
    kind = value.get("kind")
    if kind in KINDS:
        return str(kind)
    if kind is None and ("predicates" in value or "priorities" in value):
        return "Policy"
    return None
