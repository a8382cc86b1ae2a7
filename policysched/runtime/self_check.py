"""On SIGUSR2: logs a summary of the cache and compares it with fresh lists, like kube-scheduler's cache debugger.

The cluster changes while it is read, so only differences that two comparisons some seconds apart both report count.
"""

import asyncio
import logging

from policysched.cluster.cache_differences import find_cache_differences
from policysched.kube.client.api import ApiClient, ApiErrors
from policysched.kube.decode.counted_names import CountedNames
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.watch.resources import NODES, PODS, pods_within
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.scheduler.events import NodeUpdated, PodUpdated
from policysched.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

RECHECK_DELAY_S = 3.0
DIFFERENCES_LOGGED_MAX = 100


async def compare_with_server(scheduler: Scheduler, api: ApiClient, names: CountedNames) -> list[str]:
    """The lasting differences as sentences; each is logged too. `names`: what is kept of large pods first."""
    cache = scheduler.cache
    counts = {
        "nodes": len(cache.nodes),
        "pods": len(cache.pods),
        "binds_in_flight": scheduler.binds_in_flight,
    }
    log.info(
        "cache summary",
        extra={**counts, **{f"pending_{q}": n for q, n in scheduler.pending_counts().items()}},
    )
    try:
        first = set(await _differences(scheduler, api, names))
        await asyncio.sleep(RECHECK_DELAY_S if first else 0)
        second = await _differences(scheduler, api, names) if first else []
        lasting = [difference for difference in second if difference in first]
    except ApiErrors as error:
        log.warning("cannot compare the cache with the API server", extra={"error": str(error)})
        return []
    lasting += scheduler.check()
    for difference in lasting[:DIFFERENCES_LOGGED_MAX]:
        log.error("the cache differs from the API server", extra={"difference": difference})
    log.info("compared the cache with the API server", extra={"differences": len(lasting)})
    return lasting


async def _differences(scheduler: Scheduler, api: ApiClient, names: CountedNames) -> list[str]:
    nodes, pods = await _list_nodes(api), await _list_pods(scheduler, api, names)
    return find_cache_differences(scheduler.cache, nodes=nodes, pods=pods)


async def _list_nodes(api: ApiClient) -> list[Node]:
    nodes: list[Node] = []
    async for page in api.pages(NODES.path, {}, page_size=500):
        for obj in page.items:
            try:
                event = NODES.updated_event(obj)
            except MalformedObject:
                continue  # not in the cache either
            assert isinstance(event, NodeUpdated), event
            nodes.append(event.node)
    return nodes


async def _list_pods(scheduler: Scheduler, api: ApiClient, names: CountedNames) -> list[ObservedPod]:
    decode = pods_within(scheduler.core.limits.decision_budget, names).decode_update
    assert decode is not None
    pods: list[ObservedPod] = []
    async for page in api.pages(PODS.path, {}, page_size=500):
        for obj in page.items:
            try:
                event, _ = decode(obj, None)
            except MalformedObject:
                continue
            assert isinstance(event, PodUpdated), event
            pods.append(event.pod)
    return pods
