"""The diagnostic about a policy whose name the settings do not allow."""

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
