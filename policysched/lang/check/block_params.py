"""Parameters in braces, by name: known ones once, unknown ones with the nearest that is meant."""

from collections.abc import Sequence
from dataclasses import dataclass

from policysched.lang.check.scope import Scope, declared_here, did_you_mean
from policysched.lang.syntax import tree as s
from policysched.text import Span

ParamNode = s.Expression | s.MapLit


@dataclass(frozen=True, slots=True)
class BlockParams:
    """The parameters of one block, after unknown and doubled names were reported."""

    scope: Scope
    owner: str
    span: Span
    values: dict[str, ParamNode]

    def get(self, name: str) -> ParamNode | None:
        return self.values.get(name)

    def required(self, name: str, example: str) -> ParamNode | None:
        value = self.values.get(name)
        if value is None:
            self.scope.report(
                "PS223",
                f"{self.owner} has no `{name}`",
                self.span,
                help=f"add `{name} = {example}` in its braces",
            )
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str | None:
        """A bare word out of a few; None after a finding."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, s.NameExpr) and value.name in choices:
            return value.name
        written = value.name if isinstance(value, s.NameExpr) else value.span.text
        known = ", ".join(f"`{choice}`" for choice in choices)
        self.scope.report(
            "PS212",
            f"`{written}` is no value of `{name}`",
            value.span,
            label="unknown word",
            help=did_you_mean(written.strip('"'), choices) or f"it is one of {known}",
        )
        return None


def check_block_params(
    scope: Scope, owner: str, span: Span, nodes: Sequence[s.Param | s.ParamBlock], known: Sequence[str]
) -> BlockParams:
    values: dict[str, ParamNode] = {}
    places: dict[str, Span] = {}
    for node in nodes:
        name = node.name.text
        if name not in known:
            choices = ", ".join(f"`{one}`" for one in known)
            scope.report(
                "PS222",
                f"{owner} has no parameter `{name}`",
                node.name.span,
                label="unknown parameter",
                help=did_you_mean(name, known)
                or (f"its parameters are {choices}" if known else "it has none"),
            )
        elif isinstance(node, s.ParamBlock):
            scope.report("PS202", f"`{name}` is a single value: `{name} = ...`", node.span)
            places[name] = node.name.span
            values.setdefault(name, s.NameExpr("", node.span))
        elif name in places:
            scope.report(
                "PS213",
                f"`{name}` is given twice",
                node.name.span,
                label="given again",
                related=(declared_here(places[name]),),
            )
        else:
            places[name] = node.name.span
            values[name] = node.value
    return BlockParams(scope, owner, span, values)
