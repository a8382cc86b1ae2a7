"""Reading policies: what the tree holds, where reading goes on after a mistake, and that nothing is too strange."""

import threading
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lark import Lark
from lark.exceptions import GrammarError
from lark.parsers.lalr_parser import LALR_Parser

from policysched.data_files import data_file
from policysched.lang.format.formatter import trees_equal
from policysched.lang.parse import TEXT_BYTES_MAX, parse, scanner
from policysched.lang.parse.grammar import START_RULES, parse_with_grammar
from policysched.lang.parse.keywords import CLAUSES, STATEMENTS
from policysched.lang.parse.tokens import significant_tokens
from policysched.lang.parse.tree_parts import ParseContext
from policysched.lang.syntax import tree as s
from policysched.text import Diagnostic, Source
from tests.language.texts import policies, statements


def read(text: str) -> tuple[s.SyntaxTree, tuple[Diagnostic, ...]]:
    return parse(Source("test.policy", text))


def codes(text: str) -> list[str]:
    return [diagnostic.code for diagnostic in read(text)[1]]


def only(text: str) -> s.Statement:
    document, problems = read(text)
    assert problems == ()
    (statement,) = document.statements
    return statement


def condition(text: str) -> s.Expression:
    rule = only(f"filter a require {text}")
    assert isinstance(rule, s.FilterDecl)
    (clause,) = rule.clauses
    assert isinstance(clause, s.RequireClause)
    return clause.condition


# ── the tree ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a or b and c", "a or (b and c)"),
        ("not a == b", "not (a == b)"),
        ("a + b * c < d - e - f", "(a + (b * c)) < ((d - e) - f)"),
        ("a - b / c else 0 > 1", "(a - ((b / c) else 0)) > 1"),
        ("a else b else c", "a else (b else c)"),
        ("a * b else c * d", "(a * b) else (c * d)"),
        ("-a * b", "(-a) * b"),
        ("not a not in [b]", "not (a not in [b])"),
        ("has a and b", "(has a) and b"),
    ],
)
def test_operators_bind_as_the_language_says(text: str, same: str) -> None:
    assert trees_equal(condition(text), condition(same))


def test_parentheses_that_matter_make_another_tree() -> None:
    assert not trees_equal(condition("(a or b) and c"), condition("a or b and c"))


def test_a_string_behind_else_at_the_end_of_a_rule_is_the_text_of_the_rule() -> None:
    rule = only('filter a require b scaleup no says "text" # behind')

    assert isinstance(rule, s.FilterDecl)
    assert [type(clause) for clause in rule.clauses] == [s.RequireClause, s.ScaleupClause, s.MessageClause]
    assert isinstance(rule.clauses[-1], s.MessageClause)
    assert rule.clauses[-1].text.value == "text"


def test_a_string_behind_else_before_another_clause_is_a_value() -> None:
    rule = only('filter a when b else "x" == "y" require c else "text" says "message"')

    assert isinstance(rule, s.FilterDecl)
    _when, require, message = rule.clauses
    assert isinstance(require, s.RequireClause) and isinstance(message, s.MessageClause)
    assert trees_equal(require.condition, condition('(c else "text")'))
    assert message.text.value == "message"


@pytest.mark.parametrize(
    "text",
    [
        'filter a require b else "text"',
        'filter a require b else # why\n  "text" # behind',
        'replace # what\n filter a require b else "text"',
        'locked filter a require b else "text"',
        'layer l when a { amend b require c else "text" }',
    ],
)
def test_the_older_form_of_a_message_is_the_same_tree(text: str) -> None:
    older, newer = only(text), only(text.replace("else", "says"))

    assert trees_equal(older, newer)


def test_the_end_of_a_score_is_a_value() -> None:
    assert codes('replace score a prefer b == c else "text"') == []


def test_a_string_behind_else_inside_an_expression_is_a_value() -> None:
    rule = only('filter a require pool else "none" == "x" says "text"')

    assert isinstance(rule, s.FilterDecl)
    require, text = rule.clauses
    assert isinstance(require, s.RequireClause)
    assert trees_equal(require.condition, condition('(pool else "none") == "x"'))
    assert isinstance(text, s.MessageClause)


def test_outside_of_rules_a_string_behind_else_is_always_a_value() -> None:
    statement = only('let pool: string = wanted else "general"')

    assert isinstance(statement, s.LetDecl)
    assert isinstance(statement.value, s.ElseExpr)


