"""Limits on what one text can make the checker do: its includes, its diagnostics, its time and memory."""

import contextlib
import difflib
import sys
from collections.abc import Iterator

import pytest

from policysched.lang.check import check_sources, check_text, include
from policysched.lang.check.include import _Expander
from policysched.lang.check.limits import TextLimitExceeded
from policysched.lang.diagnostics import ignore_comments
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.policy_files.parameter_values import parse_parameter_flags
from policysched.text import Severity, Source, Span, suggestions

HEADER = "policy test version 1\ninclude kube_default\n"


def sources(**texts: str) -> dict[str, Source]:
    return {f"{name}.policy": Source(f"{name}.policy", text) for name, text in texts.items()}


def library(name: str, *included: str) -> str:
    includes = "".join(f'include "{other}.policy"\n' for other in included)
    return f"library {name} version 1\n{includes}filter f_{name} require node.pods < 9\n"


# ── includes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def visited_statements(monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> int:
    visits = 0
    visit = _Expander.include

    def counted(*args: object, **kwargs: object) -> None:
        nonlocal visits
        visits += 1
        visit(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(_Expander, "include", counted)
    check_sources(sources(**texts))
    return visits


def test_libraries_that_all_include_each_other_are_expanded_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(include, "INCLUDED_STATEMENTS_MAX", 100)
    names = [f"l{index}" for index in range(20)]
    texts = {name: library(name, *(other for other in names if other != name)) for name in names}

    visits = visited_statements(monkeypatch, texts)

    assert visits <= 20 * (19 + 100)  # each text: its own includes, and at most 100 further ones


def test_a_text_that_includes_too_much_is_rejected_and_the_others_are_not() -> None:
    lets = "".join(f"let a{index}: int = {index}\n" for index in range(1_500))
    checked = check_sources(
        sources(
            one="library one version 1\n" + lets,
            two="library two version 1\n" + lets.replace("let a", "let b"),
            both=HEADER + 'include "one.policy"\ninclude "two.policy"\n',
            single=HEADER.replace("test", "single") + 'include "one.policy"\n',
        )
    ).sources

    (error,) = [d for d in checked["both.policy"].diagnostics if d.severity is Severity.ERROR]
    assert (error.code, error.message) == (
        "PS241",
        "the included libraries have more than 2,000 statements",
    )
    assert error.span is not None and error.span.text == 'include "two.policy"'
    assert checked["single.policy"].program is not None


# ── diagnostics ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_diagnostics_beyond_the_limit_are_counted() -> None:
    checked = check_text(HEADER + "".join(f"drop filter f{index}\n" for index in range(1_734)))

    *shown, more = checked.diagnostics
    assert [d.message for d in shown] == [f"unknown filter `f{index}`" for index in range(500)]
    assert (more.code, more.message) == ("PS006", "and 1,234 more diagnostics in this text")
    assert more.severity is Severity.ERROR


def test_errors_are_shown_before_warnings_and_warnings_left_out_reject_nothing() -> None:
    unused = "".join(f"let a{index}: int = {index}\n" for index in range(600))

    valid = check_text(HEADER + unused)
    broken = check_text(HEADER + unused + "drop filter none\n" * 3)

    assert valid.program is not None
    assert valid.diagnostics[-1].severity is Severity.WARNING
    assert [d.code for d in broken.diagnostics if d.severity is Severity.ERROR] == ["PS229"] * 3


@pytest.mark.parametrize(
    "text",
    [
        'filter f require node.pods < 3 says "{long}"',
        'input a: int = pod.labels["a"] optional invalid reject "{long}"',
    ],
)
def test_a_message_of_thousands_of_characters_is_rejected(text: str) -> None:
    """Every pending pod has a copy."""
    longest, longer = (
        check_text(HEADER + text.replace("{long}", "x" * count) + "\n") for count in (2_000, 2_001)
    )

    assert [error.code for error in longest.diagnostics if error.severity is Severity.ERROR] == []
    (error,) = [error for error in longer.diagnostics if error.severity is Severity.ERROR]
    assert (error.code, error.message) == ("PS126", "the message has 2,001 characters, the limit is 2,000")


def test_a_message_with_thousands_of_values_is_rejected() -> None:
    text = HEADER + 'filter f require node.pods < 3 says "' + "{node.pods} " * 101 + '"\n'

    (error,) = check_text(text).diagnostics

    assert (error.code, error.message) == ("PS126", "the message has 101 values, the limit is 100")
    assert check_text(text.replace("{node.pods} ", "", 1)).program is not None


# ── names ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "filter {name} require node.pods < 3",
        "score {name} weight 1 lower node.pods normalize range(0, 10)",
        "shadow filter {name} require node.pods < 3",
        "locked filter {name} require node.pods < 3",
        "param {name}: int = 3",
        "let {name}: int = 3",
        'input {name}: int = pod.labels["a"] default 1 invalid default',
        'metric {name}: ratio {{ query = "a" unit = "1" join = node every = 15s stale = 90s }}',
        "layer {name} when pod.priority > 3 {{ drop node_ports }}",
        "quota {name} by pod.namespace {{ others {{ cpu = 3 }} }}",
        "filter f require {name}.pods < 3",
    ],
)
def test_a_name_is_as_long_as_a_dns_label_at_most(text: str) -> None:
    """It is in the message of each pod that a rule rejects, and in labels of metrics."""
    longest, longer = (
        check_text(HEADER + text.format(name="n" * count) + "\n").diagnostics for count in (63, 64)
    )

    assert "PS134" not in [error.code for error in longest]
    (error,) = [error for error in longer if error.code == "PS134"]
    assert error.severity is Severity.ERROR and error.span is not None and error.span.text == "n" * 64
    assert error.message == f"the name `{'n' * 63}...` has 64 characters, the limit is 63"


