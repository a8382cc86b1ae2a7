"""`make release-check`: what must be true before a version is published.

    versions    the tag (if given), the package and the newest section of CHANGELOG.md agree
    lock        requirements.lock satisfies pyproject.toml
    build       the wheel and the source distribution build, the wheel also from the source distribution
    install     a bare environment takes the pinned dependencies with their hashes, and the wheel
    run         in it, `policysched version`, `lint` of the shipped policies, and `demo` succeed, and the manual page is there
    image       it is assembled for every processor, within its size and without files of another processor; with a tag, of the
                packages in debian.lock, else of Debian's newest where its mirror has left the lock behind
    chart       `helm lint` and `helm package` succeed, and the chart has the version
    docs        the site builds; a broken link is an error

`install` and `run` are repeated for each `--python`. Each step prints its name and time; the first that fails ends with its
output and exit code 1. What is to be published is left in dist/.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from deploy.image.__main__ import build, epoch_s, labels
from deploy.image.layers import PLATFORMS, ImageError
from deploy.image.oci import write_archive
from deploy.image.site_packages import uv
from policysched import __version__
from tests.go_program import BuildFailed
from tests.helm.program import CHART, helm_binary
from tests.release.image import image_problems
from tests.release.versions import lock_problems, release_notes, version_problems

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_S = 600.0
MANUAL = ("share/man/man1/policysched.1", "share/man/man1/kubectl-policysched.1")
STEP_WIDTH = 10


class CheckFailed(Exception):
    """A step failed; the message says how."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.release")
    parser.add_argument("tag", nargs="?", help="the tag to publish, such as v0.1.0")
    parser.add_argument(
        "--python",
        action="append",
        metavar="PYTHON",
        help="install and try the wheel with this interpreter, such as 3.13 or a path (default: the one that runs this)",
    )
    parser.add_argument(
        "--notes", action="store_true", help="print the tag's section of CHANGELOG.md, and check nothing"
    )
    given = parser.parse_args(arguments)
    tag, changelog = given.tag, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if given.notes:
        notes = release_notes(changelog, tag or "")
        if notes is None:
            print(f"CHANGELOG.md has no section for the tag {tag}", file=sys.stderr)
            return 1
        print(notes, end="")
        return 0
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    try:
        with step("versions"):
            report(version_problems(__version__, changelog, tag))
        with step("lock"):
            report(
                lock_problems(
                    (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
                    (ROOT / "requirements.lock").read_text(encoding="utf-8"),
                )
            )
        with step("build"):
            run(sys.executable, "-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT))
        for version in given.python or [sys.executable]:
            try_wheel(version)
        with step("image") as note:
            note(check_image(locked=tag is not None))
        with step("chart"):
            check_chart()
        with step("docs"):
            run("make", "docs", cwd=str(ROOT))
    except CheckFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print("ready to publish:", *(path.name for path in sorted((ROOT / "dist").iterdir())))
    return 0


def try_wheel(interpreter: str) -> None:
    """In a new environment of this interpreter, with the pinned dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        with step("install") as note:
            install(interpreter, python)
            note(run(str(python), "--version").strip())
        with step("run"):
            for arguments in (("version",), ("lint", "--quiet", str(ROOT / "policies")), ("demo",)):
                run(str(python.with_name("policysched")), *arguments, cwd=folder)
            report(
                [
                    f"the wheel installs no {page}"
                    for page in MANUAL
                    if not (python.parents[1] / page).exists()
                ]
            )


def wheel() -> Path:
    wheel = next((ROOT / "dist").glob(f"*-{__version__}-*.whl"), None)
    if wheel is None:
        raise CheckFailed(f"the build left no wheel of {__version__} in dist/")
    return wheel


def install(interpreter: str, python: Path) -> None:
    run(uv(), "venv", "--quiet", "--python", interpreter, str(python.parents[1]))
    pip = (uv(), "pip", "install", "--quiet", "--python", str(python))
    run(*pip, "--require-hashes", "-r", str(ROOT / "requirements.lock"))
    run(*pip, "--no-deps", str(wheel()))


def check_image(*, locked: bool) -> str:
    try:
        images = build(list(PLATFORMS), wheel=wheel(), locked=locked)
        report(
            [problem for image in images for problem in image_problems(image)],
        )
        write_archive(
            ROOT / "dist" / f"policysched-{__version__}-image.tar",
            images,
            f"policysched:{__version__}",
            labels(),
            epoch_s(),
        )
    except ImageError as error:
        raise CheckFailed(str(error)) from error
    return ", ".join(f"{image.platform.name} {image.size / 1e6:.0f} MB" for image in images)


def check_chart() -> None:
    try:
        helm = str(helm_binary())
    except BuildFailed as error:
        raise CheckFailed(str(error)) from error
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    report(
        [
            f"Chart.yaml has {name} {described[name]}, the package has version {__version__}"
            for name in ("version", "appVersion")
            if described[name] != __version__
        ]
    )
    run(helm, "lint", "--strict", str(CHART))
    run(helm, "package", "--destination", str(ROOT / "dist"), str(CHART))


def run(*command: str, cwd: str | None = None) -> str:
    """Its output. Raises `CheckFailed` with it. The checkout is not on the path of the command."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
    )
    if done.returncode:
        raise CheckFailed(f"{' '.join(command)} exited with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def report(problems: Sequence[str]) -> None:
    if problems:
        raise CheckFailed("; ".join(problems))


@contextmanager
def step(name: str, monotonic_s: Callable[[], float] = time.monotonic) -> Iterator[Callable[[str], None]]:
    """The block may note what it found out."""
    print(f"{name:<{STEP_WIDTH}}", end="", flush=True)
    began_s = monotonic_s()
    notes: list[str] = []
    yield notes.append
    print(f"ok  {monotonic_s() - began_s:5.1f} s", *notes, sep="  ", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