def test_words_of_clauses_can_be_names_of_parameters_and_inputs_of_functions() -> None:
    metric = only('metric m: ratio { query = "q"  unit = "1"  default = 3, when = 4 outage { above = 5% } }')

    assert isinstance(metric, s.MetricDecl)
    assert [param.name.text for param in metric.params] == ["query", "unit", "default", "when", "outage"]


def test_a_metric_can_be_joined_by_node_and_conditions_can_read_the_clock() -> None:
    assert codes("metric m: ratio { join = node }\nfilter a require now > pod.created\n") == []


def test_spans_point_at_the_source_with_parentheses_counted_in() -> None:
    product = condition("(a + b) * c")

    assert isinstance(product, s.BinaryExpr)
    assert product.span.text == "(a + b) * c"
    assert product.left.span.text == "(a + b)"
    assert product.op_span.text == "*"


def test_a_statement_ends_before_the_comment_behind_it() -> None:
    document, _ = read("let a: cpu = 1  # one\n# two\nlet b: cpu = 2\n")

    assert [statement.span.text for statement in document.statements] == ["let a: cpu = 1", "let b: cpu = 2"]
    assert [(comment.text, comment.is_own_line) for comment in document.comments] == [
        ("# one", False),
        ("# two", True),
    ]


def test_the_rule_behind_replace_may_stand_on_the_next_line() -> None:
    statement = only("replace\nlocked\nfilter a require b")

    assert isinstance(statement, s.ReplaceStatement)


def test_an_outage_in_a_metric_belongs_to_the_metric_and_on_its_own_to_the_policy() -> None:
    document, problems = read(
        "metric m: ratio {\n  outage { above = 5% }\n}\noutage { above = 50%  then = disable }\n"
    )

    assert problems == ()
    assert [type(statement) for statement in document.statements] == [s.MetricDecl, s.OutageDecl]


def test_locked_precedes_the_rule() -> None:
    rule = only("locked filter a require b")

    assert isinstance(rule, s.FilterDecl)
    assert rule.locked


def test_locked_precedes_a_parameter() -> None:
    parameter = only("locked\nparam crowd: int = 3 range 1..9")

    assert isinstance(parameter, s.ParameterDecl)
    assert parameter.locked and not only_parameter("param crowd: int = 3").locked


def only_parameter(text: str) -> s.ParameterDecl:
    parameter = only(text)
    assert isinstance(parameter, s.ParameterDecl)
    return parameter


def test_a_layer_can_stand_on_one_line() -> None:
    layer = only("layer l when a { drop b }")

    assert isinstance(layer, s.LayerDecl)
    assert [statement.span.text for statement in layer.body] == ["drop b"]


def test_strings_have_their_escapes_replaced() -> None:
    literal = condition(r'"\"\\\n"')
    assert isinstance(literal, s.StringLit)
    assert literal.value == '"\\\n'


# ── going on after a mistake ───────────────────────────────────────────────────────────────────────────────────────


def test_each_mistake_of_several_statements_is_reported_once_and_the_rest_is_read() -> None:
    text = """policy example version 1
let a: cpu = 100m &&
filter one require pod.labels[example.com/x] == "y"
filter two require node.ready
score three weight 3 lower net_rx normalise max
gang by pod.owner.name {
  min = 2
queue by desc pod.priority
filter four require node.ready
"""
    document, problems = read(text)

    assert [problem.code for problem in problems] == ["PS111", "PS112", "PS106", "PS102", "PS116"]
    names = [
        statement.name.text
        for statement in document.statements
        if isinstance(statement, s.FilterDecl | s.HeaderDecl)
    ]
    assert names == ["example", "two", "four"]
    assert document.unparsed_names == ("a", "one", "three")


def test_a_mistake_in_a_layer_leaves_the_other_rules_of_the_layer() -> None:
    document, problems = read("layer l when a {\n  amend b requires c\n  drop d\n}\nlet e: cpu = 1\n")

    assert [problem.code for problem in problems] == ["PS106"]
    layer, let = document.statements
    assert isinstance(layer, s.LayerDecl)
    assert [statement.span.text for statement in layer.body] == ["drop d"]
    assert isinstance(let, s.LetDecl)


def test_a_layer_without_its_opening_brace_is_one_mistake() -> None:
    assert codes("layer l when a\n  drop b\n}\nlet c: cpu = 1\n") == ["PS131"]


def test_a_brace_too_many_on_its_own_line_leaves_the_statement_before() -> None:
    document, problems = read("metric m: ratio {\n}\n}\nlet a: cpu = 1\n")

    assert [problem.code for problem in problems] == ["PS108"]
    assert len(document.statements) == 2


