"""Doubts about a policy that is valid: what nothing uses, and what kube-scheduler would have done."""

from policysched.lang.check.scope import Scope
from policysched.lang.ir.rules import BuiltinFilter, RuleSet
from policysched.lang.syntax import tree as s
from policysched.text import Source

_DEFAULT_SCHEDULER_NAME = "default-scheduler"


def lint_unused_names(scope: Scope, source: Source, *, library: bool) -> None:
    """Declarations of this text that nothing reads; a library's are for others."""
    if library:
        return
    for name, resource in scope.resources.items():
        if not resource.used and resource.span.source is source:
            scope.report(
                "PS306",
                f"the resource `{name}` is not used: it holds nobody back by itself",
                resource.span,
                label="never read",
                help=f"add a filter: `require pod.requests.{name} <= node.free.{name}`",
            )
    for one in scope.names.values():
        if not one.used and one.definition is not None and one.span.source is source:
            scope.report(
                "PS306",
                f"the {one.kind} `{one.name}` is not used",
                one.span,
                label="never read",
                help="leave it out",
            )


def lint_policy(scope: Scope, header: s.HeaderDecl, rules: RuleSet) -> None:
    names = {rule.builtin for rule in rules.filters if isinstance(rule, BuiltinFilter)}
    if header.name.text == _DEFAULT_SCHEDULER_NAME:
        scope.report(
            "PS412",
            "`default-scheduler` is kube-scheduler's own name",
            header.name.span,
            label="two schedulers would place the same pods",
            help="unless kube-scheduler does not run here, choose another name",
        )
    if "node_resources_fit" not in names:
        scope.report(
            "PS406",
            "nothing asks whether a pod fits",
            header.name.span,
            label="no `node_resources_fit`",
            help="add `include kube_default`, or `filter node_resources_fit`",
        )
    if "taint_toleration" not in names:
        scope.report(
            "PS407",
            "taints are not looked at: pods go to nodes that are being drained",
            header.name.span,
            label="no `taint_toleration`",
            help="add `include kube_default`, or `filter taint_toleration`",
        )
