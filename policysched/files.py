"""Files that people write, as bytes, text and YAML, and words for each way in which one cannot be read.

`-` is standard input. The words leave out which file it is: whoever asked for it says so in its own way.
"""

import os
import sys
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

STANDARD_INPUT = "-"


TEXT_BYTES_MAX = 64 * 2**20
"""What people write is shorter by far; a pipe that never ends would take all of the machine's memory. Clusters have no such limit."""

YAML_ALIASED_VALUES_MAX = 100_000
"""So many values may aliases add to a document: nine of them within each other stand for millions."""


class UnreadableFile(Exception):
    """Why, in a few words."""


# pathlib's own raise where the way to a file is barred, or its name is too long.


def is_folder(path: str | Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: str | Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113


def path_exists(path: str | Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110


def read_bytes(path: str | Path, *, bytes_max: int | None = None) -> bytes:
    """Raises Unreadable, also where there is more."""
    content = _read(path, -1 if bytes_max is None else bytes_max + 1)
    if bytes_max is not None and len(content) > bytes_max:
        raise UnreadableFile(f"more than {bytes_max // 2**20} MiB, and so no file of this kind")
    return content


def _read(path: str | Path, most: int) -> bytes:
    try:
        if path == "":
            raise UnreadableFile("an empty name is no file's")
        if path != STANDARD_INPUT:
            with Path(path).open("rb") as file:
                return file.read(most)
        if sys.stdin is None:  # `<&-`
            raise UnreadableFile("standard input is closed")
        return sys.stdin.buffer.read(most)
    except FileNotFoundError:
        raise UnreadableFile("no such file") from None
    except OSError as error:
        which = "standard input cannot be read: " if path == STANDARD_INPUT else ""
        raise UnreadableFile(f"{which}{error.strerror or error}") from None
    except ValueError as error:  # a name with a NUL in it
        raise UnreadableFile(str(error)) from None


def read_text(path: str | Path) -> str:
    """UTF-8, as `normalize_text`. Raises Unreadable."""
    try:
        return normalize_text(read_bytes(path, bytes_max=TEXT_BYTES_MAX).decode())
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"not UTF-8 text (byte {error.start})") from None


def normalize_text(text: str) -> str:
    """Without a byte order mark, with line ends of any kind as `\\n`."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def parse_yaml(text: str) -> Any:
    """The value of a YAML document; None of an empty one. Raises Unreadable."""
    import yaml  # here, for who reads policies alone needs none

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        known: dict[yaml.Node, float] = {}
        if _expanded_size(node, known) - len(known) > YAML_ALIASED_VALUES_MAX:
            raise UnreadableFile(
                f"its aliases add more than {YAML_ALIASED_VALUES_MAX:,} values, or hold themselves"
            )
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}: " if mark is not None else ""
        raise UnreadableFile(f"{place}not YAML: {error.problem or error.context}") from None
    # ValueError and RecursionError: a date such as 2026-99-99, a number of thousands of digits, brackets without end.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableFile(f"not YAML: {' '.join(str(error).split())}") from None


def _expanded_size(node: "yaml.Node", known: "dict[yaml.Node, float]") -> float:
    """How many values a node stands for, each alias counted where it stands; infinite where a node holds itself. `known` gets every
    node once."""
    if node not in known:
        known[node] = inf  # as an alias to it finds it from within
        inside = node.value if not isinstance(node.value, str) else ()
        parts = (part for one in inside for part in (one if isinstance(one, tuple) else (one,)))
        known[node] = 1 + sum(_expanded_size(part, known) for part in parts)
    return known[node]
