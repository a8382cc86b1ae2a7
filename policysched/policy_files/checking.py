"""Checks policies from files together with the values of their parameters."""

from collections.abc import Iterable, Sequence

from policysched.lang.check import check_sources
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.check.limits import POLICY_COST_MAX
from policysched.lang.check.parameter_values import merge_parameter_values
from policysched.policy_files.source_set import SourceSet, UnusableFile


def check_source_set(
    sources: SourceSet, flags: Sequence[str] = (), cost_max: int = POLICY_COST_MAX
) -> PolicyBundle:
    """Checks every text of a file, a ConfigMap or a folder. The flags `NAME=VALUE` override the parameter values beside
    the texts; a policy may cost `cost_max` operations. Raises UnusableFile for an invalid flag."""
    if not sources.params and not flags:
        return check_sources(sources.sources, cost_max=cost_max)
    from policysched.policy_files.parameter_values import (  # imports yaml
        BadParameterFlag,
        parse_parameter_flags,
        read_parameter_values,
    )

    try:
        values = merge_parameter_values(read_parameter_values(sources.params), parse_parameter_flags(flags))
    except BadParameterFlag as error:
        raise UnusableFile(str(error)) from None
    return check_sources(sources.sources, values, cost_max)


def reject_unused_parameters(flags: Sequence[str], bundles: Iterable[PolicyBundle]) -> None:
    """Raises UnusableFile for a flag that names a parameter of no policy. Accepts any flag while a policy has errors,
    since its parameters are not known."""
    policies = [source for bundle in bundles for source in bundle.sources.values() if not source.is_library]
    programs = [source.program for source in policies if source.program is not None]
    if len(programs) < len(policies):
        return
    known = sorted({name for program in programs for name in program.parameters})
    for flag in flags:
        name = flag.partition("=")[0]
        if name not in known:
            declared = f"declared: {', '.join(known)}" if known else "none is declared"
            raise UnusableFile(f"--param {flag}: no policy here has a parameter `{name}`; {declared}")
