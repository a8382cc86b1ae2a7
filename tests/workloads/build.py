"""Build the controllers of JobSet and LeaderWorkerSet from their Go modules, with the manifests that install them.

Their go.mods have the control plane's versions of what both use, so that Go's cache is shared with its build.

By hand: `python -m tests.workloads.build` prints the paths.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.go_program import BuildFailed, GoProgram, say

SOURCES = Path(__file__).parent / "src"
PACKAGES = {
    "jobset": "sigs.k8s.io/jobset",
    "lws": "sigs.k8s.io/lws/cmd",
}
MANIFESTS = "config"
"""The folder beside the binary whose `default` is what `kubectl apply -k` would install."""

FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-tags=grpcnotrace,selinux", "-ldflags=-s -w")
"""Those of the control plane without its version stamp: the package cache is shared with its build."""


def controller_binary(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The cached binary, or a new build. Raises `BuildFailed`; progress goes to stderr."""
    folder = SOURCES / name
    program = GoProgram(
        name=name,
        title=f"the controllers of {name}",
        sources=folder,
        go_mod="go.mod",
        inputs={file: folder / file for file in ("go.mod", "go.sum")},
        flags=FLAGS,
        package=PACKAGES[name],
        folders={MANIFESTS: (f"sigs.k8s.io/{name}", "config")},
    )
    return program.cached_binary(environ) or program.make_binary(environ)


def main() -> int:
    try:
        for name in PACKAGES:
            print(controller_binary(name))
    except BuildFailed as failure:
        say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
