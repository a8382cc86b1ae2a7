"""JSON schemas of what users write for us or read from us, and the one way to check against them.

A finding says the place as a path (`lease.duration_s`) and, for YAML, the line, so that it can be put right.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema
import orjson
import yaml


@cache
def schema(name: str) -> dict[str, Any]:
    """A schema by its file's stem, such as `schema("settings")`."""
    found: dict[str, Any] = orjson.loads((files(__package__) / f"{name}.json").read_bytes())
    return found


def findings(name: str, value: Any, text: str = "") -> list[str]:
    """What does not fit the schema, one line each, in the order of the document. `text` is the YAML it came from."""
    return [_line(path, words, text) for path, words in misfits(name, value)]


def misfits(name: str, value: Any) -> list[tuple[list[Any], str]]:
    """The same as paths (keys and indexes from the top) and words, for whoever knows the places of a text better."""
    validator = jsonschema.Draft202012Validator(schema(name))
    errors = sorted(
        validator.iter_errors(value), key=lambda error: [str(part) for part in error.absolute_path]
    )
    return [(list(error.absolute_path), _words(error)) for error in errors]


def _words(error: jsonschema.ValidationError) -> str:
    rule = error.schema if isinstance(error.schema, dict) else {}
    form = rule.get("description")
    if error.validator != "pattern" or not form:
        return error.message
    # `writeOnly`: what may hold a credential is not said again.
    shown = "what is given" if rule.get("writeOnly") else f"`{error.instance}`"
    return f"{shown} is not: {form}"


def _line(path: list[Any], words: str, text: str) -> str:
    line = _line_of(text, path) if text else None
    where = ".".join(str(part) for part in path) or "(top level)"
    place = f"line {line}: " if line else ""
    return f"{place}{where}: {words}"


def _line_of(text: str, path: list[Any]) -> int | None:
    """The line (from 1) of the key that the path ends in."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = None
    for part in path:
        found = next((pair for pair in _pairs(node) if pair[0] == str(part)), None)
        if found is None:
            return line
        _, line, node = found
    return line


def _pairs(node: yaml.Node | None) -> Iterator[tuple[str, int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key.value, key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield str(index), value.start_mark.line + 1, value
