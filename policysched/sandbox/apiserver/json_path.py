"""The simple JSON paths of printer columns: `.spec.replicas`, `.a['b.c']`, `.conditions[?(@.type=="Ready")].status`, `.a[0]`,
`.a[*].b`."""

import re
from collections.abc import Callable
from typing import Any

Step = Callable[[list[Any]], list[Any]]

_STEP = re.compile(
    r"""\.(?P<field>(?:[^.\[\]\\]|\\.)+)"""
    r"""|\[\s*'(?P<quoted>[^']*)'\s*\]|\[\s*"(?P<double>[^"]*)"\s*\]"""
    r"""|\[\s*(?P<index>-?\d+)\s*\]|(?P<all>\[\*\]|\.\*)"""
    r"""|\[\?\(\s*@(?P<key>(?:\.[^\s=.]+)+)\s*==\s*(?:'(?P<text>[^']*)'|"(?P<text2>[^"]*)"|(?P<word>[^\s)]+))\s*\)\]"""
)


def parse_json_path(text: str) -> Callable[[Any], list[Any]] | None:
    """A function from an object to the values at the path. None: not supported."""
    steps: list[Step] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None:
            return None
        steps.append(_step(match))
        at = match.end()

    def values_of(obj: Any) -> list[Any]:
        values = [obj]
        for step in steps:
            values = step(values)
        return values

    return values_of if steps else None


def _step(match: re.Match[str]) -> Step:
    if match["all"]:
        return lambda values: [item for value in values for item in _items(value)]
    if match["index"]:
        index = int(match["index"])
        return lambda values: [
            value[index] for value in values if isinstance(value, list) and -len(value) <= index < len(value)
        ]
    if match["key"]:
        path = match["key"][1:].split(".")
        wanted = next(match[name] for name in ("text", "text2", "word") if match[name] is not None)
        return lambda values: [
            item for value in values for item in _items(value) if _text(_field(item, path)) == wanted
        ]
    quoted = match["quoted"] if match["quoted"] is not None else match["double"]
    name = quoted if quoted is not None else re.sub(r"\\(.)", r"\1", match["field"])
    return lambda values: [value[name] for value in values if isinstance(value, dict) and name in value]


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _field(value: Any, path: list[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
