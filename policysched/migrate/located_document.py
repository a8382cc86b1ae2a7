"""Parses a configuration file and keeps the line and column of every key, for messages.

The file is YAML, or JSON, which is parsed as YAML. A ConfigMap that holds the configuration in one of
its keys is unwrapped, also in a List; positions are those in the file of the ConfigMap. Other objects of
a manifest are skipped if the file has a configuration.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jsonschema

from policysched.policy_files.source_set import UnusableFile
from policysched.schemas import schema, violation_message
from policysched.text import Position
from policysched.yaml_values import InvalidYaml, YamlOverLimit, YamlValue, read_yaml_documents

Path = tuple[str | int, ...]
ConfigMapKey = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class LocatedDocument:
    """A document with the position of each of its parts. `name` is the name of the file.

    The text begins after `lines_before` lines of the file, indented by `indent` columns. `config_map` is the namespace and
    the name of the ConfigMap that holds it, None for a document of its own.
    """

    name: str
    value: Any
    root: YamlValue = field(repr=False)
    lines_before: int = 0
    indent: int = 0
    config_map: ConfigMapKey | None = None

    def place(self, path: Path) -> Position:
        """The position of the part, or of the nearest enclosing part that exists."""
        return _shifted(self.root.find(path).key_start, self.lines_before, self.indent)

    def unusable_file(self, path: Path, reason: str) -> UnusableFile:
        """The error for a file that kube-scheduler rejects too: one line with the position."""
        at = self.place(path)
        return UnusableFile(
            f"{self.name}:{at.line}:{at.column}: {path_text(path) or '(top level)'}: {reason}"
        )


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
    documents = _located_documents(text, name, 0, 0)
    opened = [inner for document in documents for inner in _unwrap(document, text)]
    configurations = [inner for inner in opened if configuration_kind(inner.value) is not None]
    if configurations:
        return configurations
    if len(opened) == 1:
        raise opened[0].unusable_file((), "is neither a KubeSchedulerConfiguration nor a legacy Policy")
    kinds = dict.fromkeys(
        str(inner.value.get("kind", "?")) if isinstance(inner.value, dict) else "?" for inner in opened
    )
    of = f"; its {len(opened)} objects are of kind {', '.join(kinds)}" if opened else ""
    raise UnusableFile(f"{name}: contains no configuration{of}")


def check_schema(document: LocatedDocument, schema_name: str) -> list[ConfigSchemaViolation]:
    """The schema violations, in the order of the file."""
    validator = jsonschema.Draft202012Validator(schema(schema_name))
    violations = [
        violation for error in validator.iter_errors(document.value) for violation in _violations(error)
    ]
    spans = {violation.path: document.place(violation.path) for violation in violations}
    return sorted(
        violations,
        key=lambda violation: (spans[violation.path].line, spans[violation.path].column, violation.message),
    )


def _violations(error: jsonschema.ValidationError) -> Iterator[ConfigSchemaViolation]:
    path = tuple(error.absolute_path)
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        properties, instance = error.schema.get("properties", {}), error.instance
        assert isinstance(instance, dict), instance
        for key in instance:
            if key not in properties:
                yield ConfigSchemaViolation((*path, key), True, "kube-scheduler has no such field")
        return
    form = error.schema.get("description") if isinstance(error.schema, dict) else None
    shown = json.dumps(error.instance, default=str)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    yield ConfigSchemaViolation(
        path, False, f"{shown} is not {form}" if form else " ".join(violation_message(error).split())[:200]
    )


# ── YAML with positions ────────────────────────────────────────────────────────────────────────────────────────────


def _located_documents(text: str, name: str, lines_before: int, indent: int) -> list[LocatedDocument]:
    if text.lstrip()[:1] == "{":
        # JSON may be indented with tabs, which YAML forbids. JSON strings cannot contain tabs, and
        # columns do not change.
        text = text.replace("\t", " ")
    try:
        return [
            LocatedDocument(name, _construct(root, name, lines_before, indent), root, lines_before, indent)
            for root in read_yaml_documents(text)
        ]
    except YamlOverLimit as error:
        raise UnusableFile(f"{name}: the file is too large for a configuration: {error}") from None
    except InvalidYaml as error:
        at = "" if error.position is None else _at(error.position, lines_before, indent)
        raise UnusableFile(f"{name}{at}: is neither YAML nor JSON: {error.problem}") from None


def _construct(root: YamlValue, name: str, lines_before: int, indent: int) -> Any:
    for problem in root.key_problems():
        at = _at(problem.start, lines_before, indent)
        if problem.key is None:
            raise UnusableFile(f"{name}{at}: a key must be a string")
        if problem.is_duplicate:
            raise UnusableFile(f"{name}{at}: `{problem.key}` is given twice")
    return _without_nulls(root.construct())


def _shifted(position: Position, lines_before: int, indent: int) -> Position:
    return Position(position.line + lines_before, position.column + indent)


def _at(position: Position, lines_before: int, indent: int) -> str:
    at = _shifted(position, lines_before, indent)
    return f":{at.line}:{at.column}"


def _without_nulls(value: Any) -> Any:
    """Remove null fields: Kubernetes treats them as absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


# ── configurations in ConfigMaps ───────────────────────────────────────────────────────────────────────────────────

KINDS = frozenset({"KubeSchedulerConfiguration", "Policy"})


def _unwrap(document: LocatedDocument, text: str, path: Path = ()) -> Iterator[LocatedDocument]:
    """Yield the configurations in ConfigMaps, which may be items of a List; any other document unchanged."""
    value = document.value
    for part in path:
        value = value[part]
    if isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        for index in range(len(value["items"])):
            yield from _unwrap(document, text, (*path, "items", index))
        return
    if (
        not isinstance(value, dict)
        or value.get("kind") != "ConfigMap"
        or not isinstance(value.get("data"), dict)
    ):
        if not path:
            yield document
        return
    config_map = config_map_key(value.get("metadata"))
    lines = text.split("\n")
    for key, inner in value["data"].items():
        if not isinstance(inner, str) or not any(
            kind in inner for kind in (*KINDS, "predicates", "priorities")
        ):
            continue
        before, indent = _block_place(document.place((*path, "data", key)), lines)
        name = f"{document.name} (key {key})" if before < 0 else document.name
        lines_before = max(before, 0)
        for inner_document in _located_documents(inner, name, lines_before, indent):
            if configuration_kind(inner_document.value) is not None:
                yield replace(inner_document, config_map=config_map)


def config_map_key(given: Any) -> ConfigMapKey | None:
    """The namespace and the name in `metadata` or in a reference to a ConfigMap, None if a name is missing."""
    if not isinstance(given, dict) or not given.get("name"):
        return None
    return str(given.get("namespace") or "default"), str(given["name"])


def _block_place(key: Position, lines: list[str]) -> tuple[int, int]:
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
