"""The text that a policy's hash covers, and from which alone the same program can be built again."""

from collections.abc import Iterable, Mapping

from policysched.lang.check.declared_parameters import with_value_as_default
from policysched.lang.check.rule_table import RuleNode
from policysched.lang.format.printer import print_tree
from policysched.lang.ir.declarations import Parameter
from policysched.lang.syntax import tree as s

_DECLARATIONS = (
    s.ParameterDecl
    | s.LetDecl
    | s.RecordDecl
    | s.InputDecl
    | s.MetricDecl
    | s.StateDecl
    | s.ResourceDecl
    | s.QuotaDecl
)


def canonical_text(
    header: s.HeaderDecl,
    statements: Iterable[s.Statement],
    final: tuple[s.Statement, ...],
    shadows: tuple[RuleNode, ...],
    parameters: Mapping[str, Parameter],
) -> str:
    """The policy without includes, changes, comments and empty lines: every declaration in its final form, formatted.

    `statements` are those of the text with its includes; `final` what is left of them once changes are applied.
    """
    statements = tuple(statements)
    declarations = [
        with_value_as_default(statement, parameters[statement.name.text])
        if isinstance(statement, s.ParameterDecl)
        else statement
        for statement in statements
        if isinstance(statement, _DECLARATIONS)
    ]
    ordered = (
        header,
        *declarations,
        *final,
        *(s.ShadowDecl(rule, rule.span) for rule in shadows),
        *(statement for statement in statements if isinstance(statement, s.ExtenderDecl)),
        *(statement for statement in statements if isinstance(statement, s.LayerDecl | s.CanaryDecl)),
    )
    return print_tree(s.SyntaxTree(ordered, (), header.span), keep_empty_lines=False)