def test_every_one_letter_typo_of_a_clause_gets_the_right_word_offered() -> None:
    rule = 'filter r when a require b missing pass scaleup no says "t"'
    words = ["when", "require", "missing", "scaleup"]
    for word in words:
        assert _typos(word)
        for typo in sorted(_typos(word)):
            diagnostics = read(rule.replace(word, typo, 1))[1]

            assert [diagnostic.code for diagnostic in diagnostics] == ["PS106"], typo
            assert f"`{word}`" in diagnostics[0].help, (typo, diagnostics[0].help)
            assert diagnostics[0].span is not None
            assert diagnostics[0].span.text == typo


def _typos(word: str) -> set[str]:
    dropped = {word[:i] + word[i + 1 :] for i in range(len(word))}
    doubled = {word[: i + 1] + word[i:] for i in range(len(word))}
    swapped = {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)}
    return (dropped | doubled | swapped) - {word, *CLAUSES, *STATEMENTS}


def test_every_one_letter_typo_of_a_statement_gets_the_right_word_offered() -> None:
    for word in ("filter", "score", "metric", "input", "layer", "reweight"):
        assert _typos(word)
        for typo in sorted(_typos(word)):
            diagnostics = read(f"let a: cpu = 1\n{typo} hot weight 3\nlet b: cpu = 2\n")[1]

            assert [diagnostic.code for diagnostic in diagnostics] == ["PS106"], typo
            assert f"`{word}`" in diagnostics[0].help, (typo, diagnostics[0].help)


# ── limits ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_text_of_more_than_256_kib_is_not_read() -> None:
    largest = "#" * TEXT_BYTES_MAX

    assert codes(largest) == []
    assert codes(largest + "#") == ["PS005"]
    assert read(largest + "#")[0].statements == ()


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("(", ")"), ("not ", ""), ("-", ""), ("a else ", ""), ("min(", ")"), ("[", "]"), ("a == (b or ", ")")],
)
def test_nesting_is_limited(opening: str, closing: str) -> None:
    deep = f"filter a require {opening * 500}x{closing * 500}\n"

    assert codes(deep) in (["PS125"], ["PS126"])
    assert codes(f"filter a require {opening * 20}x{closing * 20}\n") == []


def test_an_expression_has_at_most_500_parts() -> None:
    assert codes("filter a require " + " and ".join(["b"] * 250)) == []
    assert codes("filter a require " + " and ".join(["b"] * 251)) == ["PS126"]


def test_a_layers_condition_is_limited_as_well() -> None:
    assert codes(f"layer l when {'not ' * 100}a {{\n}}\n") == ["PS125"]


# ── anything goes in ───────────────────────────────────────────────────────────────────────────────────────────────


def sensible(text: str) -> None:
    """Reading never fails, every place is in the text, and every character of it is accounted for in order."""
    document, problems = read(text)
    for problem in problems:
        assert problem.span is not None
        assert 0 <= problem.span.start <= problem.span.end <= len(text)
        assert problem.message and not problem.message.endswith(".")
    for before, after in pairwise(document.statements):
        assert before.span.end <= after.span.start


_snippets = st.sampled_from(
    ["filter a require ", "metric m: ratio {", "}", "layer l when x {", "(", ")", "[", "]", '"', "'", "“", "\\", "\n", "  ", "\t", "#",
     "//", "&&", "!", "{{", "$(", "else", 'else "t"', "not ", "5 min", "1,5", "%", ";", "\x00", "\u00a0", "é", "policy", "let", "missing",
     "desc", "queue by", "=", "==", "<", "in", ".", ",", ":", "count(pods on node where ", "count(pods where ", "\r\n", "\ud800"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@example("filter a require " + "not " * 500 + "b")
@example("layer a when b {{")
@example("layer a when b { layer c when d { drop e } }")
@given(st.text(max_size=60) | st.lists(_snippets, max_size=25).map("".join))
def test_any_text_can_be_read(text: str) -> None:
    sensible(text)


@settings(max_examples=150, deadline=None)
@given(policies, st.data())
def test_any_damaged_policy_can_be_read(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 8)))
        text = text[:start] + data.draw(_snippets | st.just("")) + text[end:]
    sensible(text)


@settings(max_examples=60, deadline=None)
@given(policies)
def test_a_policy_made_by_the_grammar_has_no_mistakes(text: str) -> None:
    assert codes(text) == []


def test_the_property_notices_a_reader_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policysched.lang.parse.check_expression_size", lambda _statement: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        sensible("filter a require b")


