"""Checks policies from files together with the values of their parameters, as a scheduler with given settings would."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from policysched.lang.check import check_sources
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.check.limits import POLICY_COST_MAX
from policysched.lang.check.parameter_values import (
    NO_PARAMETER_VALUES,
    ParameterValuesByPolicy,
    merge_parameter_values,
)
from policysched.lang.check.team_texts import RequiredBase
from policysched.policy_files.source_set import SourceSet, UnusableFile
from policysched.text import Source


@dataclass(frozen=True, slots=True)
class LoadRules:
    """What the settings add to a check: the values in `params` by policy, the limit on the cost in operations, and the key
    of the library that policies of teams include first (empty: teams have none), with `team_cost_max` for those. `is_owned`
    says of a policy's name whether a team owns it."""

    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cost_max: int = POLICY_COST_MAX
    required_base: str = ""
    team_cost_max: int = POLICY_COST_MAX
    is_owned: Callable[[str], bool] = field(default=lambda _: False)


NO_SETTINGS = LoadRules()


def check_source_set(
    sources: SourceSet, flags: Sequence[str] = (), rules: LoadRules = NO_SETTINGS
) -> PolicyBundle:
    """Checks every text of a file, a ConfigMap or a folder. The flags `NAME=VALUE` override the settings' parameter values,
    and these the ones beside the texts. Raises UnusableFile for an invalid flag."""
    base = _required_base(sources, rules)
    if not sources.params and not flags and not rules.params:
        return _check(sources, NO_PARAMETER_VALUES, rules, base)
    from policysched.policy_files.parameter_values import (  # imports yaml
        BadParameterFlag,
        parse_parameter_flags,
        read_parameter_values,
        settings_parameter_texts,
    )

    settings = {key: Source("settings", text) for key, text in settings_parameter_texts(rules.params).items()}
    try:
        values = merge_parameter_values(
            read_parameter_values({**sources.params, **settings}), parse_parameter_flags(flags)
        )
    except BadParameterFlag as error:
        raise UnusableFile(str(error)) from None
    return _check(sources, values, rules, base)


def _check(
    sources: SourceSet, values: ParameterValuesByPolicy, rules: LoadRules, base: RequiredBase | None
) -> PolicyBundle:
    bundle = check_sources(sources.sources, values, rules.cost_max, base=base)
    if base is None or base.operator_keys == bundle.sources.keys() or rules.team_cost_max >= rules.cost_max:
        return bundle
    by_team_limit = check_sources(sources.sources, values, rules.team_cost_max, base=base).sources
    return PolicyBundle(
        {
            key: source if key in base.operator_keys else by_team_limit[key]
            for key, source in bundle.sources.items()
        }
    )


def _required_base(sources: SourceSet, rules: LoadRules) -> RequiredBase | None:
    """None if no text is a team's or the base. The others are the operator's."""
    owned = {key for key in sources.sources if _is_owned(sources, key, rules)}
    if not owned and rules.required_base not in sources.sources:
        return None
    return RequiredBase(rules.required_base, frozenset(sources.sources.keys() - owned))


def _is_owned(sources: SourceSet, key: str, rules: LoadRules) -> bool:
    if not rules.required_base:
        return False
    from policysched.policy_files.parameter_values import policy_name_in  # imports yaml

    name = policy_name_in(sources.sources[key].text)
    return name is not None and rules.is_owned(name)


def with_required_base(sets: Sequence[SourceSet], rules: LoadRules) -> list[SourceSet]:
    """The sets with the texts of the first one that has the required base: a team's ConfigMap lacks it."""
    having = (sources for sources in sets if rules.required_base in sources.sources)
    operator = next(having, None)
    if operator is None:
        return list(sets)
    texts = {key: source for key, source in operator.sources.items() if not _is_owned(operator, key, rules)}
    return [
        sources
        if rules.required_base in sources.sources
        else replace(sources, sources={**texts, **sources.sources})
        for sources in sets
    ]


def reject_unused_parameters(flags: Sequence[str], bundles: Iterable[PolicyBundle]) -> None:
    """Raises UnusableFile for a flag that names a parameter of no policy. Accepts any flag while a policy has errors,
    since its parameters are not known."""
    policies = [source for bundle in bundles for source in bundle.sources.values() if not source.is_library]
    programs = [source.program for source in policies if source.program is not None]
    if len(programs) < len(policies):
        return
    parameter_names = sorted({name for program in programs for name in program.parameters})
    for flag in flags:
        name = flag.partition("=")[0]
        if name not in parameter_names:
            declared = f"declared: {', '.join(parameter_names)}" if parameter_names else "none is declared"
            raise UnusableFile(f"--param {flag}: no policy here has a parameter `{name}`; {declared}")
