"""Every sentence that a watcher can say, read from its source: what is given to `fail`, raised as `Broken`, or put among the wrongs
that a function answers as `list[str]`.

What is filled in is a gap. A pattern asks for a sentence where it finds itself in the words around the gaps, and one that finds
itself in several asks for none: it would be content with any of them.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

GAP = "…"
_FILLINGS = (GAP, "0", "2", "[2]", "active", "backoff", "volume v", "device d")
"""What patterns expect in gaps, where they say it: how often, a list, a queue, what is promised."""
_SAY = ("fail", "_fail", "Broken")


def sentences_of(paths: Iterable[Path]) -> set[str]:
    """With their gaps."""
    return {one for path in paths for one in in_module(ast.parse(path.read_text(encoding="utf-8")))}


def asked_for(sentences: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """Those that some pattern asks for, and for no other."""
    found = set()
    sentences = list(sentences)
    for pattern in patterns:
        matching = [one for one in sentences if _finds_itself(pattern, one)]
        if len(matching) == 1:
            found.add(matching[0])
    return found


def _finds_itself(pattern: str, sentence: str) -> bool:
    return any(re.search(pattern, sentence.replace(GAP, filling)) for filling in _FILLINGS)


def in_module(tree: ast.Module) -> Iterator[str]:
    """Of one source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in _SAY:
            yield from _told(node.args[:1])
        elif isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) == "list[str]":
            yield from _answered(node)


def _answered(function: ast.AST) -> Iterator[str]:
    """Elements of the lists that a function answers or adds to them, and what it appends."""
    for node in ast.walk(function):
        match node:
            case ast.Return(value=value) | ast.AugAssign(value=value) | ast.Assign(value=value) if (
                value is not None
            ):
                yield from _elements(value)
            case ast.Call(func=ast.Attribute(attr="append"), args=args):
                yield from _told(args)


def _elements(value: ast.expr) -> Iterator[str]:
    match value:
        case ast.List(elts=elements):
            yield from _told(elements)
        case ast.ListComp(elt=element):
            yield from _told([element])
        case ast.BinOp(left=left, right=right):
            yield from _elements(left)
            yield from _elements(right)
        case ast.IfExp(body=body, orelse=otherwise):
            yield from _elements(body)
            yield from _elements(otherwise)


def _told(values: Iterable[ast.expr]) -> Iterator[str]:
    for value in values:
        if isinstance(value, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else GAP for one in value.values)
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
