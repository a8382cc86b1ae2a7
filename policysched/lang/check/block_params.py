"""The parameters in the braces of a statement: unknown, duplicate and missing ones are reported."""

from collections.abc import Sequence
from dataclasses import dataclass

from policysched.lang.check.scope import Scope, declared_here, did_you_mean
from policysched.lang.parse.foreign_words import PARAMETER_WORDS
from policysched.lang.syntax import tree as s
from policysched.text import Span
from policysched.text.suggestions import nearest_match

ParamNode = s.Expression | s.MapLit


@dataclass(frozen=True, slots=True)
class BlockParams:
    """The known parameters of one block, without duplicates."""

    scope: Scope
    owner: str
    span: Span
    values: dict[str, ParamNode]
    misnamed: frozenset[str] = frozenset()  # reported under another name

    def get(self, name: str) -> ParamNode | None:
        return self.values.get(name)

    def required(self, name: str, example: str) -> ParamNode | None:
        value = self.values.get(name)
        if value is None and name not in self.misnamed:
            self.scope.report(
                "PS223",
                f"{self.owner} requires `{name}`",
                self.span,
                help=f"add `{name} = {example}` to its block",
            )
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str | None:
        """A bare word from a fixed set; None after a diagnostic."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, s.NameExpr) and value.name in choices:
            return value.name
        written = value.name if isinstance(value, s.NameExpr) else value.span.text
        choices_text = ", ".join(f"`{choice}`" for choice in choices)
        self.scope.report(
            "PS212",
            f"invalid value `{written}` of `{name}`",
            value.span,
            label="unknown choice",
            help=did_you_mean(written.strip('"'), choices) or f"expected one of {choices_text}",
        )
        return None


def check_block_params(
    scope: Scope, owner: str, span: Span, nodes: Sequence[s.Param | s.ParamBlock], known: Sequence[str]
) -> BlockParams:
    values: dict[str, ParamNode] = {}
    spans: dict[str, Span] = {}
    misnamed: set[str] = set()
    for node in nodes:
        name = node.name.text
        if name not in known:
            choices = ", ".join(f"`{choice}`" for choice in known)
            meant = PARAMETER_WORDS.get(name, "")
            meant = meant if meant in known else nearest_match(name, known) or ""
            misnamed.add(meant)
            scope.report(
                "PS222",
                f"{owner} has no parameter `{name}`",
                node.name.span,
                label="unknown parameter",
                help=(f"did you mean `{meant}`?" if meant else "")
                or (f"the parameters are {choices}" if known else "it has no parameters"),
            )
        elif isinstance(node, s.ParamBlock):
            scope.report("PS202", f"`{name}` takes a value, not a block: write `{name} = ...`", node.span)
            spans[name] = node.name.span
            values.setdefault(name, s.NameExpr("", node.span))
        elif name in spans:
            scope.report(
                "PS213",
                f"duplicate parameter `{name}`",
                node.name.span,
                label="set again",
                related=(declared_here(spans[name]),),
            )
        else:
            spans[name] = node.name.span
            values[name] = node.value
    return BlockParams(scope, owner, span, values, frozenset(misnamed))
