"""Test files found, read and played; what came of them, with the coverage of each policy over all files."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policysched.files import Unreadable, is_file, is_folder, is_there, read_text
from policysched.harness.inputs import PolicyHasErrors, choose_policy
from policysched.lang.diagnostics.catalogue import diagnostic
from policysched.lang.ir.program import Program
from policysched.policy_files.sources import UnusableFile
from policysched.policytest.coverage import Coverage, coverage_of, look
from policysched.policytest.documents import BadDocument, Document, document_of, unusable
from policysched.policytest.expecting import Expectations, Failure
from policysched.policytest.playing import NeverAtRest, Play
from policysched.policytest.world import World, world_of
from policysched.schemas import misfits
from policysched.text import Diagnostic, Source, Span

SUFFIXES = ("_test.yaml", "_test.yml")


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test that was played. No failures: it passed."""

    name: str
    span: Span
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class FileResult:
    """One file. With `problems` none of its tests was played. `watched` are the files that it rests on."""

    path: str
    results: tuple[TestResult, ...]
    problems: tuple[Diagnostic, ...]
    watched: tuple[str, ...]


@dataclass(slots=True)
class Run:
    """All files of one run. `coverages` by policy file and name."""

    files: list[FileResult] = field(default_factory=list)
    coverages: dict[tuple[str, str], Coverage] = field(default_factory=dict)

    @property
    def results(self) -> list[TestResult]:
        return [one for file in self.files for one in file.results]

    @property
    def failed(self) -> int:
        return sum(1 for one in self.results if one.failures)

    @property
    def unusable(self) -> bool:
        return any(file.problems for file in self.files)

    def percent(self) -> int:
        """Of all outcomes of all policies, rounded down. 100 where there is nothing to reach."""
        whole = sum(len(one.outcomes) for one in self.coverages.values())
        return 100 if not whole else 100 * sum(len(one.reached) for one in self.coverages.values()) // whole

    def not_reached(self) -> list[Diagnostic]:
        return [
            diagnostic("PS701", f"no test has `{one.rule}` where it {_verb(one.what)}", span)
            for coverage in self.coverages.values()
            for one, span in coverage.left()
        ]


def _verb(what: str) -> str:
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
        elif is_there(path):
            found.append(str(path))
        else:
            raise UnusableFile(f"{path}: no such file")
    return list(dict.fromkeys(found))


def run(paths: Iterable[str], *, only: re.Pattern[str] | None = None) -> Run:
    """Play every test whose name `only` finds (None: all)."""
    whole = Run()
    for path in paths:
        whole.files.append(_run_file(path, whole, only))
    return whole


def _run_file(path: str, whole: Run, only: re.Pattern[str] | None) -> FileResult:
    watched = [path]
    try:
        document = _read(path)
        policy_path = str(Path(path).parent / document.values["policy"])
        watched += _rests_on(document, policy_path)
        games = [_game(document, index, policy_path) for index in range(len(document.values["tests"]))]
        problems = tuple(found for game in games for found in game.expectations.problems())
        if problems:
            raise BadDocument(problems)
    except BadDocument as error:
        return FileResult(path, (), error.findings, tuple(watched))
    program = games[0].program
    key = str(Path(policy_path).resolve()), program.name
    coverage = whole.coverages.setdefault(key, coverage_of(program))
    wanted = [game for game in games if only is None or only.search(game.name)]
    return FileResult(path, tuple(_play(game, coverage) for game in wanted), (), tuple(watched))


@dataclass(frozen=True, slots=True)
class _Game:
    name: str
    span: Span
    program: Program
    world: World
    expectations: Expectations


def _game(document: Document, index: int, policy_path: str) -> _Game:
    program = _program(document, index, policy_path)
    world = world_of(document, index, program)
    name = document.values["tests"][index]["name"]
    span = document.span("tests", index, "name")
    return _Game(name, span, program, world, Expectations(document, index, program, world))


def _play(game: _Game, coverage: Coverage) -> TestResult:
    play = Play(game.program, game.world, game.expectations.explained)
    try:
        for moment in play.moments():
            look(coverage, game.program, moment)
    except NeverAtRest:
        return TestResult(game.name, game.span, (Failure(game.span, "the scheduler never came to rest"),))
    return TestResult(game.name, game.span, tuple(game.expectations.failures(play.played)))


def _read(path: str) -> Document:
    try:
        text = read_text(Path(path))
    except Unreadable as error:
        raise BadDocument((unusable(f"{path}: {error}", Span(Source(path, ""), 0, 0)),)) from error
    document = document_of(Source(path, text))
    found = tuple(
        unusable(f"{'.'.join(map(str, where)) or 'the file'}: {words}", document.span(*where))
        for where, words in misfits("policy-test", document.values)
    )
    if found:
        raise BadDocument(found)
    return document


def _program(document: Document, index: int, path: str) -> Program:
    """The policy, with the values that the test gives to its parameters."""
    test = document.values["tests"][index]
    params = {**document.values.get("params", {}), **test.get("params", {})}
    place: tuple[str | int, ...] = ("tests", index, "params") if "params" in test else ("params",)
    try:
        return choose_policy(path, document.values.get("name"), [_flag(*one) for one in params.items()])
    except UnusableFile as error:
        span = document.span(*place) if "--param" in str(error) else document.span("policy")
        raise BadDocument((unusable(str(error), span),)) from error
    except PolicyHasErrors as error:
        raise BadDocument(error.diagnostics) from error


def _flag(name: str, value: Any) -> str:
    """As `--param` has it."""
    match value:
        case bool():
            return f"{name}={str(value).lower()}"
        case list():
            return f"{name}={','.join(map(str, value))}"
        case _:
            return f"{name}={value}"


def _rests_on(document: Document, policy_path: str) -> Iterator[str]:
    """The policy's folder stands for what it includes."""
    yield policy_path
    yield from (str(one) for one in sorted(Path(policy_path).parent.glob("*.policy")))
    folder = Path(document.source.name).parent
    for section in (document.values, *document.values["tests"]):
        named = section.get("cluster", ())
        yield from (str(folder / one) for one in ([named] if isinstance(named, str) else named))
