"""Finds, reads and runs test files; collects their results and the coverage of each policy."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policysched.files import (
    UnreadableFile,
    files_below,
    is_folder,
    path_exists,
    read_text,
    require_project_file,
    require_repository_file,
)
from policysched.from_files.inputs import PolicyHasErrors, choose_policy
from policysched.from_files.settings_rules import SettingsRules
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
from policysched.scheduler.policy_permissions import PolicyPermissions
from policysched.schemas import schema_violations
from policysched.text import Diagnostic, Source, Span

NO_SETTINGS_RULES = SettingsRules()
SUFFIXES = ("_test.yaml", "_test.yml")


@dataclass(frozen=True, slots=True)
class PolicyTestResult:
    """The result of one test. It passed if there are no failures."""

    name: str
    span: Span
    failures: tuple[ExpectationFailure, ...]


@dataclass(frozen=True, slots=True)
class TestFileResult:
    """The result of one file. With `problems` none of its tests ran. `dependencies` are the files it reads."""

    path: str
    results: tuple[PolicyTestResult, ...]
    problems: tuple[Diagnostic, ...]
    dependencies: tuple[str, ...]


@dataclass(slots=True)
class PolicyTestRun:
    """The results of one run. `coverages` by policy file and name."""

    files: list[TestFileResult] = field(default_factory=list)
    coverages: dict[tuple[str, str], Coverage] = field(default_factory=dict)

    @property
    def results(self) -> list[PolicyTestResult]:
        return [result for file in self.files for result in file.results]

    @property
    def failed(self) -> int:
        return sum(1 for result in self.results if result.failures)

    @property
    def has_unusable_file(self) -> bool:
        return any(file.problems for file in self.files)

    def percent(self) -> int:
        """The reached share of all outcomes, rounded down. 100 if there are none."""
        total = sum(len(coverage.outcomes) for coverage in self.coverages.values())
        return (
            100
            if not total
            else 100 * sum(len(coverage.reached) for coverage in self.coverages.values()) // total
        )

    def not_reached(self) -> list[Diagnostic]:
        return [
            make_diagnostic(
                "PS701", f"untested outcome of `{outcome.rule}`: {_outcome_text(outcome.kind)}", span
            )
            for coverage in self.coverages.values()
            for outcome, span in coverage.not_reached()
        ]


def _outcome_text(kind: str) -> str:
    return {"when holds": "`when` holds", "when does not hold": "`when` does not hold"}.get(kind, kind)


def find_test_files(paths: Sequence[str]) -> list[str]:
    """The given files, and every `*_test.yaml` below the given folders. Raises UnusableFile."""
    files: list[str] = []
    for path in map(Path, paths):
        try:
            require_repository_file(path)
        except UnreadableFile as error:
            raise UnusableFile(f"{path}: {error}") from None
        if is_folder(path):
            files += [str(file) for file in files_below(path, SUFFIXES)]
        elif path_exists(path):
            files.append(str(path))
        else:
            raise UnusableFile(f"{path}: no such file")
    return list(dict.fromkeys(files))


def run_test_files(
    paths: Iterable[str],
    *,
    only: re.Pattern[str] | None = None,
    rules: SettingsRules = NO_SETTINGS_RULES,
    start_ns: int | None = None,
) -> PolicyTestRun:
    """Runs every test whose name matches `only` (None: all), as a scheduler with the settings of `rules` would.
    `start_ns` is the start of tests that state none."""
    run = PolicyTestRun()
    for path in paths:
        run.files.append(_run_file(path, run, only, rules, start_ns))
    return run


def _run_file(
    path: str, run: PolicyTestRun, only: re.Pattern[str] | None, rules: SettingsRules, start_ns: int | None
) -> TestFileResult:
    dependencies = [path]
    try:
        document = _read(path)
        policy_path = str(Path(path).parent / document.values["policy"])
        _require_project_files(document, policy_path)
        dependencies += _dependencies(document, policy_path)
        games = [
            _load_test_case(document, index, policy_path, rules, start_ns)
            for index in range(len(document.values["tests"]))
        ]
        problems = tuple(diagnostic for game in games for diagnostic in game.expectations.problems())
        if problems:
            raise UnusableTestFile(problems)
    except UnusableTestFile as error:
        return TestFileResult(path, (), error.diagnostics, tuple(dependencies))
    program = games[0].program
    key = str(Path(policy_path).resolve()), program.name
    coverage = run.coverages.setdefault(key, new_coverage(program))
    wanted = [game for game in games if only is None or only.search(game.name)]
    return TestFileResult(
        path,
        tuple(_run_test_case(game, coverage, rules.permissions) for game in wanted),
        (),
        tuple(dependencies),
    )


@dataclass(frozen=True, slots=True)
class _TestCase:
    name: str
    span: Span
    program: Program
    scenario: Scenario
    expectations: Expectations


def _load_test_case(
    document: YamlDocument, index: int, policy_path: str, rules: SettingsRules, start_ns: int | None
) -> _TestCase:
    program = _load_program(document, index, policy_path, rules)
    scenario = read_scenario(document, index, program, start_ns)
    name = document.values["tests"][index]["name"]
    span = document.span("tests", index, "name")
    return _TestCase(name, span, program, scenario, Expectations(document, index, program, scenario))


def _run_test_case(game: _TestCase, coverage: Coverage, permissions: PolicyPermissions) -> PolicyTestResult:
    play = ScenarioRunner(game.program, game.scenario, game.expectations.pods_to_explain, permissions)
    try:
        for moment in play.rounds():
            record_round(coverage, game.program, moment)
    except StepLimitExceeded:
        return PolicyTestResult(
            game.name, game.span, (ExpectationFailure(game.span, "the scheduler did not become idle"),)
        )
    return PolicyTestResult(game.name, game.span, tuple(game.expectations.failures(play.result)))


def _read(path: str) -> YamlDocument:
    try:
        require_project_file(Path(path), Path(path).parent)
        text = read_text(Path(path))
    except UnreadableFile as error:
        raise UnusableTestFile(
            (unusable_diagnostic(f"{path}: {error}", Span(Source(path, ""), 0, 0)),)
        ) from error
    document = parse_document(Source(path, text))
    problems = tuple(
        unusable_diagnostic(f"{'.'.join(map(str, where)) or 'the file'}: {message}", document.span(*where))
        for where, message in schema_violations("policy-test", document.values)
    )
    if problems:
        raise UnusableTestFile(problems)
    return document


def _load_program(document: YamlDocument, index: int, path: str, rules: SettingsRules) -> Program:
    """The policy with the test's parameter values, which override those of the settings."""
    test = document.values["tests"][index]
    params = {**document.values.get("params", {}), **test.get("params", {})}
    params_path: tuple[str | int, ...] = ("tests", index, "params") if "params" in test else ("params",)
    try:
        flags = [_parameter_flag(*parameter) for parameter in params.items()]
        program = choose_policy(path, document.values.get("name"), flags, rules.load)
    except UnusableFile as error:
        span = document.span(*params_path) if "--param" in str(error) else document.span("policy")
        raise UnusableTestFile((unusable_diagnostic(str(error), span),)) from error
    except PolicyHasErrors as error:
        raise UnusableTestFile(error.diagnostics) from error
    problems = rules.problems(program)
    if problems:
        raise UnusableTestFile(problems)
    return program


