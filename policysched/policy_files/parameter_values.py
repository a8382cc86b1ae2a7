"""Reads parameter values from outside a policy: keys `NAME.params.yaml` beside it, settings, flags.

Values are texts with spans, as written, so that `007` stays a text and a diagnostic can point at the line.
The checker, which knows the type, converts them. Settings override the ConfigMap, flags override both.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from policysched.lang.check.parameter_values import (
    ALL_POLICIES,
    NO_PARAMETER_VALUES,
    ParameterValue,
    ParameterValues,
    ParameterValuesByPolicy,
    merge_parameter_values,
)
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.policy_files.source_set import PARAMETERS_SUFFIX
from policysched.text import Diagnostic, Source, Span
from policysched.yaml_values import InvalidYaml, YamlValue, read_yaml

SETTINGS_KEY_PREFIX = "settings/"
"""Prefix of the settings' texts beside the keys of the ConfigMap, whose names cannot contain a slash."""

_HEADER = re.compile(r"^[ \t]*policy[ \t]+([-a-z0-9.]+)", re.MULTILINE)
_BYTES_MAX = 64 * 1024


class BadParameterFlag(Exception):
    """A `--param` that is not `NAME=VALUE`. The message is one line and names the flag."""


def settings_parameter_texts(params: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The settings section `params` as texts by key, which are checked with the policies."""
    return {
        f"{SETTINGS_KEY_PREFIX}{policy}{PARAMETERS_SUFFIX}": yaml.safe_dump(dict(values), sort_keys=True)
        for policy, values in params.items()
    }


def parameters_without_policy(texts: Mapping[str, str]) -> list[str]:
    """The policy names that have parameter values, but no policy text."""
    names = {match for text in texts.values() for match in _HEADER.findall(text)}
    policies = [
        key.removeprefix(SETTINGS_KEY_PREFIX).removesuffix(PARAMETERS_SUFFIX)
        for key in texts
        if key.endswith(PARAMETERS_SUFFIX)
    ]
    return sorted(set(policies) - names)


def policy_name_in(text: str) -> str | None:
    """The policy name in the header of a text, or None."""
    match = _HEADER.search(text)
    return None if match is None else match[1]


def invalid_utf8_offset(text: str) -> int | None:
    """The offset of the first invalid UTF-8 byte, which the text holds as a lone surrogate; None if there is none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return len(text[: error.start].encode())
    return None


def read_parameter_values(sources: Mapping[str, Source]) -> ParameterValuesByPolicy:
    """Values by policy. Ignores keys that are not `NAME.params.yaml`."""
    keyed: ParameterValuesByPolicy = {}
    settings: ParameterValuesByPolicy = {}
    for key, source in sources.items():
        if not key.endswith(PARAMETERS_SUFFIX):
            continue
        policy = key.removeprefix(SETTINGS_KEY_PREFIX).removesuffix(PARAMETERS_SUFFIX)
        if key.startswith(SETTINGS_KEY_PREFIX):
            settings = {**settings, policy: _read(source, f"settings, params.{policy}", by_operator=True)}
        else:
            keyed = {**keyed, policy: _read(source, source.origin.note or source.name)}
    return merge_parameter_values(keyed, settings)


def parse_parameter_flags(flags: Iterable[str]) -> ParameterValuesByPolicy:
    """`NAME=VALUE`, for every policy with such a parameter. Raises BadParameterFlag."""
    values: dict[str, ParameterValue] = {}
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not equals or not name.isidentifier():
            raise BadParameterFlag(f"--param {flag}: write NAME=VALUE")
        source = Source("--param", flag)
        values[name] = ParameterValue(text, "--param", Span(source, len(name) + 1, len(flag)), True)
    return {ALL_POLICIES: ParameterValues(values)} if values else NO_PARAMETER_VALUES


def _read(source: Source, location: str, *, by_operator: bool = False) -> ParameterValues:
    if (at := invalid_utf8_offset(source.text)) is not None:
        return _unreadable(Source(source.name, "", source.origin), 0, f"not UTF-8 text (byte {at})")
    if len(source.text.encode()) > _BYTES_MAX:
        return _unreadable(source, 0, f"larger than {_BYTES_MAX // 1024} KiB")
    try:
        document = read_yaml(source.text)
    except InvalidYaml as error:
        return _unreadable(source, 0 if error.position is None else source.offset(error.position), str(error))
    if document is None:
        return ParameterValues()
    if not document.is_map:
        return _unreadable(source, 0, "not a map of names and values")
    values: dict[str, ParameterValue] = {}
    problems: list[Diagnostic] = []
    for name, value in document.entries():
        text = value.scalar if value.scalar is not None else _items(value)
        span = Span(source, source.offset(value.start), source.offset(value.end))
        if name in values:
            problems.append(_parameter_diagnostic(span, f"`{name}` is set twice"))
        elif text is None or not name:
            problems.append(
                _parameter_diagnostic(span, "a parameter must be a single value or a list of values")
            )
        else:
            values[name] = ParameterValue(text, location, _trim_line_end(span), by_operator)
    return ParameterValues(values, tuple(problems))


def _items(value: YamlValue) -> tuple[str, ...] | None:
    """The scalars of a list; None if the value is something else."""
    texts = [item.scalar for _, item in value.entries()] if value.is_list else [None]
    scalars = tuple(text for text in texts if text is not None)
    return scalars if len(scalars) == len(texts) else None


def _trim_line_end(span: Span) -> Span:
    return Span(span.source, span.start, span.start + len(span.text.rstrip()))


def _unreadable(source: Source, offset: int, reason: str) -> ParameterValues:
    return ParameterValues(problems=(_parameter_diagnostic(Span(source, offset, offset), reason),))


def _parameter_diagnostic(span: Span, reason: str) -> Diagnostic:
    return make_diagnostic(
        "PS262",
        f"the parameters cannot be read: {reason}",
        span,
        help="write one parameter per line, such as `crowd: 90`",
    )
