"""Policies whose name the settings do not allow: the diagnostic, and their removal."""

from collections.abc import Mapping

from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import Program
from policysched.scheduler.authority import DEFAULT_SCHEDULER, Authority
from policysched.text import Diagnostic


def disallowed_name(program: Program, authority: Authority) -> tuple[Diagnostic, ...]:
    """An error if the policy may not have its name."""
    if authority.allows_name(program.name):
        return ()
    allowed = authority.policies
    listed = (
        f"any other than `{DEFAULT_SCHEDULER}`"
        if allowed is None
        else ", ".join(policy.name for policy in allowed) or "none"
    )
    entries = f"- name: {program.name}"
    if allowed is None:  # a list replaces the default
        entries = f'- name: "*"` and `{entries}'
    return (
        make_diagnostic(
            "PS908",
            f"the settings do not allow a policy called `{program.name}` (allowed: {listed})",
            program.name_span,
            label="not allowed",
            help=f"rename the policy, or add `{entries}` to `authority.policies_allowed` in the settings and restart",
        ),
    )


def without_disallowed_removals(
    bundle: PolicyBundle | None, authority: Authority
) -> tuple[Mapping[str, CheckedSource], frozenset[str]]:
    """The other sources of the bundle, and the names that are removed and not allowed. No policy of such a name runs, and its pods may
    be another scheduler's: they get no message."""
    offered = {} if bundle is None else bundle.sources
    removals = {
        key: source.program.name
        for key, source in offered.items()
        if source.program is not None
        and source.program.removed
        and not authority.allows_name(source.program.name)
    }
    others = {key: source for key, source in offered.items() if key not in removals}
    return others, frozenset(removals.values())
