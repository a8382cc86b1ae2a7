"""Which of several keys with one policy name is the policy."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from policysched.lang.check.bundle import CheckedSource
from policysched.lang.diagnostics.catalogue import make_diagnostic

_DUPLICATE_POLICY_CODE = "PS233"


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
