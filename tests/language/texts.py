"""Random policy texts that parse: every statement, with comments, line breaks and empty lines in unlikely places.

They are about syntax only; `tests.strategies` makes programs that also check.
"""

from hypothesis import strategies as st

from policysched.lang.parse.tokens import significant_tokens

names = st.sampled_from(["a", "net_rx", "unit", "cool2", "_x", "elsewhere", "count", "normal"])
rule_names = st.sampled_from(["hot", "fit", "node_resources_fit", "x9"])
numbers = st.sampled_from(["0", "1", "85%", "1.5Gi", "100m", "800Mbps", "90s"])
strings = st.sampled_from(
    ['""', '"a"', '"example.com/pool"', r'"say \"hi\"\\\n"', '"# no comment"', '"{ (["']
)


_references = names | st.sampled_from(
    ['pod.labels["a/b"]', "node.free.cpu", "now", 'pod.requests["nvidia.com/gpu"]']
)
_leaves = _references | numbers | strings | st.sampled_from(["true", "false"])
_shapes = st.sampled_from(
    [
        *(f"({{}}) {operator} ({{}})" for operator in ("or", "and", "+", "-", "*", "/", "else")),
        *(f"({{}}) {operator} ({{}})" for operator in ("==", "!=", "<", "<=", ">", ">=", "in", "not in")),
        "{leaf} + {leaf} * {leaf}",
        "{leaf} and {leaf} or not {leaf}",
        "{leaf} / {leaf} else {leaf} - {leaf}",
        "(not ({}))",
        "mean of {} over nodes",
        "max of {} over nodes after placing + {leaf}",
        "(if {} then ({}) else {})",
        "(if {} then {leaf} + {leaf} else if {leaf} then {leaf} and {leaf} else {})",
        "-({})",
        "(has {reference})",
        "min({}, {})",
        "[{}, {}]",
        "count(pods on node where {})",
        "count(pods where {})",
        "count(all pods where {})",
        "count(placed pods)",
        "sum({} over placed pods where {})",
        'count(pods in "zone" where {})',
        "count(pods on node)",
        "[]",
        "({})",
    ]
)


@st.composite
def _expressions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(_leaves)
    shape = draw(_shapes)
    inner = [draw(_expressions(depth - 1)) for _ in range(shape.count("{}"))]
    # A text behind `else` could end the rule, so here it is a name.
    return shape.format(*inner, leaf=draw(names | numbers), reference=draw(_references))


expressions = _expressions()
params = st.deferred(lambda: _params)
_params = st.lists(
    st.one_of(
        st.builds("{} = {}".format, names, expressions),
        st.just('resources = {"cpu" = 1, "nvidia.com/gpu" = 5}'),
        st.just("limits { above = 50%  then = disable }"),
    ),
    max_size=4,
).map(lambda items: "{ " + "\n".join(items) + " }")


def _optional(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.just("") | strategy


def _joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda texts: " ".join(filter(None, texts)))


_when = _optional(expressions.map("when {}".format))
_missing = _optional(st.sampled_from(["missing pass", "missing 50", "missing worst"]))
_recover = st.sampled_from(
    ["", "", "recover 600Mbps for 2m", "recover limit * 70% for 2 * wait", "recover -(a + b) for 90s"]
)
filters = st.deferred(lambda: _filters)
_filters = _joined(
    st.sampled_from(["filter", "locked filter"]),
    rule_names,
    _when,
    _optional(_joined(st.sampled_from(["require", "reject"]), expressions, _recover)),
    _missing,
    _optional(st.just("scaleup no")),
    _optional(strings.map("else {}".format)),
    _optional(params),
)
scores = st.deferred(lambda: _scores)
_scores = _joined(
    st.just("score"),
    rule_names,
    st.just("weight 3"),
    _when,
    _optional(_joined(st.sampled_from(["lower", "higher", "prefer"]), expressions)),
    _optional(st.sampled_from(["normalize max", "normalize range(0bps, 1Gbps)"])),
    _missing,
    _optional(params),
)
layer_statements = st.deferred(lambda: _layer_statements)
_layer_statements = st.one_of(
    filters,
    scores,
    filters.map("replace {}".format),
    _joined(st.just("amend"), rule_names, _when, _missing),
    st.builds("reweight {} 7".format, rule_names),
    st.builds("drop {}{}".format, st.sampled_from(["", "filter ", "score "]), rule_names),
)
layers = st.deferred(lambda: _layers)
_layers = st.builds(
    "layer {} when {} {{\n{}\n}}".format,
    rule_names,
    expressions,
    st.lists(layer_statements, max_size=3).map("\n".join),
)
inputs = _joined(
    st.builds("input {}: int = pod.labels[{}]".format, st.sampled_from(["a", "b"]), strings),
    _optional(st.just('unit "Mbit/s"')),
    _optional(
        st.one_of(expressions.map("default {}".format), st.sampled_from(["optional", 'required "say it"']))
    ),
    _optional(st.sampled_from(["invalid default", 'invalid reject "no number"'])),
)
statements = st.deferred(lambda: _statements)
_statements = st.one_of(
    st.sampled_from(
        [
            "policy example version 1",
            "library base version 1",
            "include kube_default",
            'include kube_default "1.34"',
            'include "base.policy"',
            "preemption never",
            "outage { above = 50%  then = disable }",
        ]
    ),
    st.builds("let {}: list<string> = {}".format, st.sampled_from(["a", "b"]), expressions),
    inputs,
    st.builds("metric {}: ratio {}".format, st.sampled_from(["a", "b"]), params),
    st.builds("state {}: float {}".format, st.sampled_from(["a", "b"]), params),
    st.lists(_joined(expressions, st.sampled_from(["", "asc", "desc"])), min_size=1, max_size=4).map(
        lambda keys: "queue by " + ", ".join(keys)
    ),
    _joined(expressions.map("gang by {}".format), _optional(params)),
    st.builds("preemption {}".format, params),
    st.builds("resource {} {}".format, st.sampled_from(["a", "b"]), params),
    layer_statements,
    layers,
)
policies = st.lists(statements, min_size=1, max_size=5).map(lambda lines: "\n".join(lines) + "\n")


@st.composite
def decorated_policies(draw: st.DrawFn) -> str:
    """Between any two tokens: nothing, spaces, line breaks, comments. Statements still begin on lines of their own,
    and what goes on with one is indented."""
    text = draw(policies)
    tokens = significant_tokens(text, 0, len(text))
    parts: list[str] = []
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        parts.append(token.text)
        behind = text[token.end : following.start] if following is not None else "\n"
        between = draw(
            st.sampled_from(["", "", "", "", " ", "  # c1", "\n# c2", "\n\n\n  ", "  # c3\n  # c4\n"])
        )
        parts.append(f"{between}\n{behind.lstrip(' ') or '  '}" if "#" in between else f"{between}{behind}")
    return "".join(parts)
