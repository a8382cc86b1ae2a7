"""Build upstream's tests of a scheduler, and kubemark's hollow node to run them on, from the Go module in `src/`.

By hand: `python -m tests.upstream.build` prints the path of the binary; `PATH e2e --list-tests` lists the tests.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.go_program import BuildFailed, GoProgram, say

SOURCES = Path(__file__).parent / "src"
FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-tags=grpcnotrace,selinux", "-ldflags=-s -w")
"""Those of the control plane without its version stamp: the package cache is shared with its build."""


def upstream_binary(environ: Mapping[str, str] = os.environ) -> Path:
    """The cached binary of these sources, or a new build. Raises `BuildFailed`; progress goes to stderr."""
    program = GoProgram(
        name="upstream",
        title="upstream's scheduler tests",
        sources=SOURCES,
        go_mod="go.mod",
        inputs={name: SOURCES / name for name in ("go.mod", "go.sum", "main.go")},
        flags=FLAGS,
    )
    return program.binary(environ)


def main() -> int:
    try:
        print(upstream_binary())
    except BuildFailed as failure:
        say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
