"""Policies from files: bare texts, the keys of ConfigMaps in YAML, folders, and standard input.

What belongs together (the keys of one ConfigMap, the files of one folder) is one `SourceSet`, since `include` looks
there. Each text knows where it stands in its file, so that what is said about it points into the file that the user
has open.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import yaml

from policysched.text import Origin, Position, Source

SUFFIX = ".policy"
_YAML_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_INCLUDED = re.compile(r'^[ \t]*include[ \t]+"([^"\n]+)"', re.MULTILINE)
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnusableFile(Exception):
    """A file that cannot be read, or holds no policy. The text says which and why, on one line."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text stands in a YAML file: lines counted from 0, `indent` spaces before each."""

    first_line: int
    line_count: int
    indent: int


@dataclass(frozen=True, slots=True)
class SourceSet:
    """Texts by key. `asked` are the keys the user named; the others are there to be included.

    `places` has the keys that are block scalars of a YAML file; `quoted` those that are quoted scalars of one.
    """

    path: str
    sources: Mapping[str, Source]
    asked: frozenset[str]
    places: Mapping[str, Place]
    quoted: frozenset[str] = frozenset()


def load_policy_sources(
    paths: Sequence[str], *, stdin: TextIO | None = None, stdin_name: str = "-"
) -> list[SourceSet]:
    """What the paths hold, in their order. Raises UnusableFile for the first that cannot be used."""
    sets: list[SourceSet] = []
    for path in paths:
        if path == "-":
            if stdin is None:
                raise UnusableFile("-: standard input cannot be read here")
            sets.extend(sources_of_text(stdin.read(), stdin_name))
        elif Path(path).is_dir():
            sets.extend(_folder(Path(path)))
        else:
            sets.extend(sources_of_text(_read(Path(path)), path))
    return sets


def sources_of_text(text: str, name: str) -> list[SourceSet]:
    """One file's text. It is YAML where its name says so, or where it begins like a Kubernetes object."""
    if Path(name).suffix in _YAML_SUFFIXES or _looks_like_an_object(text):
        sets = list(_config_maps(text, name))
        if not sets:
            raise UnusableFile(f"{name}: no ConfigMap in it has a key that ends in {SUFFIX}")
        return sets
    key = Path(name).name
    sources = {key: Source(name, text)}
    _add_included(sources, text, Path(name).parent)
    return [SourceSet(name, sources, frozenset({key}), {})]


def _folder(folder: Path) -> Iterator[SourceSet]:
    """Every policy and every ConfigMap with policies below; a YAML file without any is passed over."""
    found = False
    here: dict[Path, dict[str, Source]] = {}
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        if path.is_file():
            here.setdefault(path.parent, {})[path.name] = Source(str(path), _read(path))
    for parent, sources in here.items():
        found = True
        yield SourceSet(str(parent), sources, frozenset(sources), {})
    for path in sorted(
        path for path in folder.rglob("*") if path.suffix in _YAML_SUFFIXES and path.is_file()
    ):
        text = _read(path)
        if SUFFIX in text and "ConfigMap" in text:
            for one in _config_maps(text, str(path)):
                found = True
                yield one
    if not found:
        raise UnusableFile(
            f"{folder}: no policy below it (files that end in {SUFFIX}, or ConfigMaps with such keys)"
        )


def _add_included(sources: dict[str, Source], text: str, folder: Path) -> None:
    """The files beside it that a text includes, and those that these include."""
    pending = _INCLUDED.findall(text)
    while pending:
        key = pending.pop()
        path = folder / key
        if key in sources or Path(key).name != key or not path.is_file():
            continue  # the checker says that it is missing
        sources[key] = Source(str(path), _read(path))
        pending.extend(_INCLUDED.findall(sources[key].text))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UnusableFile(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UnusableFile(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UnusableFile(f"{path}: {error.strerror or error}") from None


# ── ConfigMaps ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _looks_like_an_object(text: str) -> bool:
    return re.match(r"(?:---|\s|#[^\n]*\n)*(?:apiVersion|kind)\s*:|\s*\{\s*\"", text) is not None


def _config_maps(text: str, name: str) -> Iterator[SourceSet]:
    lines = text.split("\n")
    try:
        documents = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0]
        raise UnusableFile(f"{name}{place}: not YAML: {problem}") from None
    for document in documents:
        for config_map in _objects(document):
            one = _config_map(config_map, name, lines)
            if one is not None:
                yield one


def _objects(node: yaml.Node | None) -> Iterator[dict[str, tuple[yaml.Node, yaml.Node]]]:
    fields = _fields(node)
    kind = _word(fields, "kind")
    if kind == "ConfigMap":
        yield fields
    elif (
        kind is not None
        and kind.endswith("List")
        and isinstance(items := _value(fields, "items"), yaml.SequenceNode)
    ):
        for item in items.value:
            yield from _objects(item)


def _config_map(
    fields: dict[str, tuple[yaml.Node, yaml.Node]], name: str, lines: list[str]
) -> SourceSet | None:
    metadata = _fields(_value(fields, "metadata"))
    called = "/".join(word for word in (_word(metadata, "namespace"), _word(metadata, "name")) if word)
    sources: dict[str, Source] = {}
    places: dict[str, Place] = {}
    quoted: set[str] = set()
    for key, (key_node, node) in _fields(_value(fields, "data")).items():
        if not key.endswith(SUFFIX) or not isinstance(node, yaml.ScalarNode):
            continue
        note = f"ConfigMap {called}, key {key}" if called else f"ConfigMap, key {key}"
        place = _place(node, lines) if node.style == "|" else None
        if place is None:
            at = Position(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            origin = Origin(note=note, fixed=at)
            quoted.add(key)
        else:
            origin = Origin(place.first_line, place.indent, note)
            places[key] = place
        sources[key] = Source(name, node.value, origin)
    if not sources:
        return None
    return SourceSet(name, sources, frozenset(sources), places, frozenset(quoted))


def _place(node: yaml.ScalarNode, lines: list[str]) -> Place | None:
    """A block scalar begins on the line behind its `|`; its indent shows on the first line that is not empty."""
    first = node.start_mark.line + 1
    content = node.value.split("\n")
    if content[-1] == "":
        content.pop()
    for number, line in enumerate(content):
        if line.strip(" "):
            in_file = lines[first + number]
            indent = len(in_file) - len(in_file.lstrip(" ")) - (len(line) - len(line.lstrip(" ")))
            return Place(first, len(content), indent)
    return None


def _fields(node: yaml.Node | None) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _value(fields: dict[str, tuple[yaml.Node, yaml.Node]], key: str) -> yaml.Node | None:
    return fields[key][1] if key in fields else None


def _word(fields: dict[str, tuple[yaml.Node, yaml.Node]], key: str) -> str | None:
    node = _value(fields, key)
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None
