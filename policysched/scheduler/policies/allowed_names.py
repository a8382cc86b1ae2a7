"""Policies that the settings do not allow, by name or by extender: the diagnostics, and removals of such names."""

from collections.abc import Mapping
from dataclasses import replace

from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import Program
from policysched.scheduler.authority import DEFAULT_SCHEDULER, Authority
from policysched.scheduler.policies.extender_capabilities import ExtendersByName, unusable_extenders
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


def reject_by_settings(
    offered: Mapping[str, CheckedSource], authority: Authority, extenders: ExtendersByName
) -> Mapping[str, CheckedSource]:
    """Replace programs with a disallowed name or an unusable extender by the diagnostics about it."""
    sources = dict(offered)
    for key, source in offered.items():
        program = source.program
        if program is None:
            continue
        found = (*disallowed_name(program, authority), *unusable_extenders(program, extenders))
        if found:
            diagnostics = (*found, *source.diagnostics)
            sources[key] = replace(source, program=None, policy_name=program.name, diagnostics=diagnostics)
    return sources


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
