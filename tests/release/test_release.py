"""The release check detects what it is for, and the workflows pin what they run."""

import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from deploy.image.layers import PLATFORMS, Layer
from deploy.image.oci import Image
from policysched import __version__
from tests.release.image import image_problems
from tests.release.versions import lock_problems, release_notes, version_problems

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


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    changelog = (
        "# Changelog\n\n## Unreleased\n\n## 1.2.3\n\n### Added\n\n- new\n\n## 1.2 (2026-01-01)\n\n- older\n"
    )

    assert release_notes(changelog, "v1.2.3") == "### Added\n\n- new\n"
    assert release_notes(changelog, "v1.2") == "- older\n"
    assert release_notes(changelog, "v1.2.4") is None


def test_the_documented_hook_names_the_tag_of_this_version() -> None:
    page = (ROOT / "docs" / "offline.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^ *rev: (\S+)$", page, re.MULTILINE)) == {f"v{__version__}"}


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


def test_what_the_workflows_install_by_themselves_is_signed_or_locked() -> None:
    """Scorecard's `Pinned-Dependencies`: pip and images only by hash; apt verifies the distribution's signatures."""
    assert WORKFLOWS
    for path in WORKFLOWS:
        text = path.read_text()
        assert not re.search(r"pip install|curl|wget|docker://[^\"$]*:", text), path.name
        assert "pull_request_target" not in text, path.name


def test_workflows_have_no_permission_but_those_that_a_job_names() -> None:
    assert WORKFLOWS
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path.name
        assert workflow["jobs"], path.name
        assert all("timeout-minutes" in job for job in workflow["jobs"].values()), path.name


def test_dependabot_updates_everything_that_is_pinned() -> None:
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    folders = {update["package-ecosystem"]: update.get("directories", ["/"]) for update in updates}
    modules = {path for folder in folders.pop("gomod") for path in ROOT.glob(f"{folder.lstrip('/')}/go.mod")}

    assert folders == {"pip": ["/"], "github-actions": ["/"]}
    assert modules == set(ROOT.glob("tests/**/go.mod"))


def publishing_steps() -> list[str]:
    """What each step of the release runs or uses, in order."""
    (job,) = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"].values()
    return [step.get("run") or step["uses"] for step in job["steps"]]


PUBLISHES = ("skopeo copy", 'helm" push', "uv publish", "gh release create")


def first(steps: list[str], words: str) -> int:
    return next(index for index, step in enumerate(steps) if words in step)


def test_a_release_is_checked_before_anything_is_published() -> None:
    steps = publishing_steps()

    checked = first(steps, 'make release-check TAG="$GITHUB_REF_NAME"')
    assert all(checked < first(steps, publishes) for publishes in PUBLISHES)
    assert first(steps, "make sbom") < first(steps, "actions/attest-sbom")
    assert '--notes "$GITHUB_REF_NAME"' in steps[first(steps, "gh release create")]


def test_the_image_and_the_files_of_a_release_are_signed_with_their_provenance() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    (job,) = workflow["jobs"].values()
    attested = [step["with"] for step in job["steps"] if "attest-build-provenance" in step.get("uses", "")]
    runs = "\n".join(publishing_steps())

    assert {"subject-digest", "subject-path"} <= {key for given in attested for key in given}
    assert "cosign sign --yes" in runs and "cosign sign-blob --yes" in runs
    assert {"id-token", "attestations"} <= set(job["permissions"])
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true


def test_scorecards_file_checks_find_what_they_look_for() -> None:
    """Those that a checkout can satisfy; the others look at the history and the settings of a repository."""
    used = "\n".join(path.read_text() for path in WORKFLOWS)
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    suffixes = {Path(name).suffix for name in tracked.stdout.split("\0")}

    assert (ROOT / "LICENSE").is_file() and (ROOT / "SECURITY.md").is_file()
    assert "github/codeql-action/analyze@" in used, "SAST"
    assert "ossf/scorecard-action@" in used
    assert not suffixes & {".so", ".exe", ".dll", ".jar", ".whl", ".pyc", ".o", ".a"}, "Binary-Artifacts"
    for path in WORKFLOWS:
        scripts = re.findall(r"run: (?:\|\n(?:          .*\n)+|.*)", path.read_text())
        assert not re.search(r"\$\{\{ *(github\.event|inputs)", "".join(scripts)), (
            f"Dangerous-Workflow: {path.name}"
        )


def assembled(folder: Path, name: str, machine: int, *, mode: int = 0o755, size: int = 1000) -> Image:
    """An image of one layer with one program."""
    content = b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little")
    path = folder / "layer.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        program = tarfile.TarInfo("usr/bin/python3.13")
        program.size, program.mode = len(content), mode
        tar.addfile(program, io.BytesIO(content))
    return Image(PLATFORMS[name], (Layer(path, "all", "sha256:", "sha256:", size),))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"machine": 62}, "another processor"),
        ({"mode": 0o4755}, "has mode 4755"),
        ({"mode": 0o775}, "has mode 775"),
        ({"size": 120_000_000}, "120 MB"),
    ],
)
def test_an_image_that_a_node_could_not_run_or_should_not_pull_is_detected(
    tmp_path: Path, changes: dict[str, int], problem: str | None
) -> None:
    image = assembled(tmp_path, "arm64", **{"machine": 183, **changes})

    problems = image_problems(image)

    assert len(problems) == (problem is not None)
    assert problem is None or problem in problems[0]


def test_the_check_needs_only_what_its_own_environment_has() -> None:
    """`.venv-release` has neither pytest nor what it brings."""
    program = "import sys; sys.modules['pytest'] = None; import tests.release.__main__"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
