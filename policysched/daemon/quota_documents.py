"""The response of `/quotas` (schema: `schemas/quotas.json`) and the metrics of quotas."""

from collections.abc import Iterable, Iterator
from typing import Any

from policysched.lang.types.kinds import Type, TypeKind
from policysched.scheduler.quotas.quota_messages import format_amount
from policysched.scheduler.quotas.quota_status import QuotaEntityStatus, QuotaResourceStatus
from policysched.serve.prometheus_text import Labels, MetricFamily, gauge_family

Json = dict[str, Any]


def quotas_document(entities: Iterable[QuotaEntityStatus], note: str | None) -> Json:
    """`note`: why this process has no data."""
    return {"note": note, "quotas": [_entity(entity) for entity in entities]}


def _entity(entity: QuotaEntityStatus) -> Json:
    return {
        "policy": entity.policy,
        "quota": entity.quota,
        "entity": list(entity.path),
        "listed": entity.listed,
        "pods": entity.pods,
        "dominant_share": round(entity.dominant_share, 6),
        "resources": {
            resource.resource: {
                "used": format_amount(resource.used, resource.type),
                "amount": format_amount(resource.amount, resource.type),
                "borrowed": format_amount(resource.borrowed, resource.type),
                "ceiling": None
                if resource.ceiling is None
                else format_amount(resource.ceiling, resource.type),
            }
            for resource in entity.resources
        },
    }


def quota_families(entities: Iterable[QuotaEntityStatus]) -> Iterator[MetricFamily]:
    """Entities without a row are left out: tenants could create any number of series."""
    rows = [
        (_labels(entity, resource), entity, resource)
        for entity in entities
        if entity.listed
        for resource in entity.resources
    ]
    yield gauge_family(
        "policysched_quota_used",
        "Requests of the placed pods of an entity with a row, in cores, bytes, bits per second or units.",
        {labels: _base_unit(resource.used, resource.type) for labels, _, resource in rows},
    )
    yield gauge_family(
        "policysched_quota_amount",
        "The amount of the entity.",
        {labels: _base_unit(resource.amount, resource.type) for labels, _, resource in rows},
    )
    yield gauge_family(
        "policysched_quota_borrowed",
        "Use of the entity beyond its amount.",
        {labels: _base_unit(resource.borrowed, resource.type) for labels, _, resource in rows},
    )


def _labels(entity: QuotaEntityStatus, resource: QuotaResourceStatus) -> Labels:
    return (
        ("policy", entity.policy),
        ("quota", entity.quota),
        ("entity", "/".join(entity.path)),
        ("resource", resource.resource),
    )


def _base_unit(amount: int, type_: Type) -> float:
    return amount / 1000 if type_.kind is TypeKind.CPU else float(amount)
