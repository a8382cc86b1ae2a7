"""The texts that a policy had since this process started, for the page."""

import difflib
import re
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from policysched.lang.ir.program import Program

_VERSIONS_MAX = 20
_LINES_COMPARED_MAX = 500
"""Of a changed part. The time of a comparison grows with the square of the lines: 8,000 would take the main loop seconds."""
_LINES_SHOWN_MAX = 200
_CHARACTERS_SHOWN_MAX = 300


@dataclass(frozen=True, slots=True)
class _PolicyVersion:
    """`diff`: from the version before."""

    sha256: str
    seen_ns: int
    diff: list[str]


class PolicyHistory:
    """The latest versions of each policy. Of texts that are active for less than the time between two observations, only
    the last is seen."""

    def __init__(self) -> None:
        self._versions: dict[str, deque[_PolicyVersion]] = {}
        self._latest_lines: dict[str, list[str]] = {}

    def observe(self, name: str, program: Program, now_ns: int) -> None:
        """The program that runs now."""
        versions = self._versions.setdefault(name, deque(maxlen=_VERSIONS_MAX))
        if not versions or versions[-1].sha256 != program.sha256:
            # The formatted text with its includes: what the hash covers.
            lines = program.text.splitlines()
            diff = _diff(self._latest_lines[name], lines) if versions else []
            versions.append(_PolicyVersion(program.sha256, now_ns, diff))
            self._latest_lines[name] = lines

    def keep_only(self, names: Collection[str]) -> None:
        """Forget policies that are gone: a team can rename its own at each edit."""
        for name in [name for name in self._versions if name not in names]:
            del self._versions[name], self._latest_lines[name]

    def of(self, name: str) -> list[dict[str, Any]]:
        """Newest first, each with the diff from the version before; the oldest has none."""
        versions = list(self._versions.get(name, ()))
        return [
            {
                "sha256": version.sha256,
                "seen_ms": version.seen_ns // 1_000_000,
                "diff": [] if version is versions[0] else version.diff,
            }
            for version in reversed(versions)
        ]


def _diff(old: list[str], new: list[str]) -> list[str]:
    """Only the part between the first and the last change is compared, and not if it is long."""
    before = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    ends = zip(reversed(old[before:]), reversed(new[before:]), strict=False)
    after = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    changed = max(len(old), len(new)) - before - after
    if changed > _LINES_COMPARED_MAX:
        return [f"@@ {changed} lines changed @@"]
    # With a few lines of context.
    first, last = max(0, before - 2), max(0, after - 2)
    old, new = (lines[first : len(lines) - last] for lines in (old, new))
    diff = list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    shown = [_moved(line, first)[:_CHARACTERS_SHOWN_MAX] for line in diff[:_LINES_SHOWN_MAX]]
    return shown if len(diff) <= _LINES_SHOWN_MAX else [*shown, "@@ more lines changed @@"]


def _moved(line: str, by: int) -> str:
    """The head of a hunk, `@@ -3,4 +3,5 @@`, with the numbers of the whole text; another line as it is."""
    if not line.startswith("@@ "):
        return line
    return re.sub(r"(?<=[-+])\d+", lambda number: str(int(number[0]) + by), line)
