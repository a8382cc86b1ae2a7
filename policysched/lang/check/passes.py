"""The passes of the checker, from the statements of one text to a `Program`.

Each pass reads the results of earlier passes from `CheckState` and adds its own. Diagnostics are
collected; a program is built only if none of them is an error.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256

from policysched.lang.check import lints
from policysched.lang.check.canary import check_canary
from policysched.lang.check.canonical_text import canonical_text
from policysched.lang.check.cost import check_cost
from policysched.lang.check.declarations import declare_input, declare_let, declare_metric, declare_record
from policysched.lang.check.declared_parameters import (
    declare_parameter,
    report_unknown_parameters,
)
from policysched.lang.check.extenders import check_extenders, check_no_whole_gang
from policysched.lang.check.include import FindIncludeTarget, IncludeExpansion, expand_document
from policysched.lang.check.layers import LayerChecker
from policysched.lang.check.limits import POLICY_COST_MAX, RULES_MAX
from policysched.lang.check.metrics import check_outage
from policysched.lang.check.parameter_values import (
    NO_PARAMETER_VALUES,
    ParameterValuesByPolicy,
    parameter_values_for,
)
from policysched.lang.check.quotas import declare_quotas
from policysched.lang.check.resources import declare_resource
from policysched.lang.check.rule_lints import lint_overwritten_changes, lint_rules
from policysched.lang.check.rule_table import RuleKind, RuleNode, RuleTable, rule_kind
from policysched.lang.check.rules import check_rule
from policysched.lang.check.scheduling_statements import (
    check_gang,
    check_preemption,
    check_queue,
    default_order_keys,
)
from policysched.lang.check.scope import DeclaredGang, Scope, declared_here
from policysched.lang.check.states import declare_state
from policysched.lang.check.team_texts import RequiredBase
from policysched.lang.ir.declarations import OutageSpec
from policysched.lang.ir.layers import Layer
from policysched.lang.ir.program import CanarySpec, Extender, GangSpec, OrderKey, PreemptionSpec, Program
from policysched.lang.ir.rules import (
    BuiltinFilter,
    BuiltinScore,
    FilterRule,
    RuleSet,
    ScoreRule,
    with_shadows,
)
from policysched.lang.syntax import tree as s
from policysched.text import Diagnostic, Severity, Source, Span

_HEADER = re.compile(r"^\s*(policy|library)\b", re.MULTILINE)

_SingletonStatement = s.QueueDecl | s.GangDecl | s.OutageDecl | s.PreemptionDecl
_SINGLETON_KEYWORDS: dict[type, str] = {
    s.QueueDecl: "queue",
    s.GangDecl: "gang",
    s.OutageDecl: "outage",
    s.PreemptionDecl: "preemption",
    s.CanaryDecl: "canary",
}


@dataclass(slots=True)
class CheckState:
    """The results of the passes on one text so far."""

    key: str
    document: s.SyntaxTree
    find_include_target: FindIncludeTarget
    bundle_keys: tuple[str, ...]
    parameter_values: ParameterValuesByPolicy
    cost_max: int
    scope: Scope
    header: s.HeaderDecl | None = None
    expansion: IncludeExpansion = field(default_factory=IncludeExpansion)
    singletons: dict[type, _SingletonStatement] = field(default_factory=dict)
    queue: tuple[OrderKey, ...] | None = None
    gang: GangSpec | None = None
    outage: OutageSpec | None = None
    preemption: PreemptionSpec | None = None
    extenders: tuple[Extender, ...] = ()
    rule_table: RuleTable = field(init=False)
    rule_versions: list[RuleNode] = field(default_factory=list)
    rules: RuleSet = field(default_factory=lambda: RuleSet((), ()))
    canary: CanarySpec | None = None
    shadow_table: RuleTable = field(init=False)
    shadows: RuleSet = field(default_factory=lambda: RuleSet((), ()))
    layers: list[Layer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rule_table = RuleTable(self.scope, broken_names=frozenset(self.document.unparsed_names))
        self.shadow_table = RuleTable(self.scope, is_shadow=True)

    @property
    def is_library(self) -> bool:
        return self.header is not None and self.header.kind == "library"

    @property
    def source(self) -> Source:
        return self.document.span.source


def check_document(
    key: str,
    document: s.SyntaxTree,
    find_include_target: FindIncludeTarget,
    bundle_keys: tuple[str, ...],
    parameter_values: ParameterValuesByPolicy = NO_PARAMETER_VALUES,
    cost_max: int = POLICY_COST_MAX,
    base: RequiredBase | None = None,
) -> tuple[CheckState, tuple[Diagnostic, ...]]:
    """Run all passes over one text. The diagnostics are in the order of the text."""
    scope = Scope(broken_names=frozenset(document.unparsed_names))
    is_library = any(isinstance(x, s.HeaderDecl) and x.kind == "library" for x in document.statements)
    if base is not None and key not in base.operator_keys:
        scope.team_source = document.span.source
    elif base is not None and is_library:
        scope.library_for_teams = document.span.source
    work = CheckState(key, document, find_include_target, bundle_keys, parameter_values, cost_max, scope)
    for run_pass in PASSES:
        run_pass(work)
    diagnostics = sorted(_relocate_diagnostics(work), key=lambda d: (d.span.start if d.span else 0, d.code))
    return work, tuple(diagnostics)


def build_program(work: CheckState) -> Program:
    """The program of a text without errors."""
    header = work.header
    assert header is not None, work.key
    text = canonical_text(
        header,
        work.expansion.statements,
        (*work.singletons.values(), *work.rule_table.rules.values()),
        tuple(work.shadow_table.rules.values()),
        work.scope.parameters(),
    )
    return Program(
        name=header.name.text,
        name_span=header.name.span,
        version=int(header.version.digits),
        sha256=sha256(text.encode()).hexdigest(),
        text=text,
        inputs=work.scope.inputs(),
        metrics=work.scope.metrics(),
        outage=work.outage,
        queue=work.queue or default_order_keys(header.span),
        gang=work.gang,
        rules=work.rules,
        layers=tuple(work.layers),
        preemption=work.preemption or PreemptionSpec("own", None),
        parameters=work.scope.parameters(),
        resources=work.scope.valid_resources(),
        extenders=work.extenders,
        states=work.scope.states(),
        quotas=work.scope.valid_quotas(),
        shadows=work.shadows,
        canary=work.canary,
    )


# ── passes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_header(work: CheckState) -> None:
    """Exactly one header, before all other statements."""
    document, scope = work.document, work.scope
    for statement in document.statements:
        if not isinstance(statement, s.HeaderDecl):
            continue
        if work.header is not None:
            scope.report(
                "PS213",
                "duplicate header",
                statement.span,
                label="second header",
                related=(declared_here(work.header.span),),
                help="a text contains one policy or one library",
            )
            continue
        work.header = statement
        if statement is not document.statements[0]:
            scope.report(
                "PS232",
                f"`{statement.kind}` must be the first statement",
                statement.span,
                help="move it to the top",
            )
    if work.header is None and not _HEADER.search(work.source.text):
        start = document.statements[0].span if document.statements else Span(work.source, 0, 0)
        scope.report(
            "PS232",
            "the header is missing",
            start,
            label="expected a header",
            help="begin with `policy NAME version 1`; pods select it with `schedulerName: NAME`",
        )


def expand_includes(work: CheckState) -> None:
    work.expansion = expand_document(
        work.scope, work.key, work.document, work.find_include_target, work.bundle_keys
    )


def declare_names(work: CheckState) -> None:
    """Declare names in the order of the text: a declaration can use those above it."""
    if work.header is not None and not work.is_library:
        names = [part.name.text for part in work.expansion.statements if isinstance(part, s.ParameterDecl)]
        work.scope.parameter_values = parameter_values_for(
            work.header.name.text, work.parameter_values, frozenset(names)
        )
    if any(isinstance(statement, s.GangDecl) for statement in work.expansion.statements):
        work.scope.gang = DeclaredGang()
    for statement in work.expansion.statements:
        match statement:
            case s.ParameterDecl():
                declare_parameter(work.scope, statement)
            case s.LetDecl():
                declare_let(work.scope, statement)
            case s.RecordDecl():
                declare_record(work.scope, statement)
            case s.InputDecl():
                declare_input(work.scope, statement)
            case s.MetricDecl():
                declare_metric(work.scope, statement)
            case s.StateDecl():
                declare_state(work.scope, statement)
            case s.ResourceDecl():
                declare_resource(work.scope, statement)
    quotas = [statement for statement in work.expansion.statements if isinstance(statement, s.QuotaDecl)]
    declare_quotas(work.scope, quotas)


def check_parameter_values(work: CheckState) -> None:
    """Report unreadable parameter values, and values for undeclared parameters."""
    report_unknown_parameters(work.scope)


def check_singletons(work: CheckState) -> None:
    """The statements that may occur once: queue, gang, outage, preemption, canary (checked with the layers)."""
    first_by_kind: dict[type, s.Statement] = {}
    for statement in work.expansion.statements:
        if not isinstance(statement, _SingletonStatement | s.CanaryDecl):
            continue
        first = first_by_kind.setdefault(type(statement), statement)
        if first is statement and isinstance(statement, _SingletonStatement):
            work.singletons[type(statement)] = statement
        if first is not statement:
            keyword = _SINGLETON_KEYWORDS[type(statement)]
            work.scope.report(
                "PS213",
                f"duplicate `{keyword}`",
                statement.span,
                label="only one is allowed",
                related=(declared_here(first.span),),
            )
    for statement in work.singletons.values():
        match statement:
            case s.QueueDecl():
                work.queue = check_queue(work.scope, statement)
            case s.GangDecl():
                work.gang = check_gang(work.scope, statement)
                key = None if work.gang is None else work.gang.key
                work.scope.gang = DeclaredGang(key, checked=True)
                work.scope.let_cache.clear()  # entries that read the gang are outdated
            case s.OutageDecl():
                work.outage = check_outage(work.scope, statement)
            case s.PreemptionDecl():
                work.preemption = check_preemption(work.scope, statement)


def check_extender_statements(work: CheckState) -> None:
    extenders = [
        statement for statement in work.expansion.statements if isinstance(statement, s.ExtenderDecl)
    ]
    work.extenders = check_extenders(work.scope, extenders)
    check_no_whole_gang(work.scope, work.gang, work.extenders)


def apply_rule_changes(work: CheckState) -> None:
    """Apply rules and their changes outside layers, on the syntax."""
    table = work.rule_table
    for statement in work.expansion.statements:
        version: RuleNode | None = None
        match statement:
            case s.FilterDecl() | s.ScoreDecl():
                table.add(statement)
                version = statement
            case s.ReplaceStatement(rule=written):
                table.replace(written)
                version = written
            case s.AmendStatement():
                version = table.amend(statement)
            case s.ReweightStatement():
                version = table.reweight(statement)
            case s.DropStatement():
                table.drop(statement)
            case s.ShadowDecl(rule=written):
                work.shadow_table.add(written)
        if version is not None and id(statement) not in work.expansion.include_spans:
            work.rule_versions.append(version)


def check_rules(work: CheckState) -> None:
    """Check each rule in its final version; earlier versions of this text only for their errors."""
    final = {id(written) for written in work.rule_table.rules.values()}
    for version in work.rule_versions:
        if id(version) not in final:
            check_rule(work.scope, version, frozenset())
    work.rules = _checked_rules(work.scope, work.rule_table)


def check_shadows(work: CheckState) -> None:
    """A shadow rule is an addition to the rules, so it needs a name of its own."""
    for key, written in work.shadow_table.rules.items():
        used = work.rule_table.rules.get(key)
        if used is not None:
            work.scope.report(
                "PS213",
                f"`shadow {key[0]} {key[1]}` has the name of a {key[0]} that is used",
                written.name.span,
                label="declared again",
                help="a shadow rule is evaluated beside the others: choose another name",
                related=(declared_here(used.name.span),),
            )
    work.shadows = _checked_rules(work.scope, work.shadow_table)


def _checked_rules(scope: Scope, table: RuleTable) -> RuleSet:
    filters: list[FilterRule | BuiltinFilter] = []
    scores: list[ScoreRule | BuiltinScore] = []
    for written in table.rules.values():
        match check_rule(scope, written, frozenset()):
            case FilterRule() | BuiltinFilter() as filter_rule:
                filters.append(filter_rule)
            case ScoreRule() | BuiltinScore() as score_rule:
                scores.append(score_rule)
            case None:
                pass
    return RuleSet(tuple(filters), tuple(scores))


def check_layers(work: CheckState) -> None:
    table = RuleTable(work.scope, dict(work.rule_table.rules), work.rule_table.broken_names)
    versions: dict[tuple[RuleKind, str], list[RuleNode]] = {
        (rule_kind(statement), statement.name.text): [statement]
        for statement in work.rule_table.rules.values()
    }
    layers = LayerChecker(work.scope, table, versions)
    for statement in work.expansion.statements:
        if isinstance(statement, s.LayerDecl):
            checked = layers.check(statement)
            if checked is not None:
                work.layers.append(checked)
        elif isinstance(statement, s.CanaryDecl):
            canary = check_canary(work.scope, layers, statement, len(work.layers))
            if canary is not None:
                work.layers.append(canary[0])
                work.canary = canary[1]


def check_rule_count(work: CheckState) -> None:
    """The limit on the number of rules."""
    rules = [
        statement for statement in work.rule_table.rules.values() if statement.span.source is work.source
    ]
    in_layers = [
        statement
        for layer in work.expansion.statements
        if isinstance(layer, s.LayerDecl | s.CanaryDecl)
        for statement in layer.body
        if isinstance(statement, s.FilterDecl | s.ScoreDecl | s.ReplaceStatement)
    ]
    total = len(work.rule_table.rules) + len(work.shadow_table.rules) + len(in_layers)
    if total > RULES_MAX:
        own_rules = [*rules, *in_layers]
        span = own_rules[-1].span if own_rules else work.document.span
        work.scope.report(
            "PS239",
            f"the policy has {total} rules, the limit is {RULES_MAX}",
            span,
            help='join rules that differ in one value, for example with `x in ["a", "b"]`',
        )


def check_policy_cost(work: CheckState) -> None:
    """The limit on the cost of a policy. Rules of a library count in the policies that include it."""
    if work.scope.error_count() == 0 and not work.is_library:
        evaluated = with_shadows(work.rules, work.shadows)
        singletons = work.queue or (), work.gang, work.preemption
        check_cost(work.scope, evaluated, tuple(work.layers), singletons, work.cost_max)


def run_lints(work: CheckState) -> None:
    """Lints on the whole policy. Skipped after errors, because an incomplete policy causes false positives."""
    if work.scope.error_count() == 0 and work.header is not None:
        lints.lint_unused_names(work.scope, work.source, library=work.is_library)
        if not work.is_library:
            lints.lint_policy(work.scope, work.header, work.rules)
        lint_rules(work.scope, work.source, work.rules, work.layers)
        lint_overwritten_changes(work.scope, work.source, work.expansion.statements)


PASSES: tuple[Callable[[CheckState], None], ...] = (
    check_header,
    expand_includes,  # early: later passes see one list of statements
    declare_names,
    check_parameter_values,
    check_singletons,
    check_extender_statements,
    apply_rule_changes,  # before check_rules: an amended rule is checked in its final version
    check_rules,
    check_shadows,
    check_layers,  # after the rules that layers change
    check_rule_count,
    check_policy_cost,
    run_lints,  # last: needs to know which names are used
)


def _relocate_diagnostics(work: CheckState) -> list[Diagnostic]:
    """The diagnostics of this text. An error inside an included text is reported at its `include`."""
    via = {
        id(statement.span.source): work.expansion.include_spans[id(statement)]
        for statement in work.expansion.statements
        if id(statement) in work.expansion.include_spans
    }
    value_sources = {id(source) for source in work.scope.parameter_values.sources()}
    reported: list[Diagnostic] = []
    for diagnostic in work.scope.diagnostics:
        span = diagnostic.span
        if span is None or span.source is work.source or id(span.source) in value_sources:
            reported.append(diagnostic)
        elif diagnostic.severity is Severity.ERROR:
            include_span = via.get(id(span.source), work.document.span)
            note = f"in `{span.source.name}`, line {span.source.position(span.start).line}"
            reported.append(replace(diagnostic, span=include_span, notes=(*diagnostic.notes, note)))
    return reported