def test_long_words_in_comments_and_strings_are_no_names() -> None:
    long = "n" * 64

    checked = check_text(f'{HEADER}filter f require node.pods < 3 says "{long}"  # {long}\n')

    assert "PS134" not in [error.code for error in checked.diagnostics]


@pytest.mark.parametrize("row", ['"{name}" {{ cpu = 1 }}', 'others {{ "{name}" = 1 }}'])
def test_names_in_quotas_are_as_long_as_the_key_of_a_label_at_most(row: str) -> None:
    text = HEADER + "quota q by pod.namespace { " + row + " }\n"

    longest, longer = (
        check_text(text.replace("{name}", "n" * n).replace("{{", "{").replace("}}", "}")) for n in (317, 318)
    )

    assert "PS134" not in [error.code for error in longest.diagnostics]
    (error,) = [error for error in longer.diagnostics if error.code == "PS134"]
    assert error.span is not None and error.span.text == f'"{"n" * 318}"'


# ── strings ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        'filter f require pod.namespace == "{long}"',
        'filter f require pod.namespace in ["a\\"", "{long}"]',
        'filter f require has pod.annotations["{long}"]',
        'filter f require node.pods < 3 says "{long}"',
        'param a: string = "{long}"\nfilter f require pod.namespace == a',
        'metric m: ratio { query = "{long}" unit = "1" join = node every = 15s stale = 90s }',
    ],
)
def test_a_string_has_a_limit(text: str) -> None:
    limited = text.replace("{long}", "x" * 4_095 + r"\\"), text.replace("{long}", "x" * 4_097)
    longest, longer = (check_text(f"{HEADER}{written}\n").diagnostics for written in limited)

    assert "PS135" not in [error.code for error in longest]
    (error,) = [error for error in longer if error.severity is Severity.ERROR]
    assert (error.code, error.message) == ("PS135", "the string has 4,097 characters, the limit is 4,096")
    assert error.span is not None and error.span.text == f'"{"x" * 4_097}"'


def test_the_value_of_a_parameter_has_the_limit_of_a_string() -> None:
    declared = f'{HEADER}param a: string = "b"\nfilter f require pod.namespace == a\n'
    longest, longer = (
        check_text(declared, parameter_values=parse_parameter_flags([f"a={'x' * count}"])).diagnostics
        for count in (4_096, 4_097)
    )

    assert [error.code for error in longest if error.severity is Severity.ERROR] == []
    (error,) = [error for error in longer if error.severity is Severity.ERROR]
    assert (error.code, error.label) == ("PS260", "too large")


def test_every_text_of_a_diagnostic_is_short() -> None:
    """They go to the log, to events and to `/policy` at each edit."""
    key = "k" * 3_000
    text = f'{HEADER}filter f require node.free["{key}"] > 3\nfilter g require node.labels["{key}"] == "x"\n'

    for item in check_text(text).diagnostics:
        texts = (item.message, item.label, item.help, *item.notes, *(label.text for label in item.related))
        assert max(map(len, texts)) <= 1_003, item


# ── time and memory ────────────────────────────────────────────────────────────────────────────────────────────────────


class Guard:
    """Ends the first thing that is done with one text."""

    def __init__(self, key: str, error: BaseException) -> None:
        self.key, self.error = key, error
        self.entered: list[str] = []

    @contextlib.contextmanager
    def __call__(self, key: str) -> Iterator[None]:
        self.entered.append(key)
        yield
        if key == self.key and self.entered.count(key) == 1:
            raise self.error


