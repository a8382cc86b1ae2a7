"""On SIGUSR2: what is in memory beside what the server says now, for whoever doubts it.

As kube-scheduler's cache debugger: the cache is summed up, and compared with fresh lists. The cluster moves while it is
read, so only what differs in the same words twice, some seconds apart, is called a difference.
"""

import asyncio
import logging

from policysched.cluster.audit import find_cache_differences
from policysched.kube.client.api import ApiClient, ApiErrors
from policysched.kube.decode.errors import Malformed
from policysched.kube.watch.resources import NODES, PODS
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.scheduler.events import NodeUpdated, PodUpdated
from policysched.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

RECHECK_DELAY_S = 3.0
DIFFERENCES_LOGGED_MAX = 100


async def compare_with_server(scheduler: Scheduler, api: ApiClient) -> list[str]:
    """Differences that last, as sentences; each is logged too."""
    cache = scheduler.cache
    counts = {
        "nodes": len(cache.nodes),
        "pods": len(cache.pods),
        "binds_in_flight": scheduler.binds_in_flight,
    }
    log.info(
        "the cache", extra={**counts, **{f"pending_{q}": n for q, n in scheduler.pending_counts().items()}}
    )
    try:
        first = set(await _differences(scheduler, api))
        await asyncio.sleep(RECHECK_DELAY_S if first else 0)
        lasting = [one for one in await _differences(scheduler, api) if one in first] if first else []
    except ApiErrors as error:
        log.warning("the cache cannot be compared now", extra={"why": str(error)})
        return []
    lasting += scheduler.check()
    for one in lasting[:DIFFERENCES_LOGGED_MAX]:
        log.error("the cache differs from the server", extra={"difference": one})
    log.info("compared the cache with the server", extra={"differences": len(lasting)})
    return lasting


async def _differences(scheduler: Scheduler, api: ApiClient) -> list[str]:
    nodes, pods = await _list_nodes(api), await _list_pods(api)
    return find_cache_differences(scheduler.cache, nodes=nodes, pods=pods)


async def _list_nodes(api: ApiClient) -> list[Node]:
    found: list[Node] = []
    async for page in api.pages(NODES.path, {}, page_size=500):
        for obj in page.items:
            try:
                event = NODES.updated_event(obj)
            except Malformed:
                continue  # left out of the cache too
            assert isinstance(event, NodeUpdated), event
            found.append(event.node)
    return found


async def _list_pods(api: ApiClient) -> list[ObservedPod]:
    found: list[ObservedPod] = []
    async for page in api.pages(PODS.path, {}, page_size=500):
        for obj in page.items:
            try:
                event = PODS.updated_event(obj)
            except Malformed:
                continue
            assert isinstance(event, PodUpdated), event
            found.append(event.pod)
    return found
