"""The manifests of older versions, from the repository's history."""

import subprocess
from pathlib import Path

from policysched import __version__
from tests.e2e.install_page import REPOSITORY
from tests.missing_programs import leave_out

BEFORE_THE_FIRST_RELEASE = "926a973b5bcd11dcc46a56aa1ae74ca9f526f9db"
"""While no version is released, this commit stands for one: the first with a chart. Its roles and settings differ from today's."""


def older_versions() -> list[str]:
    """The tags of the released versions, newest first. A test has an upgrade from and a rollback to each."""
    listed = git("tag", "--list", "v*", "--sort=-version:refname").decode().split()
    return [tag for tag in listed if tag != f"v{__version__}"] or [BEFORE_THE_FIRST_RELEASE]


def checkout_of(version: str, folder: Path) -> Path:
    """A checkout of the version, with its folder `deploy` alone."""
    folder.mkdir()
    try:
        archive = git("archive", version, "deploy")
    except subprocess.CalledProcessError:
        leave_out("history", f"this clone lacks {version}: `git fetch --unshallow --tags` gets it")
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, check=True).stdout
