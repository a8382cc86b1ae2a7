"""Checking policies from files together with the values that are given for their parameters."""

from collections.abc import Iterable, Sequence

from policysched.lang.check import check_sources
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.check.parameter_values import merge_parameter_values
from policysched.policy_files.source_set import SourceSet, UnusableFile


def check_source_set(one: SourceSet, flags: Sequence[str] = ()) -> PolicyBundle:
    """Every text of a file, a ConfigMap or a folder, with the values that stand beside them for parameters and those of
    the flags `NAME=VALUE`, which win. Raises UnusableFile for a flag that cannot be read."""
    if not one.params and not flags:
        return check_sources(one.sources)
    from policysched.policy_files.parameter_values import (  # imports yaml
        BadParameterFlag,
        parse_parameter_flags,
        read_parameter_values,
    )

    try:
        given = merge_parameter_values(read_parameter_values(one.params), parse_parameter_flags(flags))
    except BadParameterFlag as error:
        raise UnusableFile(str(error)) from None
    return check_sources(one.sources, given)


def reject_unused_parameters(flags: Sequence[str], bundles: Iterable[PolicyBundle]) -> None:
    """Raise UnusableFile where a flag names what none of the policies has as a parameter, unless one of them has errors
    and perhaps would."""
    checked = [one for bundle in bundles for one in bundle.sources.values() if not one.is_library]
    if any(one.program is None for one in checked):
        return
    known = sorted({name for one in checked if one.program is not None for name in one.program.parameters})
    for flag in flags:
        name = flag.partition("=")[0]
        if name not in known:
            there = f"there is {', '.join(known)}" if known else "there is none"
            raise UnusableFile(f"--param {flag}: no policy here has a parameter `{name}`; {there}")
