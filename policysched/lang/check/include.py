"""`include`: expand libraries of the bundle and kube-scheduler's defaults.

The result is a list of statements without includes, in the order in which they take effect. A library
is expanded once, even if several libraries include it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from policysched.builtins.registry import KUBE_DEFAULT_VERSION, KUBE_SCHEDULER_RELEASES
from policysched.lang.check.limits import INCLUDED_STATEMENTS_MAX
from policysched.lang.check.scope import Scope, did_you_mean
from policysched.lang.parse import parse
from policysched.lang.syntax import tree as s
from policysched.text import Source, Span

INCLUDE_DEPTH_MAX = 16


@dataclass(frozen=True, slots=True)
class IncludeTarget:
    """The text that an include refers to: whether it is a library, and whether it has errors."""

    key: str
    document: s.SyntaxTree
    is_library: bool
    has_errors: bool


FindIncludeTarget = Callable[[str], IncludeTarget | None]


@dataclass(slots=True)
class IncludeExpansion:
    """Statements in order; `include_spans` maps the id of an included statement to its `include`."""

    statements: list[s.Statement] = field(default_factory=list)
    include_spans: dict[int, Span] = field(default_factory=dict)


def expand_document(
    scope: Scope,
    key: str,
    document: s.SyntaxTree,
    find_include_target: FindIncludeTarget,
    bundle_keys: tuple[str, ...],
) -> IncludeExpansion:
    """All statements except headers and includes. Errors are reported at the include in the text itself."""
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
    included_statement_count: int = 0

    def run(self, document: s.SyntaxTree, *, via: Span | None, above: tuple[str, ...]) -> None:
        for statement in document.statements:
            if via is not None and not self.count_included_statement(via):
                return
            match statement:
                case s.HeaderDecl():
                    continue
                case s.IncludeDecl():
                    self.include(statement, via=via or statement.span, above=above)
                case _:
                    self.add(statement, via)

    def count_included_statement(self, via: Span) -> bool:
        """Whether one more is allowed; reports the first that is not."""
        self.included_statement_count += 1
        if self.included_statement_count == INCLUDED_STATEMENTS_MAX + 1:
            self.scope.report(
                "PS241",
                f"the included libraries have more than {INCLUDED_STATEMENTS_MAX:,} statements",
                via,
                label="exceeds the limit",
                help="include only the libraries that are needed; each counts with those that it includes",
            )
        return self.included_statement_count <= INCLUDED_STATEMENTS_MAX

    def add(self, statement: s.Statement, via: Span | None) -> None:
        self.expansion.statements.append(statement)
        if via is not None:
            self.expansion.include_spans[id(statement)] = via

    def include(self, node: s.IncludeDecl, *, via: Span, above: tuple[str, ...]) -> None:
        if isinstance(node.target, s.Identifier):
            if node.target.text in BUILTIN_LIBRARIES:
                self.include_builtin_library(node, node.target.text, via)
            elif self.accept_kube_default(node, node.target):
                version = KUBE_DEFAULT_VERSION if node.version is None else node.version.value
                for statement in kube_default_statements(node.span, version):
                    self.add(statement, via)
            return
        name = node.target.value
        target = self.find_include_target(name)
        if target is None:
            near = (
                "without quotes it is the built-in set: `include kube_default`"
                if name == "kube_default"
                else did_you_mean(name, self.bundle_keys)
            )
            bundle_names = ", ".join(f"`{key}`" for key in self.bundle_keys if key != above[0])
            self.scope.report(
                "PS225",
                f"cannot find `{name}`",
                node.target.span,
                label="not found",
                help=near
                or (
                    f"available are {bundle_names}"
                    if bundle_names
                    else "libraries are looked up in the same ConfigMap or directory"
                ),
            )
        elif len(above) > INCLUDE_DEPTH_MAX:
            self.scope.report("PS228", f"includes are nested more than {INCLUDE_DEPTH_MAX} levels deep", via)
        elif name in above:
            chain = " includes ".join(f"`{key}`" for key in (*above[above.index(name) :], name))
            self.scope.report("PS228", f"include cycle: {chain}", via, label="closes the cycle")
        elif not target.is_library:
            self.scope.report(
                "PS225",
                f"`{name}` is not a library",
                node.target.span,
                help="only libraries can be included; begin it with `library NAME version 1`",
            )
        elif target.has_errors:
            self.scope.report(
                "PS227",
                f"the library `{name}` has errors",
                via,
                label="cannot be included",
                help=f"fix `{name}` first; its errors are reported there",
            )
        elif name not in self.included:
            self.included.add(name)
            self.run(target.document, via=via, above=(*above, name))

    def include_builtin_library(self, node: s.IncludeDecl, name: str, via: Span) -> None:
        if node.version is not None:
            self.scope.report(
                "PS226",
                f"`include {name}` has no releases",
                node.version.span,
                help=f"write `include {name}`",
            )
        elif name not in self.included:
            self.included.add(name)
            self.run(builtin_library(name), via=via, above=(name,))

    def accept_kube_default(self, node: s.IncludeDecl, target: s.Identifier) -> bool:
        if target.text != "kube_default":
            self.scope.report(
                "PS225",
                f"unknown include `{target.text}`",
                target.span,
                label="not found",
                help=did_you_mean(target.text, ("kube_default", *BUILTIN_LIBRARIES))
                or 'quote the key of a library, for example `include "base.policy"`',
            )
            return False
        if node.version is not None and node.version.value not in KUBE_SCHEDULER_RELEASES:
            versions = ", ".join(f'"{version}"' for version in KUBE_SCHEDULER_RELEASES)
            self.scope.report(
                "PS226",
                f"unknown kube-scheduler release {node.version.value}",
                node.version.span,
                help=f"the supported releases are {versions}",
            )
            return False
        if "kube_default" in self.included:
            return False
        self.included.add("kube_default")
        return True


def kube_default_statements(
    span: Span, version: str = KUBE_DEFAULT_VERSION
) -> Iterator[s.FilterDecl | s.ScoreDecl]:
    """kube-scheduler's default filters, then its scores with their weights, located at `span`."""
    release = KUBE_SCHEDULER_RELEASES[version]
    for builtin in release.builtins:
        if builtin.filters:
            params = _params(release.filter_parameter_values.get(builtin.name, {}), span)
            yield s.FilterDecl(s.Identifier(builtin.name, span), (), params, False, span)
    for builtin in release.builtins:
        if builtin.default_weight is not None and builtin.name not in release.builtins_without_score:
            weight = s.NumberLit(str(builtin.default_weight), "", span)
            params = _params(release.score_parameter_values.get(builtin.name, {}), span)
            clauses = (s.WeightClause(weight, span),)
            yield s.ScoreDecl(s.Identifier(builtin.name, span), clauses, params, False, span)


def _params(values: Mapping[str, str], span: Span) -> tuple[s.Param, ...] | None:
    params = [
        s.Param(s.Identifier(name, span), s.NameExpr(value, span), span) for name, value in values.items()
    ]
    return tuple(params) or None


POD_GROUPS_TEXT = """\
library pod-groups version 1

gang by pod.group.name {
  min = pod.group.min
  timeout = pod.group.timeout else 5m
  on_timeout = requeue
  topology = pod.group.topology
  disruption = pod.group.disruption
}
"""
"""PodGroups as gangs. The timeout is that of kube-scheduler's gangs where the group has none."""

BUILTIN_LIBRARIES = {"pod_groups": POD_GROUPS_TEXT}
"""By name."""


@cache
def builtin_library(name: str) -> s.SyntaxTree:
    """The library, parsed."""
    document, diagnostics = parse(Source(name, BUILTIN_LIBRARIES[name]))
    assert not diagnostics, f"the library {name} has errors: {diagnostics}"
    return document
