"""What a text may contain that a team owns: a policy on top of the operator's `required_base`.

The include of the base is the first statement, so that the base's rules come first and its locked ones stay. All other
includes also belong to the operator. Metrics and extenders use the operator's credentials, and resources read the pods of all
namespaces, so only the operator's libraries declare them. `team_reads` limits what the text reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.syntax import tree as s
from policysched.text import Diagnostic

_KINDS = {s.MetricDecl: "metric", s.ExtenderDecl: "extender", s.ResourceDecl: "resource"}


@dataclass(frozen=True, slots=True)
class RequiredBase:
    """`key` is the library that a team's policy includes first; `operator_keys` are all texts of the operator."""

    key: str
    operator_keys: frozenset[str]


def team_text_problems(document: s.SyntaxTree, base: RequiredBase) -> Iterator[Diagnostic]:
    """Errors in a text of a team. Statements with syntax errors are not in the tree, and reported elsewhere."""
    statements = [node for node in document.statements if not isinstance(node, s.HeaderDecl)]
    headers = [node for node in document.statements if isinstance(node, s.HeaderDecl)]
    first = statements[0] if statements else None
    if not (isinstance(first, s.IncludeDecl) and _included_key(first) == base.key):
        location = first or (headers[0] if headers else document)
        yield make_diagnostic(
            "PS910",
            f"the policy does not begin with the operator's `{base.key}`",
            location.span,
            label="expected the include of the base",
            help=f'write `include "{base.key}"` directly after the header',
        )
    for header in headers:
        if header.kind == "library":
            yield _not_allowed(header, "a library of its own", "move the rules to the policy")
    for node in statements:
        match node:
            case s.IncludeDecl() if (key := _included_key(node)) and key not in base.operator_keys:
                yield _not_allowed(node, f"the library `{key}`", "include only libraries of the operator")
            case s.MetricDecl() | s.ExtenderDecl() | s.ResourceDecl():
                kind = _KINDS[type(node)]
                yield _not_allowed(
                    node,
                    f"{kind} `{node.name.text}`",
                    f"use one that `{base.key}` declares, or ask its owner",
                )


def _included_key(node: s.IncludeDecl) -> str | None:
    return node.target.value if isinstance(node.target, s.StringLit) else None


def _not_allowed(node: s.Statement, subject: str, advice: str) -> Diagnostic:
    return make_diagnostic(
        "PS911",
        f"a policy that a team owns cannot have {subject}",
        node.span,
        label="only allowed in the operator's texts",
        help=advice,
    )