def test_two_threads_can_read_at_the_same_time() -> None:
    source_names: dict[str, set[str]] = {"one": set(), "two": set()}

    def work(name: str) -> None:
        for number in range(40):
            document, _ = parse(Source(name, f"let {name}{number}: cpu = 1\nfilter a require {name} > 1\n"))
            source_names[name] |= {statement.span.source.name for statement in document.statements}

    threads = [threading.Thread(target=work, args=(name,)) for name in source_names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert source_names == {"one": {"one"}, "two": {"two"}}


# ── the grammar ────────────────────────────────────────────────────────────────────────────────────────────────────


class _Strict(LALR_Parser):
    """Lark's `strict=True` for conflicts alone: its check of terminals needs a package that is not needed here."""

    def __init__(self, conf: object, debug: bool = False, strict: bool = False) -> None:
        super().__init__(conf, debug=debug, strict=True)


def _strictly(grammar: str) -> Lark:
    return Lark(
        grammar, parser="lalr", lexer="contextual", start=list(START_RULES), _plugins={"LALR_Parser": _Strict}
    )


def test_the_grammar_has_no_conflict() -> None:
    _strictly(data_file("grammar", "policy.lark").read_text(encoding="utf-8"))


def test_a_conflict_in_the_grammar_is_detected() -> None:
    grammar = data_file("grammar", "policy.lark").read_text(encoding="utf-8")

    with pytest.raises(GrammarError, match=r"[Cc]onflict"):
        _strictly(grammar.replace("| sum{part} IN sum{part} ", "| comparison{part} IN comparison{part} "))


def in_lines_of(size: int, text: str) -> str:
    """The first token on a line of its own, then `size` tokens per line. The `outage` of a metric is indented."""
    tokens = significant_tokens(text, 0, len(text))
    starts = [0, *range(1, len(tokens), size)]
    lines = [
        text[tokens[at].start : tokens[min(end, len(tokens)) - 1].end]
        for at, end in pairwise([*starts, len(tokens)])
    ]
    return "\n".join(
        f" {line}" if line.startswith("outage") and at else line for at, line in enumerate(lines)
    )


def cutting_agrees_with_the_grammar(texts: list[str], size: int) -> None:
    text = "".join(f"{in_lines_of(size, statement)}\n" for statement in texts)
    document, problems = read(text)

    assert problems == (), text
    whole = []
    for statement in texts:
        is_filter = "score" not in statement.split()[:3]
        context = ParseContext(Source("test.policy", statement), 0, len(statement), is_filter)
        whole.append(parse_with_grammar("statement", statement, context))
    assert trees_equal(document.statements, tuple(whole)), text


KEYWORDS_AT_THE_START_OF_A_LINE = [
    "score near weight 1 higher traffic_to(gang, talk) normalize range(0, 1) missing neutral",
    "score deep weight 1 lower if card.score > 3 and card.test then card.resource else 0 normalize max",
    "record records { state: int metric: string }",
    "resource gpu { capacity = a, request = b }",
    "drop filter filters",
    'include kube_default "1.34"',
    "reweight scores heavy",
    "amend layers weight 3 { resource = a }",
]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(statements.filter(lambda text: not text.startswith("layer")), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_statements_are_cut_where_the_grammar_ends_them(texts: list[str], size: int) -> None:
    cutting_agrees_with_the_grammar(texts, size)


@pytest.mark.parametrize("size", range(1, 7))
def test_keywords_at_the_start_of_a_line_are_cut_where_the_grammar_ends_them(size: int) -> None:
    cutting_agrees_with_the_grammar(KEYWORDS_AT_THE_START_OF_A_LINE, size)


@pytest.mark.parametrize(
    ("name", "answer"),
    [("can_begin_statement", True), ("value_follows", False), ("is_complete_statement", True)],
)
def test_the_property_notices_a_line_that_is_cut_off(
    name: str, answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, name, lambda *_: answer)

    with pytest.raises(AssertionError):
        for size in range(1, 7):
            cutting_agrees_with_the_grammar(KEYWORDS_AT_THE_START_OF_A_LINE, size)


@pytest.mark.parametrize("stray", ["order by pod.priority", "when pod.priority > 3", "kube_rl", "sort pods"])
def test_a_stray_line_does_not_break_the_include_before_it(stray: str) -> None:
    document, problems = read(f"policy p version 1\ninclude kube_default\n{stray}\ndrop image_locality\n")

    assert len(problems) == 1 and problems[0].span is not None
    assert problems[0].span.source.position(problems[0].span.start).line == 3
    assert [type(statement) for statement in document.statements] == [
        s.HeaderDecl,
        s.IncludeDecl,
        s.DropStatement,
    ]
