"""Quotas by their definition: everything is counted anew for each question."""

from collections.abc import Iterable
from math import ceil

from policysched.cluster.cache import ClusterCache
from policysched.lang.ir.program import Program
from policysched.lang.ir.quotas import EntityPath, QuotaLimit, QuotaSpec
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from tests.reference.context import pod_context
from tests.reference.expressions import value
from tests.reference.values import MISSING

PlacedPod = tuple[Pod, Namespace | None]


def quota_path(program: Program, spec: QuotaSpec, pod: Pod, namespace: Namespace | None) -> EntityPath:
    """The entity of the quota that the pod counts towards."""
    outer = () if spec.parent is None else quota_path(program, program.quotas[spec.parent], pod, namespace)
    name = value(spec.key, pod_context(program, pod, namespace))
    return (*outer, "" if name is MISSING else str(name))


def quota_request(program: Program, resource: str, pod: Pod, namespace: Namespace | None) -> int:
    """What the pod asks of a resource, in whole units."""
    if resource == "pods":
        return 1
    if resource not in program.resources:
        return pod.requests.get(resource, 0)
    amount = value(program.resources[resource].request, pod_context(program, pod, namespace))
    assert isinstance(amount, int | float), f"{resource} of {pod.full_name} is {amount!r}"
    return max(0, ceil(amount))


def limit_of(spec: QuotaSpec, path: EntityPath, resource: str) -> QuotaLimit | None:
    """The limit of the entity; None if the resource is not limited for it."""
    limits = next((row.limits for row in spec.rows if row.path == path), spec.others)
    return next((limit for limit in limits if limit.resource == resource), None)


def quota_use(
    program: Program, spec: QuotaSpec, path: EntityPath, resource: str, placed: Iterable[PlacedPod]
) -> int:
    return sum(
        quota_request(program, resource, pod, namespace)
        for pod, namespace in placed
        if quota_path(program, spec, pod, namespace) == path
    )


def dominant_share(program: Program, quota: str, pod: Pod, cache: ClusterCache) -> float:
    """The largest part of its amounts that the pod's entity uses of the quota."""
    spec, placed = program.quotas[quota], _placed_pods(program, cache)
    path = quota_path(program, spec, pod, cache.namespaces.get(pod.namespace))
    limits = next((row.limits for row in spec.rows if row.path == path), spec.others)
    shares = [0.0]
    for limit in limits:
        used = quota_use(program, spec, path, limit.resource, placed)
        if used:
            shares.append(used / limit.amount if limit.amount else 1e9)
    return max(shares)


def borrows(program: Program, spec: QuotaSpec, path: EntityPath, placed: Iterable[PlacedPod]) -> set[str]:
    """The resources of which the entity uses more than its amount."""
    limits = next((row.limits for row in spec.rows if row.path == path), spec.others)
    return {
        limit.resource
        for limit in limits
        if quota_use(program, spec, path, limit.resource, placed) > limit.amount
    }


def is_entitled(program: Program, placed: Iterable[PlacedPod], pod: Pod, namespace: Namespace | None) -> bool:
    """Whether each entity of the pod stays within its amounts with it."""
    after = [*placed, (pod, namespace)]
    return not any(
        resource
        for spec in program.quotas.values()
        for resource in borrows(program, spec, quota_path(program, spec, pod, namespace), after)
        if quota_request(program, resource, pod, namespace)
    )


def quotas_admit(
    program: Program, placed: Iterable[PlacedPod], pod: Pod, namespace: Namespace | None
) -> bool:
    """Whether the pod may be placed beside the placed pods of its policy: no limit of a resource that it asks for is
    exceeded with it."""
    return not blocking_quotas(program, placed, pod, namespace)


def blocking_quotas(
    program: Program, placed: Iterable[PlacedPod], pod: Pod, namespace: Namespace | None
) -> set[str]:
    """The quotas that do not let the pod in."""
    after = [*placed, (pod, namespace)]
    resources = {
        limit.resource
        for spec in program.quotas.values()
        for limits in (spec.others, *(row.limits for row in spec.rows))
        for limit in limits
    }
    return {
        spec.name
        for spec in program.quotas.values()
        for resource in resources
        if quota_request(program, resource, pod, namespace)
        and not _within(program, spec, resource, after, pod, namespace)
    }


def quotas_admit_in(program: Program, pod: Pod, cache: ClusterCache) -> bool:
    """The same beside the placed pods of the policy in this cluster."""
    if not program.quotas:
        return True
    placed = [(other, namespace) for other, namespace in _placed_pods(program, cache) if other.uid != pod.uid]
    return quotas_admit(program, placed, pod, cache.namespaces.get(pod.namespace))


def _placed_pods(program: Program, cache: ClusterCache) -> list[PlacedPod]:
    return [
        (placement.pod, cache.namespaces.get(placement.pod.namespace))
        for placement in cache.ledger.placements
        if placement.pod.scheduler == program.name
    ]


def _within(
    program: Program,
    spec: QuotaSpec,
    resource: str,
    after: list[PlacedPod],
    pod: Pod,
    namespace: Namespace | None,
) -> bool:
    path = quota_path(program, spec, pod, namespace)
    limit = limit_of(spec, path, resource)
    if limit is None:
        return True
    used = quota_use(program, spec, path, resource, after)
    if limit.borrow is not None and used > limit.amount + limit.borrow:
        return False
    if spec.parent is not None and limit_of(program.quotas[spec.parent], path[:-1], resource) is not None:
        return True  # the parent limits what its entities use together
    listed = any(row.path == path for row in spec.rows)
    if not listed and used <= limit.amount:
        return True  # its own amount is not of the pool
    siblings = {
        quota_path(program, spec, other, space)
        for other, space in after
        if quota_path(program, spec, other, space)[:-1] == path[:-1]
    }
    together = 0
    for sibling in siblings:
        quota_limit = limit_of(spec, sibling, resource)
        if quota_limit is not None:
            use = quota_use(program, spec, sibling, resource, after)
            has_row = any(row.path == sibling for row in spec.rows)
            together += use if has_row else max(0, use - quota_limit.amount)
    total = sum(
        quota_limit.amount
        for row in spec.rows
        if row.path[:-1] == path[:-1]
        for quota_limit in row.limits
        if quota_limit.resource == resource
    )
    return together <= total