@pytest.mark.parametrize("error", [TextLimitExceeded("too long"), MemoryError()])
def test_a_text_that_exceeds_its_limits_is_rejected_and_the_others_are_not(error: BaseException) -> None:
    texts = sources(a=HEADER.replace("test", "a"), slow=HEADER.replace("test", "slow"), z=HEADER)

    checked = check_sources(texts, guard=Guard("slow.policy", error)).sources

    assert [checked[key].program is not None for key in texts] == [True, False, True]
    assert [d.code for d in checked["slow.policy"].diagnostics] == ["PS909"]


def test_a_library_that_exceeds_its_limits_is_not_charged_to_the_policy_that_includes_it() -> None:
    texts = sources(a=HEADER + 'include "slow.policy"\n', slow=library("slow"))

    checked = check_sources(texts, guard=Guard("slow.policy", TextLimitExceeded("too long"))).sources

    assert [d.code for d in checked["a.policy"].diagnostics] == ["PS227"]
    assert [d.code for d in checked["slow.policy"].diagnostics] == ["PS909"]


def test_texts_to_check_last_are_checked_last_and_the_result_is_the_same() -> None:
    texts = sources(a=HEADER, b=HEADER)
    guard = Guard("", TextLimitExceeded())

    last = check_sources(texts, guard=guard, check_last=["a.policy"])

    assert guard.entered[0] == "b.policy"
    assert list(last.sources) == ["a.policy", "b.policy"]
    assert last == check_sources(texts)


# ── suggestions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def compared_words(monkeypatch: pytest.MonkeyPatch, unknown_count: int) -> tuple[int, list[str]]:
    """How many words are compared for a text with 280 names and so many unknown ones, and the help of its diagnostics."""
    compared = 0
    find = difflib.get_close_matches

    def counted(word: str, words: list[str], **named: object) -> list[str]:
        nonlocal compared
        compared += len(words)
        return find(word, words, **named)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(suggestions, "get_close_matches", counted)
    names = "".join(f"param known_name_{index}: int = {index}\n" for index in range(280))
    rules = "".join(
        f"filter f{start} require {' or '.join(f'unknown_name_{start + index} > 3' for index in range(100))}\n"
        for start in range(0, unknown_count, 100)
    )
    diagnostics = check_text(HEADER + names + rules).diagnostics
    return compared, [diagnostic.help or "" for diagnostic in diagnostics if diagnostic.code == "PS210"]


def check_suggestions(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, helps = compared_words(monkeypatch, 200)

    assert compared <= suggestions.COMPARISONS_MAX
    assert helps[0].startswith("did you mean `known_name_")
    assert not helps[-1].startswith("did you mean")


def test_a_text_with_many_unknown_names_gets_suggestions_for_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_suggestions(monkeypatch)


def test_suggestions_without_a_limit_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policysched.lang.check.limited_suggestions", contextlib.nullcontext)

    with pytest.raises(AssertionError):
        check_suggestions(monkeypatch)


# ── ignore comments ──────────────────────────────────────────────────────────────────────────────────────────────────


def calls_to_ignore(lines: int) -> int:
    """Calls of Python functions while so many diagnostics are silenced by so many comments."""
    rules = [f"filter f{index} require node.pods < {index + 2}" for index in range(lines)]
    text = HEADER + "".join(f"{rule}  # policysched: ignore[PS307] measured\n" for rule in rules)
    source, calls = Source("test.policy", text), 0
    positions = [text.index(f"filter f{index} ") for index in range(lines)]
    diagnostics = [
        make_diagnostic("PS307", "some warning", Span(source, start, start + 6)) for start in positions
    ]

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        kept = ignore_comments.apply_ignore_comments(source, diagnostics)
    finally:
        sys.setprofile(None)
    assert kept == ()
    return calls


def test_ignore_comments_cost_in_proportion_to_their_number() -> None:
    assert calls_to_ignore(400) < 3 * calls_to_ignore(200)


def test_a_search_through_all_diagnostics_for_each_comment_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silence = ignore_comments._DiagnosticSites.silence

    def searching(self: ignore_comments._DiagnosticSites, code: str, line: int) -> bool:
        for diagnostic in self._diagnostics:
            assert diagnostic.span is not None
            diagnostic.span.source.position(diagnostic.span.start)
        return silence(self, code, line)

    monkeypatch.setattr(ignore_comments._DiagnosticSites, "silence", searching)

    with pytest.raises(AssertionError):
        test_ignore_comments_cost_in_proportion_to_their_number()
