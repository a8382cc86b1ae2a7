"""Messages about rejected policy texts: short enough for an event, with the exact position."""

import re
from collections.abc import Mapping

from policysched.lang.check.bundle import CheckedSource
from policysched.lang.ir.program import Program
from policysched.lang.parse.name_length import NAME_CHARACTERS_MAX
from policysched.scheduler.events import PoliciesUpdated
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.policies.saved_texts import saved_form
from policysched.text import Diagnostic, Severity

_HEADER = re.compile(r"^[ \t]*policy[ \t]+([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)[ \t]+version\b", re.MULTILINE)
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def errors_of(source: CheckedSource) -> tuple[Diagnostic, ...]:
    """The diagnostics that prevent activation; warnings do not."""
    return tuple(diagnostic for diagnostic in source.diagnostics if diagnostic.severity >= Severity.ERROR)


def rejection_message(source: CheckedSource) -> str:
    """The first error with its position and help, and the number of further errors:
    "main.policy:31:25 PS210 unknown metric `cpu_utl` (did you mean `cpu_util`?) (and 2 more)"."""
    errors = errors_of(source)
    assert errors, f"{source.key} has no error"
    first, error_count = errors[0], len(errors) - 1
    message = f"{_location(source.key, first)} {first.code} {first.message}"
    if first.help:
        message += f" ({first.help})"
    return f"{message} (and {error_count} more)" if error_count else message


def header_name(source: CheckedSource) -> str | None:
    """The policy name in the header of a broken text, if the header line is still readable. A longer name than a policy may
    have is none: it would be in the metrics and in `/policy`."""
    name = _header_name(source)
    return None if name is None or len(name) > NAME_CHARACTERS_MAX else name


def _header_name(source: CheckedSource) -> str | None:
    if source.policy_name is not None:
        return source.policy_name
    for diagnostic in source.diagnostics:
        if diagnostic.span is not None and diagnostic.span.source.name.endswith(source.key):
            header = _HEADER.search(diagnostic.span.source.text)
            return header[1] if header else None
    return None


def saved_text(source: CheckedSource) -> tuple[str, str] | None:
    """The name and text of a saved policy, also of one that is rejected."""
    if source.program is not None:
        return source.program.name, saved_form(source.program)
    spans = (diagnostic.span for diagnostic in source.diagnostics)
    texts = (span.source.text for span in spans if span is not None and span.source.name.endswith(source.key))
    return next(((source.key.removesuffix(".policy"), text) for text in texts), None)


def active_message(key: str, program: Program) -> str:
    return f"{key}: policy `{program.name}` version {program.version}, sha {short_sha(program.sha256)}, is active"


def missing_message(program: Program, event: PoliciesUpdated, owner: str | None) -> str:
    """About a policy whose text is gone; `owner` is the namespace of its team."""
    cause = "no longer exists" if event.bundle is None else "no longer contains this policy"
    removal = (
        f"add the key {program.name}.removed (`policysched policies remove {program.name}`)"
        if event.last_good_source_name
        else f"add the file {program.name}.removed"
    )
    return (
        f"policy `{program.name}`: {_source_of(event, owner)} {cause}; the last known good text of the policy, "
        f"sha {short_sha(program.sha256)}, stays active. To remove the policy, {removal}"
    )


def no_text_message(policy: str, event: PoliciesUpdated, owner: str | None) -> str:
    """The message of pods of a removed policy once the key of its removal is deleted."""
    return (
        f"policy {policy} is removed, and {_source_of(event, owner)} has no text of it; "
        f"add one, or give the pod another schedulerName"
    )


def _source_of(event: PoliciesUpdated, owner: str | None) -> str:
    return event.source_name if owner is None else f"the ConfigMap of namespace {owner}"


def short_sha(sha256: str) -> str:
    """The first six digits of a hash."""
    return sha256[:6]


def format_duration(ns: int) -> str:
    """Format a duration in its largest unit only: `2h`, `3m`."""
    seconds = max(0, ns // SECOND_NS)
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return "0s"


def _location(key: str, diagnostic: Diagnostic) -> str:
    if diagnostic.span is None:
        return key
    source = diagnostic.span.source
    position = source.position(diagnostic.span.start)
    name = key if source.name.endswith(key) else source.name
    return f"{name}:{position.line}:{position.column}"


def no_policy_message(broken: Mapping[str, CheckedSource], event: PoliciesUpdated) -> str:
    none_saved = (
        f"{event.last_good_source_name} has no last known good policy"
        if event.last_good_source_name
        else "no last known good policy is saved"
    )
    if event.bundle is None:
        return f"no policy to run: {event.source_name} does not exist, and {none_saved}"
    if not broken:
        return f"no policy to run: {event.source_name} has no key named NAME.policy, and {none_saved}"
    first = "; ".join(rejection_message(source) for source in broken.values())
    return f"no policy to run: no policy in {event.source_name} is valid, and {none_saved}. {first}"
