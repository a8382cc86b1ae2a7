"""Test files found, read and played; what came of them, with the coverage of each policy over all files."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policysched.files import UnreadableFile, is_file, is_folder, path_exists, read_text
from policysched.harness.inputs import PolicyHasErrors, choose_policy
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import Program
from policysched.policy_files.source_set import UnusableFile
from policysched.policytest.coverage import Coverage, new_coverage, record_round
from policysched.policytest.expectations import ExpectationFailure, Expectations
from policysched.policytest.scenario import Scenario, read_scenario
from policysched.policytest.scenario_runner import ScenarioRunner, StepLimitExceeded
from policysched.policytest.yaml_document import (
    UnusableTestFile,
    YamlDocument,
    parse_document,
    unusable_diagnostic,
)
from policysched.schemas import misfits
from policysched.text import Diagnostic, Source, Span

SUFFIXES = ("_test.yaml", "_test.yml")


@dataclass(frozen=True, slots=True)
class PolicyTestResult:
    """One test that was played. No failures: it passed."""

    name: str
    span: Span
    failures: tuple[ExpectationFailure, ...]


@dataclass(frozen=True, slots=True)
class TestFileResult:
    """One file. With `problems` none of its tests was played. `dependencies` are the files that it rests on."""

    path: str
    results: tuple[PolicyTestResult, ...]
    problems: tuple[Diagnostic, ...]
    dependencies: tuple[str, ...]


@dataclass(slots=True)
class PolicyTestRun:
    """All files of one run. `coverages` by policy file and name."""

    files: list[TestFileResult] = field(default_factory=list)
    coverages: dict[tuple[str, str], Coverage] = field(default_factory=dict)

    @property
    def results(self) -> list[PolicyTestResult]:
        return [one for file in self.files for one in file.results]

    @property
    def failed(self) -> int:
        return sum(1 for one in self.results if one.failures)

    @property
    def has_unusable_file(self) -> bool:
        return any(file.problems for file in self.files)

    def percent(self) -> int:
        """Of all outcomes of all policies, rounded down. 100 where there is nothing to reach."""
        whole = sum(len(one.outcomes) for one in self.coverages.values())
        return 100 if not whole else 100 * sum(len(one.reached) for one in self.coverages.values()) // whole

    def not_reached(self) -> list[Diagnostic]:
        return [
            make_diagnostic("PS701", f"no test has `{one.rule}` where it {_outcome_verb(one.kind)}", span)
            for coverage in self.coverages.values()
            for one, span in coverage.not_reached()
        ]


def _outcome_verb(what: str) -> str:
    return {"when holds": "has its `when` hold", "when does not hold": "has its `when` not hold"}.get(
        what, what
    )


def find_test_files(paths: Sequence[str]) -> list[str]:
    """Every file that is named, and every `*_test.yaml` below a folder that is. Raises UnusableFile."""
    found: list[str] = []
    for path in map(Path, paths):
        if is_folder(path):
            found += sorted(
                str(one) for one in path.rglob("*") if one.name.endswith(SUFFIXES) and is_file(one)
            )
        elif path_exists(path):
            found.append(str(path))
        else:
            raise UnusableFile(f"{path}: no such file")
    return list(dict.fromkeys(found))


def run_test_files(paths: Iterable[str], *, only: re.Pattern[str] | None = None) -> PolicyTestRun:
    """Play every test whose name `only` finds (None: all)."""
    whole = PolicyTestRun()
    for path in paths:
        whole.files.append(_run_file(path, whole, only))
    return whole


def _run_file(path: str, whole: PolicyTestRun, only: re.Pattern[str] | None) -> TestFileResult:
    watched = [path]
    try:
        document = _read(path)
        policy_path = str(Path(path).parent / document.values["policy"])
        watched += _dependencies(document, policy_path)
        games = [
            _load_test_case(document, index, policy_path) for index in range(len(document.values["tests"]))
        ]
        problems = tuple(found for game in games for found in game.expectations.problems())
        if problems:
            raise UnusableTestFile(problems)
    except UnusableTestFile as error:
        return TestFileResult(path, (), error.findings, tuple(watched))
    program = games[0].program
    key = str(Path(policy_path).resolve()), program.name
    coverage = whole.coverages.setdefault(key, new_coverage(program))
    wanted = [game for game in games if only is None or only.search(game.name)]
    return TestFileResult(path, tuple(_run_test_case(game, coverage) for game in wanted), (), tuple(watched))


@dataclass(frozen=True, slots=True)
class _TestCase:
    name: str
    span: Span
    program: Program
    world: Scenario
    expectations: Expectations


def _load_test_case(document: YamlDocument, index: int, policy_path: str) -> _TestCase:
    program = _load_program(document, index, policy_path)
    world = read_scenario(document, index, program)
    name = document.values["tests"][index]["name"]
    span = document.span("tests", index, "name")
    return _TestCase(name, span, program, world, Expectations(document, index, program, world))


def _run_test_case(game: _TestCase, coverage: Coverage) -> PolicyTestResult:
    play = ScenarioRunner(game.program, game.world, game.expectations.pods_to_explain)
    try:
        for moment in play.rounds():
            record_round(coverage, game.program, moment)
    except StepLimitExceeded:
        return PolicyTestResult(
            game.name, game.span, (ExpectationFailure(game.span, "the scheduler never came to rest"),)
        )
    return PolicyTestResult(game.name, game.span, tuple(game.expectations.failures(play.result)))


def _read(path: str) -> YamlDocument:
    try:
        text = read_text(Path(path))
    except UnreadableFile as error:
        raise UnusableTestFile(
            (unusable_diagnostic(f"{path}: {error}", Span(Source(path, ""), 0, 0)),)
        ) from error
    document = parse_document(Source(path, text))
    found = tuple(
        unusable_diagnostic(f"{'.'.join(map(str, where)) or 'the file'}: {words}", document.span(*where))
        for where, words in misfits("policy-test", document.values)
    )
    if found:
        raise UnusableTestFile(found)
    return document


def _load_program(document: YamlDocument, index: int, path: str) -> Program:
    """The policy, with the values that the test gives to its parameters."""
    test = document.values["tests"][index]
    params = {**document.values.get("params", {}), **test.get("params", {})}
    place: tuple[str | int, ...] = ("tests", index, "params") if "params" in test else ("params",)
    try:
        return choose_policy(
            path, document.values.get("name"), [_parameter_flag(*one) for one in params.items()]
        )
    except UnusableFile as error:
        span = document.span(*place) if "--param" in str(error) else document.span("policy")
        raise UnusableTestFile((unusable_diagnostic(str(error), span),)) from error
    except PolicyHasErrors as error:
        raise UnusableTestFile(error.diagnostics) from error


def _parameter_flag(name: str, value: Any) -> str:
    """As `--param` has it."""
    match value:
        case bool():
            return f"{name}={str(value).lower()}"
        case list():
            return f"{name}={','.join(map(str, value))}"
        case _:
            return f"{name}={value}"


def _dependencies(document: YamlDocument, policy_path: str) -> Iterator[str]:
    """The policy's folder stands for what it includes."""
    yield policy_path
    yield from (str(one) for one in sorted(Path(policy_path).parent.glob("*.policy")))
    folder = Path(document.source.name).parent
    for section in (document.values, *document.values["tests"]):
        named = section.get("cluster", ())
        yield from (str(folder / one) for one in ([named] if isinstance(named, str) else named))
