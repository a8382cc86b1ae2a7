"""The manual page, as `man` shows it."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from policysched.cli import COMMANDS
from tests.missing_programs import leave_out

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "docs" / "man" / "policysched.1"


@pytest.fixture
def shown() -> str:
    """Fails if roff warns of anything."""
    if shutil.which("man") is None or shutil.which("groff") is None:
        leave_out("manual", "`man` and `groff` are not both on the PATH (apt-get install man-db groff-base)")
    return man(MANUAL)


def man(page: Path) -> str:
    environment = {"MANWIDTH": "100", "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "GROFF_NO_SGR": "1"}
    done = subprocess.run(
        ["man", "--warnings", "--local-file", page],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_command_and_its_options_are_shown_without_a_warning(shown: str) -> None:
    lines = [line.strip() for line in shown.splitlines()]

    assert [
        name for name in COMMANDS if not any(line.startswith(f"{name} [OPTIONS]") for line in lines)
    ] == []
    assert "--kubeconfig FILE" in lines
    assert "policysched sandbox --nodes 10 --kubeconfig /tmp/sandbox" in lines


def test_a_line_that_roff_would_drop_is_detected(shown: str, tmp_path: Path) -> None:
    broken = tmp_path / "policysched.1"
    broken.write_text(MANUAL.read_text().replace(".PP\n", ".PP\n.kubeconfig of the cluster\n", 1))

    with pytest.raises(AssertionError, match="kubeconfig"):
        man(broken)


def test_the_wheel_installs_the_pages_where_man_looks_for_them() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]

    assert all((ROOT / source).is_file() for source in wheel["shared-data"])
    assert {*wheel["shared-data"].values()} == {
        "share/man/man1/policysched.1",
        "share/man/man1/kubectl-policysched.1",
    }
