"""`include`: other texts of the same bundle, and kube-scheduler's defaults, put in their place.

What comes out is a list of statements without includes, each in the order in which it takes effect. A library that was
included already (by another library) is not brought twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from policysched.builtins.registry import BUILTINS, KUBE_DEFAULT_VERSION, KUBE_SCHEDULER_RELEASES
from policysched.lang.check.scope import Scope, did_you_mean
from policysched.lang.syntax import tree as s
from policysched.text import Span

INCLUDE_DEPTH_MAX = 16


@dataclass(frozen=True, slots=True)
class IncludeTarget:
    """What an include finds under a key: a text that is a library or is not, and is broken or is not."""

    key: str
    document: s.SyntaxTree
    is_library: bool
    has_errors: bool


FindIncludeTarget = Callable[[str], IncludeTarget | None]


@dataclass(slots=True)
class IncludeExpansion:
    """Statements in order; `include_spans` gives for a statement that came from elsewhere the `include` in the text itself."""

    statements: list[s.Statement] = field(default_factory=list)
    include_spans: dict[int, Span] = field(default_factory=dict)


def expand_document(
    scope: Scope,
    key: str,
    document: s.SyntaxTree,
    find_include_target: FindIncludeTarget,
    bundle_keys: tuple[str, ...],
) -> IncludeExpansion:
    """All statements but headers and includes. Findings are at the include in the text itself."""
    expansion = IncludeExpansion()
    _Expander(scope, find_include_target, bundle_keys, expansion).run(document, via=None, above=(key,))
    return expansion


@dataclass(slots=True)
class _Expander:
    scope: Scope
    find_include_target: FindIncludeTarget
    bundle_keys: tuple[str, ...]
    expansion: IncludeExpansion
    included: set[str] = field(default_factory=set)

    def run(self, document: s.SyntaxTree, *, via: Span | None, above: tuple[str, ...]) -> None:
        for statement in document.statements:
            match statement:
                case s.HeaderDecl():
                    continue
                case s.IncludeDecl():
                    self.include(statement, via=via or statement.span, above=above)
                case _:
                    self.add(statement, via)

    def add(self, statement: s.Statement, via: Span | None) -> None:
        self.expansion.statements.append(statement)
        if via is not None:
            self.expansion.include_spans[id(statement)] = via

    def include(self, node: s.IncludeDecl, *, via: Span, above: tuple[str, ...]) -> None:
        if isinstance(node.target, s.Identifier):
            if self.accept_kube_default(node, node.target):
                version = KUBE_DEFAULT_VERSION if node.version is None else node.version.value
                for statement in kube_default_statements(node.span, version):
                    self.add(statement, via)
            return
        name = node.target.value
        found = self.find_include_target(name)
        if found is None:
            near = did_you_mean(name, self.bundle_keys)
            known = ", ".join(f"`{key}`" for key in self.bundle_keys if key != above[0])
            self.scope.report(
                "PS225",
                f"there is no `{name}` beside this policy",
                node.target.span,
                label="not found",
                help=near
                or (f"beside it are {known}" if known else "it is looked up in the same ConfigMap or folder"),
            )
        elif len(above) > INCLUDE_DEPTH_MAX:
            self.scope.report(
                "PS228", f"libraries include each other more than {INCLUDE_DEPTH_MAX} deep", via
            )
        elif name in above:
            chain = " includes ".join(f"`{one}`" for one in (*above[above.index(name) :], name))
            self.scope.report(
                "PS228", f"the includes go in a circle: {chain}", via, label="comes back to itself"
            )
        elif not found.is_library:
            self.scope.report(
                "PS225",
                f"`{name}` is a policy, and only libraries can be included",
                node.target.span,
                help="let its first line be `is_library NAME version 1`",
            )
        elif found.has_errors:
            self.scope.report(
                "PS227",
                f"the library `{name}` has errors of its own",
                via,
                label="cannot be included",
                help=f"mend `{name}` first; its errors are reported there",
            )
        elif name not in self.included:
            self.included.add(name)
            self.run(found.document, via=via, above=(*above, name))

    def accept_kube_default(self, node: s.IncludeDecl, target: s.Identifier) -> bool:
        if target.text != "kube_default":
            self.scope.report(
                "PS225",
                f"nothing is called `{target.text}` that can be included",
                target.span,
                label="not found",
                help=did_you_mean(target.text, ("kube_default",))
                or 'quote the key of a library: `include "base.policy"`',
            )
            return False
        if node.version is not None and node.version.value not in KUBE_SCHEDULER_RELEASES:
            known = ", ".join(f'"{version}"' for version in KUBE_SCHEDULER_RELEASES)
            self.scope.report(
                "PS226",
                f"the defaults of kube-scheduler {node.version.value} are not known here",
                node.version.span,
                help=f"known are those of {known}",
            )
            return False
        if "kube_default" in self.included:
            return False
        self.included.add("kube_default")
        return True


def kube_default_statements(
    span: Span, version: str = KUBE_DEFAULT_VERSION
) -> Iterator[s.FilterDecl | s.ScoreDecl]:
    """kube-scheduler's default filters, then its scores with their weights, as if they stood at `span`."""
    release = KUBE_SCHEDULER_RELEASES[version]
    there = [one for name, one in BUILTINS.items() if name not in release.missing_builtins]
    for one in there:
        if one.filters:
            yield s.FilterDecl(s.Identifier(one.name, span), (), None, False, span)
    for one in there:
        if one.default_weight is not None and one.name not in release.builtins_without_score:
            weight = s.NumberLit(str(one.default_weight), "", span)
            words = release.score_parameter_values.get(one.name, {})
            params = tuple(
                s.Param(s.Identifier(name, span), s.NameExpr(word, span), span)
                for name, word in words.items()
            )
            clauses = (s.WeightClause(weight, span),)
            yield s.ScoreDecl(s.Identifier(one.name, span), clauses, params or None, False, span)
