"""`make release-check`: what must be true before a version is published.

    versions    the tag (if given), the package and the newest section of CHANGELOG.md agree
    lock        requirements.lock satisfies pyproject.toml
    build       the wheel and the source distribution build, the wheel also from the source distribution
    install     a bare environment takes the pinned dependencies with their hashes, and the wheel
    run         in it, `policysched version`, `lint` of the shipped policies, and `demo` succeed

Each step prints its name and time; the first that fails ends with its output and exit code 1. The image and the chart are
not checked here.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from policysched import __version__
from tests.release.versions import lock_problems, version_problems

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_S = 600.0


class CheckFailed(Exception):
    """A step failed; the message says how."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.release")
    parser.add_argument("tag", nargs="?", help="the tag to publish, such as v0.1.0")
    tag = parser.parse_args(arguments).tag
    try:
        with step("versions"):
            report(version_problems(__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), tag))
        with step("lock"):
            report(
                lock_problems(
                    (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
                    (ROOT / "requirements.lock").read_text(encoding="utf-8"),
                )
            )
        with step("build"):
            run(sys.executable, "-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT))
        with tempfile.TemporaryDirectory() as folder:
            python = Path(folder) / "venv" / "bin" / "python"
            with step("install"):
                install(python)
            with step("run"):
                for arguments in (("version",), ("lint", "--quiet", str(ROOT / "policies")), ("demo",)):
                    run(str(python.with_name("policysched")), *arguments, cwd=folder)
    except CheckFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print("ready to publish:", *(path.name for path in artifacts()))
    return 0


def artifacts() -> list[Path]:
    """The wheel and the source distribution of this version."""
    return [*(ROOT / "dist").glob(f"*-{__version__}-*.whl"), *(ROOT / "dist").glob(f"*-{__version__}.tar.gz")]


def install(python: Path) -> None:
    wheel = next((path for path in artifacts() if path.suffix == ".whl"), None)
    if wheel is None:
        raise CheckFailed(f"the build left no wheel of {__version__} in dist/")
    run(sys.executable, "-m", "venv", str(python.parents[1]))
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--require-hashes", "-r", str(ROOT / "requirements.lock"))
    run(*pip, "--no-deps", str(wheel))


def run(*command: str, cwd: str | None = None) -> None:
    """Raises `CheckFailed` with the output. The checkout is not on the path of the command."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
    )
    if done.returncode:
        raise CheckFailed(f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}{done.stderr}")


def report(problems: Sequence[str]) -> None:
    if problems:
        raise CheckFailed("; ".join(problems))


@contextmanager
def step(name: str, monotonic_s: Callable[[], float] = time.monotonic) -> Iterator[None]:
    print(f"{name:<10}", end="", flush=True)
    began_s = monotonic_s()
    yield
    print(f"ok  {monotonic_s() - began_s:5.1f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
