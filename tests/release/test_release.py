"""The release check detects what it is for, and the workflows pin what they run."""

import re
from pathlib import Path

import pytest
import yaml

from policysched import __version__
from tests.release.versions import lock_problems, version_problems

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("tag", "section", "problems"),
    [
        (None, "Unreleased", 0),
        (None, "1.2.3", 0),
        ("v1.2.3", "1.2.3", 0),
        ("v1.2.3", "Unreleased", 1),
        ("v1.2.4", "1.2.3", 1),
        ("1.2.3", "1.2.3", 1),
        (None, "1.2.2", 1),
    ],
)
def test_the_tag_the_package_and_the_changelog_agree(tag: str | None, section: str, problems: int) -> None:
    assert len(version_problems("1.2.3", f"# Changelog\n\n## {section}\n\n## 1.0.0\n", tag)) == problems


def test_the_versions_of_this_checkout_agree() -> None:
    assert version_problems(__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), None) == []


def test_the_lock_has_every_dependency_with_hashes() -> None:
    assert lock_problems(PROJECT, LOCK) == []
    pins = re.split(r"\n(?=\S)", LOCK)
    assert pins and [pin.split()[0] for pin in pins if "--hash=sha256:" not in pin] == []


def test_a_lock_that_lacks_a_dependency_or_has_another_version_is_detected() -> None:
    without = re.sub(r"^numpy==.*$", "", LOCK, flags=re.MULTILINE)
    older = re.sub(r"^numpy==\S+", "numpy==1.0.0", LOCK, flags=re.MULTILINE)

    assert lock_problems(PROJECT, without) == ["requirements.lock lacks numpy; run `make lock`"]
    assert len(lock_problems(PROJECT, older)) == 1


def test_every_action_is_pinned_by_its_commit_with_the_version_beside_it() -> None:
    used = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]

    assert len(used) > 5
    assert [line for line in used if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


def test_workflows_have_no_permission_but_those_that_a_job_names() -> None:
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path.name
        assert all("timeout-minutes" in job for job in workflow["jobs"].values()), path.name


def test_dependabot_looks_after_everything_that_is_pinned() -> None:
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]

    assert {update["package-ecosystem"] for update in updates} == {"pip", "github-actions", "gomod"}
    assert all((ROOT / update["directory"].lstrip("/")).is_dir() for update in updates)
