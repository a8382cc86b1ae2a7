"""Diagnostics about the `quota` statement."""

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc, diagnostic_doc
from policysched.text import Severity

_ORG = """quota org by namespace.labels["org"] else "none" {
  "research" { cpu = 100 }
  others { cpu = 0 }
}
"""
_TEAM = 'quota team by namespace.labels["team"] else "none" within org'

QUOTA_DOCS: tuple[DiagnosticDoc, ...] = (
    diagnostic_doc(
        "PS270",
        "quota-row-path",
        "a row of a quota has the wrong number of names",
        "A row of a nested quota names the entity and what it is in, innermost first: "
        '`"vision" in "research"`. A row of an outermost quota has one name.',
        bad=f'{_ORG}{_TEAM} {{ "vision" {{ cpu = 40 }} others {{ cpu = 0 }} }}',
        good=f'{_ORG}{_TEAM} {{ "vision" in "research" {{ cpu = 40 }} others {{ cpu = 0 }} }}',
    ),
    diagnostic_doc(
        "PS271",
        "quota-parent",
        "a quota is within itself, or within a quota that is not declared above it",
        "`within` nests quotas: what a team uses counts towards its organisation too. The outermost "
        "quota is declared first.",
        bad="quota org by pod.namespace within team { others { cpu = 4 } }\n"
        "quota team by pod.owner.name within org { others { cpu = 4 } }",
        good="quota org by pod.namespace { others { cpu = 4 } }\n"
        "quota team by pod.owner.name within org { others { cpu = 4 } }",
    ),
    diagnostic_doc(
        "PS272",
        "quota-without-others",
        "a quota has no limits for entities without a row",
        "A new team, or a misspelled label, is an entity without a row. The policy must say whether "
        "its pods are limited: `others { cpu = 0 }` for each such entity, or `others unlimited`.",
        bad='quota team by pod.namespace { "web" { cpu = 40 } }',
        good='quota team by pod.namespace { "web" { cpu = 40 } others { cpu = 2 } }',
    ),
    diagnostic_doc(
        "PS273",
        "unknown-quota-resource",
        "a quota limits a resource that is not declared",
        "Without quotes there are `cpu`, `memory`, `pods` (their number) and the resources that the "
        "policy declares. Others are quoted.",
        bad='quota team by pod.namespace { "web" { gpus = 4 } others unlimited }',
        good='quota team by pod.namespace { "web" { "nvidia.com/gpu" = 4 } others unlimited }',
    ),
    diagnostic_doc(
        "PS420",
        "quota-above-parent",
        "the rows of a quota sum to more than their parent has",
        "Each pod counts towards both quotas, so the parent's amount holds. The entities cannot all "
        "use their full amount at once, so an entitled pod may have to wait. Let the amounts sum to at "
        "most the parent's, and use `borrow` for more.",
        bad=f'{_ORG}{_TEAM} {{ "a" in "research" {{ cpu = 80 }} "b" in "research" {{ cpu = 80 }} others {{ cpu = 0 }} }}',
        good=f'{_ORG}{_TEAM} {{ "a" in "research" {{ cpu = 50 borrow 30 }} "b" in "research" {{ cpu = 50 borrow 30 }} others {{ cpu = 0 }} }}',
        severity=Severity.WARNING,
    ),
    diagnostic_doc(
        "PS421",
        "quota-row-without-parent",
        "a row is in an entity that the enclosing quota has no row for",
        "The name may be misspelled. If it is not, the limits of `others` apply to the enclosing entity.",
        bad=f'{_ORG}{_TEAM} {{ "vision" in "reserch" {{ cpu = 40 }} others {{ cpu = 0 }} }}',
        good=f'{_ORG}{_TEAM} {{ "vision" in "research" {{ cpu = 40 }} others {{ cpu = 0 }} }}',
        severity=Severity.WARNING,
    ),
)
