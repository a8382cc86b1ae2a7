"""`include`: other texts of the same bundle, and kube-scheduler's defaults, put in their place.

What comes out is a list of statements without includes, each in the order in which it takes effect. A library that was
included already (by another library) is not brought twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from policysched.builtins.registry import BUILTINS, KUBE_DEFAULT_VERSION, RELEASES
from policysched.lang.check.scope import Scope, did_you_mean
from policysched.lang.syntax import tree as s
from policysched.text import Span

DEPTH_MAX = 16


@dataclass(frozen=True, slots=True)
class Library:
    """What an include finds under a key: a text that is a library or is not, and is broken or is not."""

    key: str
    document: s.Document
    library: bool
    broken: bool


Find = Callable[[str], Library | None]


@dataclass(slots=True)
class Expansion:
    """Statements in order; `via` gives for a statement that came from elsewhere the `include` in the text itself."""

    statements: list[s.Statement] = field(default_factory=list)
    via: dict[int, Span] = field(default_factory=dict)


def expand(scope: Scope, key: str, document: s.Document, find: Find, keys: tuple[str, ...]) -> Expansion:
    """All statements but headers and includes. Findings are at the include in the text itself."""
    expansion = Expansion()
    _Expander(scope, find, keys, expansion).run(document, via=None, above=(key,))
    return expansion


@dataclass(slots=True)
class _Expander:
    scope: Scope
    find: Find
    keys: tuple[str, ...]
    expansion: Expansion
    done: set[str] = field(default_factory=set)

    def run(self, document: s.Document, *, via: Span | None, above: tuple[str, ...]) -> None:
        for statement in document.statements:
            match statement:
                case s.Header():
                    continue
                case s.Include():
                    self.include(statement, via=via or statement.span, above=above)
                case _:
                    self.add(statement, via)

    def add(self, statement: s.Statement, via: Span | None) -> None:
        self.expansion.statements.append(statement)
        if via is not None:
            self.expansion.via[id(statement)] = via

    def include(self, node: s.Include, *, via: Span, above: tuple[str, ...]) -> None:
        if isinstance(node.target, s.Name):
            if self.kube_default(node, node.target):
                version = KUBE_DEFAULT_VERSION if node.version is None else node.version.value
                for statement in defaults(node.span, version):
                    self.add(statement, via)
            return
        name = node.target.value
        found = self.find(name)
        if found is None:
            near = did_you_mean(name, self.keys)
            known = ", ".join(f"`{key}`" for key in self.keys if key != above[0])
            self.scope.report(
                "PS225",
                f"there is no `{name}` beside this policy",
                node.target.span,
                label="not found",
                help=near
                or (f"beside it are {known}" if known else "it is looked up in the same ConfigMap or folder"),
            )
        elif len(above) > DEPTH_MAX:
            self.scope.report("PS228", f"libraries include each other more than {DEPTH_MAX} deep", via)
        elif name in above:
            chain = " includes ".join(f"`{one}`" for one in (*above[above.index(name) :], name))
            self.scope.report(
                "PS228", f"the includes go in a circle: {chain}", via, label="comes back to itself"
            )
        elif not found.library:
            self.scope.report(
                "PS225",
                f"`{name}` is a policy, and only libraries can be included",
                node.target.span,
                help="let its first line be `library NAME version 1`",
            )
        elif found.broken:
            self.scope.report(
                "PS227",
                f"the library `{name}` has errors of its own",
                via,
                label="cannot be included",
                help=f"mend `{name}` first; its errors are reported there",
            )
        elif name not in self.done:
            self.done.add(name)
            self.run(found.document, via=via, above=(*above, name))

    def kube_default(self, node: s.Include, target: s.Name) -> bool:
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
        if node.version is not None and node.version.value not in RELEASES:
            known = ", ".join(f'"{version}"' for version in RELEASES)
            self.scope.report(
                "PS226",
                f"the defaults of kube-scheduler {node.version.value} are not known here",
                node.version.span,
                help=f"known are those of {known}",
            )
            return False
        if "kube_default" in self.done:
            return False
        self.done.add("kube_default")
        return True


def defaults(span: Span, version: str = KUBE_DEFAULT_VERSION) -> Iterator[s.Filter | s.Score]:
    """kube-scheduler's default filters, then its scores with their weights, as if they stood at `span`."""
    release = RELEASES[version]
    there = [one for name, one in BUILTINS.items() if name not in release.without]
    for one in there:
        if one.filters:
            yield s.Filter(s.Name(one.name, span), (), None, False, span)
    for one in there:
        if one.default_weight is not None and one.name not in release.without_scores:
            weight = s.NumberLit(str(one.default_weight), "", span)
            words = release.score_words.get(one.name, {})
            params = tuple(
                s.Param(s.Name(name, span), s.Bare(word, span), span) for name, word in words.items()
            )
            clauses = (s.WeightClause(weight, span),)
            yield s.Score(s.Name(one.name, span), clauses, params or None, False, span)
