"""Checking policies from files together with the values that are given for their parameters."""

from collections.abc import Iterable, Sequence

from policysched.lang.check import check_sources
from policysched.lang.check.bundle import Bundle
from policysched.lang.check.parameter_values import laid_over
from policysched.policy_files.sources import SourceSet, UnusableFile


def check_set(one: SourceSet, flags: Sequence[str] = ()) -> Bundle:
    """Every text of a file, a ConfigMap or a folder, with the values that stand beside them for parameters and those of
    the flags `NAME=VALUE`, which win. Raises UnusableFile for a flag that cannot be read."""
    if not one.params and not flags:
        return check_sources(one.sources)
    from policysched.policy_files.parameter_values import BadFlag, given_by_flags, given_in  # imports yaml

    try:
        given = laid_over(given_in(one.params), given_by_flags(flags))
    except BadFlag as error:
        raise UnusableFile(str(error)) from None
    return check_sources(one.sources, given)


def refuse_unused(flags: Sequence[str], bundles: Iterable[Bundle]) -> None:
    """Raise UnusableFile where a flag names what none of the policies has as a parameter, unless one of them has errors
    and perhaps would."""
    checked = [one for bundle in bundles for one in bundle.checked.values() if not one.library]
    if any(one.program is None for one in checked):
        return
    known = sorted({name for one in checked if one.program is not None for name in one.program.parameters})
    for flag in flags:
        name = flag.partition("=")[0]
        if name not in known:
            there = f"there is {', '.join(known)}" if known else "there is none"
            raise UnusableFile(f"--param {flag}: no policy here has a parameter `{name}`; {there}")
