"""JSON schemas of the files that users write and of the JSON output, and the check against them.

A finding has the path of the value (`lease.lease_duration_s`) and, for YAML, the line.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import jsonschema
import orjson

from policysched.text.quote_value import quote_value
from policysched.yaml_values import YamlValue, read_yaml


@cache
def schema(name: str) -> dict[str, Any]:
    """A schema by its file's stem, such as `schema("settings")`."""
    content: dict[str, Any] = orjson.loads((files(__package__) / f"{name}.json").read_bytes())
    return content


def findings(name: str, value: Any, text: str = "") -> list[str]:
    """The violations of the schema, one line each, in the order of the document. `text`: the YAML of the value."""
    lines = KeyLines(text)
    return [lines.located_message(path, reason) for path, reason in schema_violations(name, value, lines)]


def schema_violations(name: str, value: Any, lines: "KeyLines | None" = None) -> list[tuple[list[Any], str]]:
    """The violations as paths (keys and indexes from the top) and messages, in the order of `lines` if given."""
    validator = jsonschema.Draft202012Validator(schema(name))
    errors = sorted(
        validator.iter_errors(value), key=lambda error: [str(part) for part in error.absolute_path]
    )
    violations = [violation for error in errors for violation in _violations_of(error)]
    return (
        violations if lines is None else sorted(violations, key=lambda violation: lines.of(violation[0]) or 0)
    )


_TYPES = {
    "object": "a map",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def _violations_of(error: jsonschema.ValidationError) -> Iterator[tuple[list[Any], str]]:
    rule, path = error.schema, list(error.absolute_path)
    if "propertyNames" in error.absolute_schema_path:
        yield [*path, error.instance], violation_message(error)
        return
    if error.validator != "additionalProperties" or not isinstance(rule, dict):
        yield path, violation_message(error)
        return
    properties, instance = rule.get("properties", {}), error.instance
    assert isinstance(instance, dict), instance
    for name in instance:
        if name not in properties:
            yield [*path, name], f"is unknown here{_suggestion(str(name), properties)}"


_NEW_NAMES = {
    "answer_bytes_max": "response_bytes_max",
    "at_once": "concurrent_calls_max",
    "authority": "policy_permissions",
    "binders": "concurrent_binds_max",
    "compile_timeout_s": "check_timeout_s",
    "decisions_kept": "decision_records_max",
    "duration_s": "lease_duration_s",
    "events_waiting_max": "queued_events_max",
    "held_back_above": "queued_binds_max",
    "policy_timeout_s": "policy_check_timeout_s",
    "retry_s": "retry_period_s",
    "series_every_s": "series_update_interval_s",
    "stop_wait_s": "shutdown_timeout_s",
    "vain_attempts_share": "failed_attempts_share",
    "whole_nodes": "send_node_objects",
    "writers": "concurrent_writes_max",
}
"""The renamed settings of CHANGELOG.md, by their old names."""
_OTHER_WORDS = {"resources": "requests", "requests": "resources"}
"""Pods request, nodes have."""


def _suggestion(name: str, properties: Mapping[str, Any]) -> str:
    if (new_name := _NEW_NAMES.get(name)) in properties:
        return f"; its new name is `{new_name}`"
    other = _OTHER_WORDS.get(name)
    matches = [other] if other in properties else get_close_matches(name, properties, n=1)
    return f"; did you mean `{matches[0]}`?" if matches else ""


def violation_message(error: jsonschema.ValidationError) -> str:
    """Own wording where the message of the library shows values as Python writes them."""
    rule = error.schema if isinstance(error.schema, dict) else {}
    # `writeOnly`: the value may be a credential and is not printed.
    is_given = "" if rule.get("writeOnly") else f"is {quote_value(error.instance)}, "
    form, wanted = rule.get("description"), error.validator_value
    match error.validator, wanted:
        case "pattern" | "anyOf", _ if form:
            return f"{is_given}expected {form}"
        case "type", str() | list():
            names = [wanted] if isinstance(wanted, str) else wanted
            return f"{is_given}expected {' or '.join(_TYPES[type_name] for type_name in names)}"
        case "enum", list():
            return f"{is_given}expected {' or '.join(quote_value(value) for value in wanted)}"
        case "minLength" | "minItems", _ if not error.instance:
            return "is empty"
        case _:
            return error.message


class KeyLines:
    """The lines of the keys of a YAML text. An empty text has none."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _root(self) -> YamlValue | None:
        return read_yaml(self._text)

    def of(self, path: Sequence[Any]) -> int | None:
        """The line (from 1) of the key that the path ends in, or of the last on the way to it."""
        if self._root is None:
            return None
        value = self._root.find(path)
        return None if value is self._root else value.key_start.line

    def located_message(self, path: Sequence[Any], reason: str) -> str:
        """`line 3: binding.concurrent_binds_max: is zero`."""
        line = self.of(path)
        where = ".".join(str(part) for part in path) or "(top level)"
        return f"{'' if line is None else f'line {line}: '}{where}: {reason}"
