"""YAML and JSON texts of users as values with the line and column of each.

The one module that parses what a user wrote. It bounds what a small text can cost: nesting, on which libyaml overflows the
stack of the process, and aliases, which can expand to millions of values. Times stay strings, as in Kubernetes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import yaml

from policysched.files import UnreadableFile
from policysched.text import Position

YamlPath = Sequence[str | int]

NESTING_MAX = 100
"""Levels of maps and lists. The deepest custom resource definitions have about 60."""

_OPEN_IN_TEXT_MAX = 1000
"""Open brackets and `- ` before the text is parsed. Brackets in strings count as well, so it is far above `NESTING_MAX`."""

_ALIASED_VALUES_MAX = 100_000
"""Values that aliases may add to a document: nine nested aliases can expand to millions."""

_BRACKETS = re.compile(rb"[\[\]{}]")
_NESTED_IN_LINE = re.compile(rb"(?:[-?:][ \t]+){%d}" % _OPEN_IN_TEXT_MAX)


class InvalidYaml(Exception):
    """A text that cannot be used. `problem` has no position; `position` is None where the parser has none."""

    def __init__(self, problem: str, position: Position | None = None) -> None:
        super().__init__(f"not YAML: {problem}")
        self.problem, self.position = problem, position

    def at(self, name: str) -> str:
        """The message with the name of the file, and line and column if known."""
        at = "" if self.position is None else f":{self.position.line}:{self.position.column}"
        return f"{name}{at}: {self}"


class YamlOverLimit(InvalidYaml):
    """A text that is valid, but nests too deeply or expands too far."""

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True, slots=True)
class KeyProblem:
    """A key that occurs twice in its map, or is not a string. `key` is None for a map or list as key."""

    key: str | None
    start: Position
    end: Position
    is_duplicate: bool


class YamlValue:
    """A map, list or scalar of a text: the document, the value of a key, or an item of a list."""

    def __init__(self, node: yaml.Node, key: yaml.Node | None = None) -> None:
        self._node = node
        self._key = key

    @property
    def is_map(self) -> bool:
        return isinstance(self._node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        return isinstance(self._node, yaml.SequenceNode)

    @property
    def is_null(self) -> bool:
        return self._node.tag == "tag:yaml.org,2002:null"

    @property
    def is_literal_block(self) -> bool:
        """Whether the scalar is a `|` block, whose lines are those of the text."""
        return isinstance(self._node, yaml.ScalarNode) and self._node.style == "|"

    @property
    def scalar(self) -> str | None:
        """The text of a scalar, such as `007`; None for a map or a list."""
        return str(self._node.value) if isinstance(self._node, yaml.ScalarNode) else None

    @property
    def start(self) -> Position:
        return _position(self._node.start_mark)

    @property
    def end(self) -> Position:
        return _position(self._node.end_mark)

    @property
    def key_start(self) -> Position:
        """Where its key begins; for an item of a list or a document, the value."""
        return _position((self._key or self._node).start_mark)

    def entries(self) -> Iterator[tuple[str | None, "YamlValue"]]:
        """The values of a map by key (None: not a scalar), duplicates included; of a list by index."""
        if isinstance(self._node, yaml.MappingNode):
            for key, value in self._node.value:
                yield key.value if isinstance(key, yaml.ScalarNode) else None, YamlValue(value, key)
        elif isinstance(self._node, yaml.SequenceNode):
            for index, value in enumerate(self._node.value):
                yield str(index), YamlValue(value)

    @cached_property
    def children(self) -> dict[str, "YamlValue"]:
        """`entries` by key or index, both as text; the last of a duplicate, which is the one in `construct`."""
        return {key: value for key, value in self.entries() if key is not None}

    def find(self, path: YamlPath) -> "YamlValue":
        """The value at the path, or the nearest one around it."""
        value = self
        for part in path:
            if (child := value.children.get(str(part))) is None:
                break
            value = child
        return value

    def key_problems(self) -> Iterator[KeyProblem]:
        """YAML itself drops the first of two equal keys without a message."""
        pending, visited = [self], {self._node}
        while pending:
            keys: set[str | None] = set()
            for name, entry in pending.pop().entries():
                key = entry._key
                if key is not None and name != "<<":
                    at = _position(key.start_mark), _position(key.end_mark)
                    if key.tag != "tag:yaml.org,2002:str":
                        yield KeyProblem(name, *at, is_duplicate=False)
                    if name in keys and name is not None:
                        yield KeyProblem(name, *at, is_duplicate=True)
                    keys.add(name)
                if entry._node not in visited:
                    visited.add(entry._node)
                    pending.append(entry)

    def construct(self) -> Any:
        """The plain maps, lists, strings, numbers, booleans and nulls. Raises InvalidYaml."""
        loader = _Loader("")
        try:
            return loader.construct_document(self._node)
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a number with thousands of digits
            raise _invalid_yaml(error) from None
        except (LookupError, TypeError, AttributeError):  # of `!!bool x`, `!!int ""` and `!!timestamp x`
            raise InvalidYaml("a value does not fit its tag") from None
        finally:
            loader.dispose()


def read_yaml(text: str) -> YamlValue | None:
    """The one document of a text, None for an empty text. Raises InvalidYaml."""
    _limit_open_brackets(text.encode(errors="surrogatepass"))
    try:
        node = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise _invalid_yaml(error) from None
    return None if node is None else _limited(node)


def read_yaml_documents(text: str | bytes) -> Iterator[YamlValue]:
    """The documents of a text but empty ones, while they are parsed. Raises InvalidYaml."""
    _limit_open_brackets(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            value = _limited(node)
            if not value.is_null:
                yield value
    except (yaml.YAMLError, ValueError) as error:
        raise _invalid_yaml(error) from None


def parse_yaml(text: str) -> Any:
    """The plain value of the one document of a text, None for an empty one. Raises UnreadableFile."""
    try:
        document = read_yaml(text)
        return None if document is None else document.construct()
    except InvalidYaml as error:
        raise UnreadableFile(describe_invalid_yaml(error)) from None


def describe_invalid_yaml(error: InvalidYaml) -> str:
    """`line 3: not YAML: did not find expected key`."""
    return f"line {error.position.line}: {error}" if error.position is not None else str(error)


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]
    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own form)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _position(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)


def _invalid_yaml(error: Exception) -> InvalidYaml:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
    return InvalidYaml(" ".join(str(problem).split()), None if mark is None else _position(mark))


def _limit_open_brackets(text: bytes) -> None:
    """libyaml's composer recurses per level and overflows the stack of the process at some tens of thousands, without an
    exception. Only brackets, and `- - -` in one line, nest that deep in a text of reasonable size: with indentation the
    size grows with the square of the depth."""
    depth = 0
    text = text.replace(b"\0", b"")  # UTF-16
    for bracket in _BRACKETS.finditer(text):
        if bracket[0] in b"[{":
            depth += 1
            if depth > _OPEN_IN_TEXT_MAX:
                break
        else:
            depth = max(0, depth - 1)
    else:
        if _NESTED_IN_LINE.search(text) is None:
            return
    raise YamlOverLimit(f"nests more than {_OPEN_IN_TEXT_MAX} levels deep")


def _limited(node: yaml.Node) -> YamlValue:
    sizes: dict[yaml.Node, float] = {}
    if _expanded_size(node, sizes, 0) - len(sizes) > _ALIASED_VALUES_MAX:
        raise YamlOverLimit(
            f"its aliases expand to more than {_ALIASED_VALUES_MAX:,} values or are recursive"
        )
    return YamlValue(node)


def _expanded_size(node: yaml.Node, sizes: dict[yaml.Node, float], depth: int) -> float:
    """The number of values in a node with its aliases expanded; infinite for a recursive node. `sizes` receives the size of
    every node."""
    if (cached_size := sizes.get(node)) is not None:
        return cached_size
    if isinstance(node, yaml.ScalarNode):
        sizes[node] = 1
        return 1
    if depth == NESTING_MAX:
        raise YamlOverLimit(f"nests more than {NESTING_MAX} levels deep", _position(node.start_mark))
    sizes[node] = inf  # what an alias inside the node sees
    size: float = 1
    for item in node.value:
        for part in item if isinstance(item, tuple) else (item,):
            size += _expanded_size(part, sizes, depth + 1)
    sizes[node] = size
    return size