def _parameter_flag(name: str, value: Any) -> str:
    """A value in the form of `--param`."""
    match value:
        case bool():
            return f"{name}={str(value).lower()}"
        case list():
            return f"{name}={','.join(map(str, value))}"
        case _:
            return f"{name}={value}"


def _require_project_files(document: YamlDocument, policy_path: str) -> None:
    folder = Path(document.source.name).parent
    named = [(policy_path, document.span("policy"))]
    for at in ((), *(("tests", index) for index in range(len(document.values["tests"])))):
        section = document.values["tests"][at[1]] if at else document.values
        paths = section.get("cluster", ())
        named += [
            (str(folder / path), document.span(*at, "cluster"))
            for path in ([paths] if isinstance(paths, str) else paths)
        ]
    for path, span in named:
        try:
            require_project_file(Path(path), folder)
        except UnreadableFile as error:
            raise UnusableTestFile((unusable_diagnostic(f"{path}: {error}", span),)) from None


def _dependencies(document: YamlDocument, policy_path: str) -> Iterator[str]:
    """The policy, everything in its folder that it could include, and cluster files."""
    yield policy_path
    yield from (str(file) for file in sorted(Path(policy_path).parent.glob("*.policy")))
    folder = Path(document.source.name).parent
    for section in (document.values, *document.values["tests"]):
        named = section.get("cluster", ())
        yield from (str(folder / file) for file in ([named] if isinstance(named, str) else named))
