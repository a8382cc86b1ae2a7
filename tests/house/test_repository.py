"""Make targets, hooks and the CI workflow name existing commands and files."""

import re
import shlex
from typing import Any

import click
import pytest
import yaml

from policysched.cli import main
from tests.cli.builders import run
from tests.house.docs import ROOT, written_pages

MAKE_TARGETS = set(
    re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)


def hooks_here() -> list[dict[str, Any]]:
    return [
        hook
        for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
        for hook in repo["hooks"]
    ]


def hooks_for_others() -> list[dict[str, Any]]:
    hooks: list[dict[str, Any]] = yaml.safe_load(
        (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    )
    return hooks


POLICYSCHED_HOOKS = [
    hook
    for hook in (*hooks_here(), *hooks_for_others())
    if shlex.split(hook["entry"])[0].endswith("policysched")
]


def test_fmt_and_lint_are_hooks_here_and_fmt_lint_and_test_are_hooks_for_others() -> None:
    assert [hook["id"] for hook in POLICYSCHED_HOOKS] == [
        *("policysched-fmt", "policysched-lint"),
        *("policysched-fmt", "policysched-lint", "policysched-test"),
    ]


@pytest.mark.parametrize("hook", POLICYSCHED_HOOKS, ids=lambda hook: f"{hook['id']}-{hook['language']}")
def test_a_hook_that_runs_policysched_runs_a_command_that_takes_files(hook: dict[str, Any]) -> None:
    _, *words = shlex.split(hook["entry"])

    command = main.get_command(click.Context(main), words[0])

    assert command is not None
    assert command.make_context(words[0], [*words[1:], "a.policy"]).params["paths"] == ("a.policy",)


def test_the_hooks_for_others_are_those_that_the_documentation_names() -> None:
    page = (ROOT / "docs" / "offline.md").read_text(encoding="utf-8")

    assert {hook["id"] for hook in hooks_for_others()} == set(re.findall(r"- id: (\S+)", page))


def test_the_hooks_here_look_at_every_shipped_policy() -> None:
    policies = [path.relative_to(ROOT).as_posix() for path in (ROOT / "policies").glob("*.policy")]
    (pattern,) = [hook["files"] for hook in hooks_here() if hook["id"] == "policysched-lint"]

    assert policies
    assert [
        path for path in (*policies, "deploy/example-policies.yaml") if not re.search(pattern, path)
    ] == []


@pytest.mark.parametrize("command", ["lint", "fmt --check"])
def test_the_whole_checkout_has_no_findings(command: str) -> None:
    """A new user's first try: two policies of one name in one folder would be an error."""
    done = run(*command.split(), str(ROOT))

    assert (done.code, done.out) == (0, ""), done.err


def test_the_workflow_and_the_gate_run_the_test_command_of_the_readme() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    steps = [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()

    assert "make test" in steps
    assert "make test" in gate
    assert "make test " in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_documented_make_target_exists() -> None:
    named = {
        target
        for page in written_pages()
        for target in re.findall(
            r"(?:^|`)make ([a-z][a-z0-9]*(?:-[a-z0-9]+)*)", page.read_text(encoding="utf-8"), re.MULTILINE
        )
    }

    assert {"demo", "test", "setup"} <= named
    assert named <= MAKE_TARGETS
