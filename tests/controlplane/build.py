"""Build the control plane's binary from the Go module in `src/`, once for the user's cache folder.

`src/go.mod` is for the newest release of Kubernetes; `KUBERNETES=1.36` in the environment chooses
an older one, by its own go.mod (`src/kubernetes-1.36.mod`).

By hand: `python -m tests.controlplane.build` prints the path.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.go_program import BuildFailed, GoProgram, say

SOURCES = Path(__file__).parent / "src"
RELEASE_VARIABLE = "KUBERNETES"
GO_MODS = {"1.37": "go.mod", "1.36": "kubernetes-1.36.mod"}
"""Minor release of Kubernetes to its go.mod in `src/`; the default first."""


def kubernetes_version(environ: Mapping[str, str] = os.environ) -> str:
    """The version of k8s.io/kubernetes in the chosen go.mod, such as `v1.37.2`."""
    path = _go_mod(environ)
    match = re.search(r"^\s*k8s\.io/kubernetes (v\S+)$", path.read_text(), re.MULTILINE)
    assert match, f"no k8s.io/kubernetes in {path}"
    return match.group(1)


def cached_binary(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The cached binary of these sources. Without `go` on the PATH, a build by any Go version is
    accepted.
    """
    return _program(environ).cached_binary(environ)


def make_binary(environ: Mapping[str, str] = os.environ) -> Path:
    """Build the binary unless another process has just done so. Raises `BuildFailed`; progress goes
    to stderr.
    """
    if shutil.which("go", path=environ.get("PATH")) is None:
        raise BuildFailed(
            "no control plane: KUBEBUILDER_ASSETS does not have it, none is cached, and `go` is not on the PATH to build one"
        )
    return _program(environ).make_binary(environ)


def sources_key(environ: Mapping[str, str] = os.environ) -> str:
    return _program(environ).sources_key()


def _program(environ: Mapping[str, str]) -> GoProgram:
    go_mod = _go_mod(environ)
    return GoProgram(
        name="controlplane",
        title=f"the control plane ({kubernetes_version(environ)})",
        sources=SOURCES,
        go_mod=go_mod.name,
        inputs={"go.mod": go_mod, "go.sum": go_mod.with_suffix(".sum"), "main.go": SOURCES / "main.go"},
        flags=_flags(environ),
    )


def _go_mod(environ: Mapping[str, str]) -> Path:
    """The go.mod of the release that the environment chooses. Raises `BuildFailed` if there is
    none.
    """
    release = environ.get(RELEASE_VARIABLE) or next(iter(GO_MODS))
    if release not in GO_MODS:
        raise BuildFailed(
            f"no control plane: {RELEASE_VARIABLE} is {release!r}; it can be {' or '.join(GO_MODS)}"
        )
    return SOURCES / GO_MODS[release]


def _flags(environ: Mapping[str, str]) -> list[str]:
    """Flags of `go build` as for a release, without debug information, which makes linking faster
    and the binary smaller.
    """
    version = kubernetes_version(environ)
    major, minor, _ = version.removeprefix("v").split(".", 2)
    stamp = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "archive",
    }
    stamped = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in stamp.items())
    return [
        "-trimpath",
        "-buildvcs=false",
        "-mod=readonly",
        "-tags=grpcnotrace,selinux",
        f"-ldflags=-s -w {stamped}",
    ]


def main() -> int:
    try:
        print(cached_binary() or make_binary())
    except BuildFailed as failure:
        say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
