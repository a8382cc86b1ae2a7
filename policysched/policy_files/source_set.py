"""The policy texts of one path, and the error for a path that cannot be used."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.text import Source


class UnusableFile(Exception):
    """A file that cannot be read, or holds no policy. The text says which and why, on one line."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Where a text stands in a YAML file: lines counted from 0, `indent` spaces before each."""

    first_line: int
    line_count: int
    indent: int


@dataclass(frozen=True, slots=True)
class SourceSet:
    """Texts by key. `requested` are the keys the user named; the others are there to be included.

    `blocks` has the keys that are block scalars of a YAML file; `quoted_keys` those that are quoted scalars of one. `params` are the keys with values
    for parameters.
    """

    path: str
    sources: Mapping[str, Source]
    requested: frozenset[str]
    blocks: Mapping[str, TextBlock]
    quoted_keys: frozenset[str] = frozenset()
    params: Mapping[str, Source] = field(default_factory=dict)


POLICY_SUFFIX = ".policy"

PARAMETERS_SUFFIX = ".params.yaml"
