"""Whatever stands in a text or in a tree, the checker answers."""

import random
import re
from dataclasses import fields, is_dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policysched.lang.check import check_text
from policysched.lang.check.passes import build_program, check_document
from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Severity, Source
from tests.language.check.checking import HEAD, codes
from tests.strategies import policies

SEARCH = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
_WORD = re.compile(r"\s+|\w+|.", re.DOTALL)
_EXPRESSIONS = s.Expression.__args__


@SEARCH
@given(policies(), st.randoms(use_true_random=False))
def test_a_text_with_lost_doubled_and_swapped_words_gets_diagnostics(
    text: str, chance: random.Random
) -> None:
    words = _WORD.findall(text)
    for _ in range(chance.randint(1, 4)):
        at, other = chance.randrange(len(words)), chance.randrange(len(words))
        words[at] = chance.choice(("", words[other], words[at] * 2))

    checked = check_text("".join(words))

    assert (checked.program is None) or not any(
        diagnostic.severity is Severity.ERROR for diagnostic in checked.diagnostics
    )


@SEARCH
@given(policies(), st.randoms(use_true_random=False))
def test_a_tree_with_expressions_in_wrong_places_is_answered(text: str, chance: random.Random) -> None:
    document = parse(Source("test.policy", text))[0]
    expressions: list[s.Expression] = []
    collect(document.statements, expressions)
    wrong = replace(document, statements=exchanged(document.statements, expressions, chance))

    work, diagnostics = check_document("test.policy", wrong, nothing_beside, ())

    if not any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics):
        assert build_program(work).rules.filters == work.rules.filters


def nothing_beside(key: str) -> None:
    return None


def collect(holder: object, expressions: list[s.Expression]) -> None:
    if isinstance(holder, _EXPRESSIONS):
        expressions.append(holder)
    if isinstance(holder, tuple):
        for item in holder:
            collect(item, expressions)
    elif is_dataclass(holder):
        for field in fields(holder):
            if field.name != "span":
                collect(getattr(holder, field.name), expressions)


def exchanged(holder: object, expressions: list[s.Expression], chance: random.Random) -> object:
    """The same with one in twenty expressions replaced by another of the text. Texts and weights keep their kind."""
    if isinstance(holder, tuple):
        return tuple(exchanged(item, expressions, chance) for item in holder)
    if not is_dataclass(holder) or isinstance(holder, s.Identifier | s.PathPart | s.StringLit):
        return holder
    if isinstance(holder, _EXPRESSIONS) and chance.random() < 0.05:
        return chance.choice(expressions)
    fixed = ("span", "op_span", "weight", "choice", "text", "version", "unit")
    changes = {
        field.name: exchanged(getattr(holder, field.name), expressions, chance)
        for field in fields(holder)
        if field.name not in fixed
    }
    return replace(holder, **changes)


def test_deep_and_long_expressions_are_refused_and_long_chains_are_not() -> None:
    chain = " and ".join(f"pod.priority != {index}" for index in range(120))
    listed = ", ".join(f'"n{index}"' for index in range(400))

    assert codes(f"filter chain require {chain}") == []
    assert codes(f"filter names require pod.namespace in [{listed}]") == []
    assert codes(f"queue by {' + '.join(['pod.priority'] * 90)}") == ["PS125"]
    assert codes(f"queue by {'min(1, ' * 60}pod.priority{')' * 60}") == []
    assert codes(f"filter deep require {'not ' * 400}node.ready") == ["PS125"]


def test_a_long_way_of_libraries_is_answered() -> None:
    others = {
        f"l{index}.policy": f'library l{index} version 1\ninclude "l{index + 1}.policy"\n'
        for index in range(300)
    }
    others["l300.policy"] = "library l300 version 1\n"

    assert codes('include "l0.policy"', others=others) == ["PS228"]


def test_five_hundred_rules_are_accepted_and_one_more_is_not() -> None:
    rules = [f"filter f{index} reject pod.priority == {index}" for index in range(500)]

    assert "PS239" not in codes(*rules, head="policy test version 1\n")
    assert (
        codes(*rules, "score ready weight 1 prefer node.ready", head="policy test version 1\n").count("PS239")
        == 1
    )


def test_a_name_whose_declaration_does_not_parse_is_not_reported_again() -> None:
    assert codes("let limit: int = = 3", "queue by limit", "filter f require node.pods < limit") == ["PS109"]


def test_every_mistake_is_reported_once_and_at_its_place() -> None:
    text = (
        HEAD
        + 'filter a require node.labels["x"] == "y"\nfilter b require nope\nreweight c 3\nfilter b require other_nope\n'
    )

    diagnostics = check_text(text).diagnostics

    places = [
        (diagnostic.code, diagnostic.span.source.position(diagnostic.span.start).line)
        for diagnostic in diagnostics
        if diagnostic.span is not None
    ]
    assert places == [("PS201", 3), ("PS210", 4), ("PS229", 5), ("PS213", 6), ("PS210", 6)]
