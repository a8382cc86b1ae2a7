"""A YAML text as plain values and the span of each, for diagnostics of a test file.

Times stay strings. A duplicate key is an error, since YAML would silently drop the first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.policy_files.yaml_depth import NESTING_MAX, nests_too_deep
from policysched.text import Diagnostic, Source, Span

Path = tuple[str | int, ...]


class UnusableTestFile(Exception):
    """A test file that cannot be used: `diagnostics`."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(f"{len(diagnostics)} diagnostic(s)")
        self.diagnostics = diagnostics


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """`values` are plain maps, lists, strings, numbers, booleans and nulls; `spans` are by path."""

    source: Source
    values: Any
    spans: Mapping[Path, Span]

    def span(self, *path: str | int) -> Span:
        """The span of the value at the path, or of its nearest ancestor in the text."""
        while path not in self.spans:
            path = path[:-1]
        return self.spans[path]


class _Loader(yaml.SafeLoader):
    """SafeLoader without times: `2026-01-01T00:00:00Z` stays a string, as in Kubernetes fields."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own form)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parse_document(source: Source) -> YamlDocument:
    """Raises UnusableTestFile."""
    whole = Span(source, 0, 0)
    if nests_too_deep(source.text.encode()):
        raise UnusableTestFile(
            (unusable_diagnostic(f"the text nests more than {NESTING_MAX} levels deep", whole),)
        )
    try:
        loader = _Loader(source.text)
        node = loader.get_single_node()
        spans: dict[Path, Span] = {}
        duplicates = () if node is None else tuple(_collect_spans(node, (), source, spans))
        values = None if node is None or duplicates else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = whole if mark is None else Span(source, mark.index, mark.index)
        raise UnusableTestFile((unusable_diagnostic(f"not YAML: {error.problem}", at),)) from error
    # ValueError and RecursionError: a number of thousands of digits, endless brackets.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        message = " ".join(str(error).split())
        raise UnusableTestFile((unusable_diagnostic(f"not YAML: {message}", whole),)) from error
    if duplicates:
        raise UnusableTestFile(duplicates)
    if not isinstance(values, dict):
        raise UnusableTestFile(
            (unusable_diagnostic("a test file must be a map with `policy` and `tests`", whole),)
        )
    return YamlDocument(source, values, spans)


def unusable_diagnostic(message: str, span: Span, *, help: str = "") -> Diagnostic:  # noqa: A002 (as in Diagnostic)
    return make_diagnostic("PS703", message, span, help=help)


_VALUES_MAX = 200_000
_TEXT_TAG = "tag:yaml.org,2002:str"
_MERGE = "<<"


def _collect_spans(
    node: yaml.Node, path: Path, source: Source, spans: dict[Path, Span]
) -> Iterator[Diagnostic]:
    spans[path] = _span(node, source)
    if len(spans) > _VALUES_MAX or len(path) > _NESTING_MAX:
        # Nested aliases, or one that contains itself.
        raise UnusableTestFile(
            (unusable_diagnostic(f"more than {_VALUES_MAX} values, or nested too deeply", spans[path]),)
        )
    match node:
        case yaml.MappingNode():
            keys: set[str] = set()
            for key, value in node.value:
                if key.value == _MERGE:
                    continue
                if key.tag != _TEXT_TAG:
                    yield unusable_diagnostic(
                        f"the key `{key.value}` is not a string; put it in quotes", _span(key, source)
                    )
                if key.value in keys:
                    yield unusable_diagnostic(f"duplicate key `{key.value}`", _span(key, source))
                keys.add(key.value)
                yield from _collect_spans(value, (*path, key.value), source, spans)
        case yaml.SequenceNode():
            for index, value in enumerate(node.value):
                yield from _collect_spans(value, (*path, index), source, spans)


_NESTING_MAX = 100


def _span(node: yaml.Node, source: Source) -> Span:
    """The node up to the end of its first line."""
    start, end = node.start_mark.index, node.end_mark.index
    line_end = source.text.find("\n", start)
    return Span(source, start, end if line_end < 0 else max(start, min(end, line_end)))
