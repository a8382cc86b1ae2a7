"""The policy texts of one path, and the error for a path that cannot be used."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.text import Source


class UnusableFile(Exception):
    """A file that cannot be read or has no policy. The message is one line: which file and why."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """The location of a text in a YAML file: lines count from 0, each indented by `indent` spaces."""

    first_line: int
    line_count: int
    indent: int


@dataclass(frozen=True, slots=True)
class SourceSet:
    """Texts by key. `requested` are the keys that the user named; the others can be included.

    `blocks` has the keys that are block scalars of a YAML file, `quoted_keys` those that are quoted scalars. `params`
    are the keys with parameter values.
    """

    path: str
    sources: Mapping[str, Source]
    requested: frozenset[str]
    blocks: Mapping[str, TextBlock]
    quoted_keys: frozenset[str] = frozenset()
    params: Mapping[str, Source] = field(default_factory=dict)


POLICY_SUFFIX = ".policy"

PARAMETERS_SUFFIX = ".params.yaml"

REMOVED_SUFFIX = ".removed"
"""A key `NAME.removed` removes the policy NAME. Its value is the reason, which may be empty."""
_POLICY_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")


def removed_name(key: str) -> str | None:
    """The policy that a key `NAME.removed` removes; None for other keys."""
    name = key.removesuffix(REMOVED_SUFFIX)
    return name if name != key and _POLICY_NAME.fullmatch(name) else None
