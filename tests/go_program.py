"""A program that the tests build from a Go module, and keep in the user's cache folder.

    ~/.cache/policysched/NAME/<key of the sources>-<Go version>/NAME

The key covers all inputs of the build, so a binary is never stale and two checkouts share one. Test
workers that need it at the same time wait at a lock, and a finished binary appears by one rename: a
build that is killed leaves no incomplete binary.
"""

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

PROGRESS_EVERY_S = 15.0


class BuildFailed(Exception):
    """The binary cannot be built here; the message says why."""


@dataclass(frozen=True, slots=True)
class GoProgram:
    """`title` is for messages. `inputs` are the files that the key covers, by the names in it; `package` is built with `flags` and
    `go_mod` in the folder `sources`. `folders` are copied from modules and kept beside the binary: name to
    `(module, folder in it)`."""

    name: str
    title: str
    sources: Path
    go_mod: str
    inputs: Mapping[str, Path]
    flags: Sequence[str]
    package: str = "."
    folders: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of_module(cls, name: str, package: str, sources: Path) -> Self:
        """A package of another project, at the version in the `go.mod` of `sources`."""
        return cls(
            name=name,
            title=name,
            sources=sources,
            go_mod="go.mod",
            inputs={"go.mod": sources / "go.mod", "go.sum": sources / "go.sum"},
            flags=("-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags=-s -w"),
            package=package,
        )

    def binary(self, environ: Mapping[str, str]) -> Path:
        """The cached binary, or else a new one. Raises `BuildFailed`."""
        return self.cached_binary(environ) or self.make_binary(environ)

    def cached_binary(self, environ: Mapping[str, str]) -> Path | None:
        """Without `go` on the PATH, a build by any Go version is accepted."""
        go = shutil.which("go", path=environ.get("PATH"))
        try:
            version = self._go_version(go, environ) if go else "*"
        except BuildFailed:
            version = "*"
        for folder in sorted(self._cache(environ).glob(f"{self.sources_key()}-{version}")):
            if (folder / self.name).exists():
                return folder / self.name
        return None

    def make_binary(self, environ: Mapping[str, str]) -> Path:
        """Build the binary unless another process has just done so. Raises `BuildFailed`; progress goes
        to stderr.
        """
        go = shutil.which("go", path=environ.get("PATH"))
        if go is None:
            raise BuildFailed(f"no {self.name}: none is cached, and `go` is not on the PATH to build one")
        cache = self._cache(environ)
        target = cache / f"{self.sources_key()}-{self._go_version(go, environ)}"
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{target.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (target / self.name).exists():
                unfinished = cache / f"unfinished-{target.name}"
                # left by a build that was killed: this process holds the lock
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                try:
                    self._run_go_build(go, unfinished / self.name, environ)
                    for name, (module, folder) in self.folders.items():
                        root = self._module_folder(go, environ, module)
                        source, copy = Path(root) / folder, unfinished / name
                        subprocess.run(
                            ["cp", "-r", "--no-preserve=mode", source, copy], check=True
                        )  # they are read-only
                    unfinished.rename(target)
                finally:
                    shutil.rmtree(unfinished, ignore_errors=True)
        return target / self.name

    def sources_key(self) -> str:
        digest = hashlib.sha256(repr(list(self.flags)).encode())
        for name, path in self.inputs.items():
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()[:16]

    def _cache(self, environ: Mapping[str, str]) -> Path:
        root = environ.get("XDG_CACHE_HOME")
        return (Path(root) if root else Path.home() / ".cache") / "policysched" / self.name

    def _go_environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {**environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": f"-modfile={self.go_mod}"}

    def _go_version(self, go: str, environ: Mapping[str, str]) -> str:
        """The Go version that builds the sources. It can differ from the one on the PATH, because Go
        downloads newer toolchains.
        """
        return self._go(go, environ, "env", "GOVERSION").replace(" ", "_")

    def _go(self, go: str, environ: Mapping[str, str], *arguments: str) -> str:
        """What the command prints."""
        result = subprocess.run(
            [go, *arguments],
            cwd=self.sources,
            env=self._go_environ(environ),
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            raise BuildFailed(f"no {self.name}: {result.stderr.strip()}")
        return result.stdout.strip()

    def _module_folder(self, go: str, environ: Mapping[str, str], module: str) -> str:
        """Where the module is, which is downloaded if need be."""
        return str(json.loads(self._go(go, environ, "mod", "download", "-json", module))["Dir"])

    def _run_go_build(self, go: str, output: Path, environ: Mapping[str, str]) -> None:
        """Run `go build -v`, which prints each finished package, and report progress now and then."""
        started = time.monotonic()
        said_at, packages, words = started, 0, []
        say(f"building {self.title} once for this cache; a cold build takes minutes")
        with subprocess.Popen(
            ["nice", "-n", "10", go, "build", "-v", *self.flags, "-o", output, self.package],
            cwd=self.sources,
            env=self._go_environ(environ),
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
                    say(f"{packages} packages compiled in {said_at - started:.0f} s; now {line.strip()}")
        if build.returncode != 0:
            raise BuildFailed(
                f"go build failed with exit code {build.returncode}: {''.join(words[-20:]).strip()}"
            )
        say(f"built in {time.monotonic() - started:.0f} s: {output.stat().st_size / 1e6:.0f} MB")


def say(words: str) -> None:
    print(f"tests: {words}", file=sys.stderr, flush=True)
