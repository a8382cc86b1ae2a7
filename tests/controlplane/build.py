"""Build the control plane's binary from the Go module in `src/`, and keep it in the user's cache
folder.

    ~/.cache/policysched/controlplane/<key of the sources>-<Go version>/controlplane

The key covers all inputs of the build, so a binary is never stale and two checkouts share one. Test
workers that need it at the same time wait at a lock, and a finished binary appears by one rename: a
build that is killed leaves no incomplete binary.

`src/go.mod` is for the newest release of Kubernetes; `KUBERNETES=1.36` in the environment chooses
an older one, by its own go.mod (`src/kubernetes-1.36.mod`).

By hand: `python -m tests.controlplane.build` prints the path.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
RELEASE_VARIABLE = "KUBERNETES"
GO_MODS = {"1.37": "go.mod", "1.36": "kubernetes-1.36.mod"}
"""Minor release of Kubernetes to its go.mod in `src/`; the default first."""

BINARY_NAME = "controlplane"
PROGRESS_EVERY_S = 15.0


class BuildFailed(Exception):
    """The binary cannot be built here; the message says why."""


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
    go = shutil.which("go", path=environ.get("PATH"))
    try:
        version = _go_version(go, environ) if go else "*"
    except BuildFailed:
        version = "*"
    for folder in sorted(_cache(environ).glob(f"{sources_key(environ)}-{version}")):
        if (folder / BINARY_NAME).is_file():
            return folder / BINARY_NAME
    return None


def make_binary(environ: Mapping[str, str] = os.environ) -> Path:
    """Build the binary unless another process has just done so. Raises `BuildFailed`; progress goes
    to stderr.
    """
    go = shutil.which("go", path=environ.get("PATH"))
    if go is None:
        raise BuildFailed(
            "no control plane: KUBEBUILDER_ASSETS does not have it, none is cached, and `go` is not on the PATH to build one"
        )
    cache = _cache(environ)
    target = cache / f"{sources_key(environ)}-{_go_version(go, environ)}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / BINARY_NAME).is_file():
            unfinished = cache / f"unfinished-{target.name}"
            shutil.rmtree(
                unfinished, ignore_errors=True
            )  # left by a build that was killed: this process holds the lock
            unfinished.mkdir()
            try:
                _run_go_build(go, unfinished / BINARY_NAME, environ)
                unfinished.rename(target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return target / BINARY_NAME


def _cache(environ: Mapping[str, str]) -> Path:
    root = environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "policysched" / "controlplane"


def sources_key(environ: Mapping[str, str] = os.environ) -> str:
    go_mod = _go_mod(environ)
    digest = hashlib.sha256(repr(_flags(environ)).encode())
    sources = {"go.mod": go_mod, "go.sum": go_mod.with_suffix(".sum"), "main.go": SOURCES / "main.go"}
    for name, path in sources.items():
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


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


def _go_environ(environ: Mapping[str, str]) -> dict[str, str]:
    go_mod = _go_mod(environ).name
    return {**environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": f"-modfile={go_mod}"}


def _go_version(go: str, environ: Mapping[str, str]) -> str:
    """The Go version that builds `src`. It can differ from the one on the PATH, because Go
    downloads newer toolchains.
    """
    result = subprocess.run(
        [go, "env", "GOVERSION"], cwd=SOURCES, env=_go_environ(environ), capture_output=True, text=True
    )
    if result.returncode != 0:
        raise BuildFailed(f"no control plane: {result.stderr.strip()}")
    return result.stdout.strip().replace(" ", "_")


def _run_go_build(go: str, output: Path, environ: Mapping[str, str]) -> None:
    """Run `go build -v`, which prints each finished package, and report progress now and then."""
    started = time.monotonic()
    said_at, packages, words = started, 0, []
    _say(
        f"building the control plane ({kubernetes_version(environ)}) once for this cache; a cold build takes minutes"
    )
    with subprocess.Popen(
        ["nice", "-n", "10", go, "build", "-v", *_flags(environ), "-o", output, "."],
        cwd=SOURCES,
        env=_go_environ(environ),
        stderr=subprocess.PIPE,
        text=True,
    ) as build:
        assert build.stderr is not None
        for line in build.stderr:
            if re.fullmatch(r"[\w.~/-]+\n", line):
                packages += 1
            else:
                words.append(line)
            if time.monotonic() - said_at > PROGRESS_EVERY_S:
                said_at = time.monotonic()
                _say(f"{packages} packages compiled in {said_at - started:.0f} s; now {line.strip()}")
    if build.returncode != 0:
        raise BuildFailed(
            f"go build failed with exit code {build.returncode}: {''.join(words[-20:]).strip()}"
        )
    _say(f"built in {time.monotonic() - started:.0f} s: {output.stat().st_size / 1e6:.0f} MB")


def _say(words: str) -> None:
    print(f"tests.controlplane: {words}", file=sys.stderr, flush=True)


def main() -> int:
    try:
        print(cached_binary() or make_binary())
    except BuildFailed as failure:
        _say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
