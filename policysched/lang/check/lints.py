"""Lints on a valid policy: unused declarations and missing safety filters."""

from policysched.lang.check.scope import Scope
from policysched.lang.ir.rules import BuiltinFilter, RuleSet
from policysched.lang.syntax import tree as s
from policysched.text import Source

_DEFAULT_SCHEDULER_NAME = "default-scheduler"


def lint_unused_names(scope: Scope, source: Source, *, library: bool) -> None:
    """Report unused declarations of this text. A library's declarations are for its includers."""
    if library:
        return
    for name, resource in scope.resources.items():
        if not resource.used and resource.span.source is source:
            scope.report(
                "PS306",
                f"unused resource `{name}`",
                resource.span,
                label="never read",
                help=f"a resource is not enforced without a filter: `require pod.requests.{name} <= node.free.{name}`",
            )
    for declared in scope.names.values():
        if not declared.used and declared.definition is not None and declared.span.source is source:
            scope.report(
                "PS306",
                f"unused {declared.kind} `{declared.name}`",
                declared.span,
                label="never read",
                help="remove it",
            )


def lint_policy(scope: Scope, header: s.HeaderDecl, rules: RuleSet) -> None:
    names = {rule.builtin for rule in rules.filters if isinstance(rule, BuiltinFilter)}
    if header.name.text == _DEFAULT_SCHEDULER_NAME:
        scope.report(
            "PS412",
            "the policy is called `default-scheduler`, like kube-scheduler",
            header.name.span,
            label="two schedulers could schedule the same pods",
            help="choose another name, unless kube-scheduler is not running",
        )
    if "node_resources_fit" not in names:
        scope.report(
            "PS406",
            "the policy does not check that pods fit on a node",
            header.name.span,
            label="no `node_resources_fit` filter",
            help="add `include kube_default`, or `filter node_resources_fit`",
        )
    if "taint_toleration" not in names:
        scope.report(
            "PS407",
            "the policy ignores taints",
            header.name.span,
            label="no `taint_toleration` filter",
            help="add `include kube_default`, or `filter taint_toleration`",
        )
