"""The messages that a checker can report, read from its source: arguments of `fail`, of `Broken`, and what functions
return as `list[str]` or yield as `Iterator[str]`.

Filled-in values are gaps. A pattern stands for the one message that it matches; a pattern that matches
several stands for none, because any of them would satisfy it.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

GAP = "…"
_GAP_VALUES = (GAP, "0", "2", "[2]", "active", "backoff", "volume v", "device d")
"""Values that patterns expect in gaps: a count, a list, a queue, a volume or a device."""
_REPORTS = ("list[str]", "Iterator[str]")
_REPORTING_CALLS = ("fail", "_fail", "Broken")


def messages_of(paths: Iterable[Path]) -> set[str]:
    return {message for path in paths for message in messages_in(ast.parse(path.read_text(encoding="utf-8")))}


def matched_messages(messages: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """The messages that are the only match of some pattern."""
    matched = set()
    messages = list(messages)
    for pattern in patterns:
        matching = [message for message in messages if _matches(pattern, message)]
        if len(matching) == 1:
            matched.add(matching[0])
    return matched


def _matches(pattern: str, message: str) -> bool:
    return any(re.search(pattern, message.replace(GAP, filling)) for filling in _GAP_VALUES)


def messages_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in _REPORTING_CALLS:
            yield from _texts(node.args[:1])
        elif isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) in _REPORTS:
            yield from _in_function(node)


def _in_function(function: ast.AST) -> Iterator[str]:
    """Elements of the lists in a function, and what it appends or yields."""
    for node in ast.walk(function):
        match node:
            case ast.Return(value=value) | ast.AugAssign(value=value) | ast.Assign(value=value) if (
                value is not None
            ):
                yield from _elements(value)
            case ast.Call(func=ast.Attribute(attr="append"), args=args):
                yield from _texts(args)
            case ast.Yield(value=ast.expr() as value):
                yield from _texts([value])


def _elements(value: ast.expr) -> Iterator[str]:
    match value:
        case ast.List(elts=elements):
            yield from _texts(elements)
        case ast.ListComp(elt=element):
            yield from _texts([element])
        case ast.BinOp(left=left, right=right):
            yield from _elements(left)
            yield from _elements(right)
        case ast.IfExp(body=body, orelse=otherwise):
            yield from _elements(body)
            yield from _elements(otherwise)


def _texts(values: Iterable[ast.expr]) -> Iterator[str]:
    for value in values:
        if isinstance(value, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in value.values)
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
