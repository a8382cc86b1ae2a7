"""Which policies may have their name: names that the settings allow, and one key for each name."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import Program, TeamSource
from policysched.scheduler.policies.extender_capabilities import ExtendersByName, unusable_extenders
from policysched.scheduler.policy_permissions import DEFAULT_SCHEDULER, PolicyPermissions
from policysched.text import Diagnostic

_DUPLICATE_POLICY_CODE = "PS233"


def disallowed_name(program: Program, permissions: PolicyPermissions) -> tuple[Diagnostic, ...]:
    """An error if the policy may not have its name."""
    if program.team is not None and not owns_name(program.team, program.name, permissions):
        namespace = program.team.namespace or "that wrote this text"
        message = f"the settings do not let namespace {namespace} own a policy called `{program.name}`"
        return (make_diagnostic("PS912", message, program.name_span, label="not allowed"),)
    if permissions.allows_name(program.name):
        return ()
    allowed = permissions.policies
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
            help=f"rename the policy, or add `{entries}` to `policy_permissions.policies_allowed` in the settings and restart",
        ),
    )


def owns_name(team: TeamSource, name: str, permissions: PolicyPermissions) -> bool:
    """Whether the name is the team's. A saved text outlives the settings, and as the operator's it would have more rights."""
    owner = permissions.owner(name)
    return owner is not None and team.namespace in ("", owner)


def reject_by_settings(
    offered: Mapping[str, CheckedSource], permissions: PolicyPermissions, extenders: ExtendersByName
) -> Mapping[str, CheckedSource]:
    """Replace programs with a disallowed name or an unusable extender by the diagnostics about it."""
    sources = dict(offered)
    for key, source in offered.items():
        program = source.program
        if program is None:
            continue
        errors = (*disallowed_name(program, permissions), *unusable_extenders(program, extenders))
        if errors:
            diagnostics = (*errors, *source.diagnostics)
            sources[key] = replace(source, program=None, policy_name=program.name, diagnostics=diagnostics)
    return sources


def without_disallowed_removals(
    bundle: PolicyBundle | None, permissions: PolicyPermissions
) -> tuple[Mapping[str, CheckedSource], frozenset[str]]:
    """The other sources of the bundle, and the names that are removed and not allowed. No policy of such a name runs, and its pods may
    be another scheduler's: they get no message."""
    offered = {} if bundle is None else bundle.sources
    removals = {
        key: source.program.name
        for key, source in offered.items()
        if source.program is not None
        and source.program.removed
        and not permissions.allows_name(source.program.name)
    }
    kept_sources = {key: source for key, source in offered.items() if key not in removals}
    return kept_sources, frozenset(removals.values())


def reject_duplicate_names(
    checked: Mapping[str, CheckedSource], owns_name: Callable[[str, CheckedSource], bool]
) -> Mapping[str, CheckedSource]:
    """Reject the first of two keys with one policy name too, if the name is active from the other key.

    The check rejects all keys of a name but the first, in order of the keys. If the name is active
    from another key that still exists, the first key is the new one, and the active text stays.
    `owns_name` says whether the key is the source of the active text.
    """
    sources = dict(checked)
    for source in checked.values():
        for duplicate in source.diagnostics:
            if duplicate.code != _DUPLICATE_POLICY_CODE or duplicate.span is None:
                continue
            name = duplicate.span.text
            first = next(
                (other for other in checked.values() if other.program and other.program.name == name),
                None,
            )
            if first is None or owns_name(name, first):
                continue
            name_span = duplicate.related[0].span
            finding = make_diagnostic(
                _DUPLICATE_POLICY_CODE,
                f"duplicate policy name `{name}`, in use by the key {source.key}",
                name_span,
                label="second policy of this name",
                help="pods select a policy by its name: rename one of the two",
            )
            diagnostics = (finding, *first.diagnostics)
            sources[first.key] = replace(first, program=None, diagnostics=diagnostics)
    return sources


def team_of_key(key: str) -> str | None:
    """The namespace in the key of a team's text."""
    namespace, slash, _ = key.partition("/")
    return namespace if slash else None
