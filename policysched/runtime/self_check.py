"""On SIGUSR2: what is in memory beside what the server says now, for whoever doubts it.

As kube-scheduler's cache debugger: the cache is summed up, and compared with fresh lists. The cluster moves while it is
read, so only what differs in the same words twice, some seconds apart, is called a difference.
"""

import asyncio
import logging

from policysched.cluster.audit import audit
from policysched.kube.client.api import Api, ApiProblem
from policysched.kube.decode.malformed import Malformed
from policysched.kube.watch.resources import NODES, PODS
from policysched.model.objects import Node, ObservedPod
from policysched.scheduler.events import NodeSeen, PodSeen
from policysched.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

BETWEEN_LOOKS_S = 3.0
SAID_MAX = 100


async def compare_with_the_server(scheduler: Scheduler, api: Api) -> list[str]:
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
        await asyncio.sleep(BETWEEN_LOOKS_S if first else 0)
        lasting = [one for one in await _differences(scheduler, api) if one in first] if first else []
    except ApiProblem as error:
        log.warning("the cache cannot be compared now", extra={"why": str(error)})
        return []
    lasting += scheduler.check()
    for one in lasting[:SAID_MAX]:
        log.error("the cache differs from the server", extra={"difference": one})
    log.info("compared the cache with the server", extra={"differences": len(lasting)})
    return lasting


async def _differences(scheduler: Scheduler, api: Api) -> list[str]:
    nodes, pods = await _nodes(api), await _pods(api)
    return audit(scheduler.cache, nodes=nodes, pods=pods)


async def _nodes(api: Api) -> list[Node]:
    found: list[Node] = []
    async for page in api.pages(NODES.path, {}, page_size=500):
        for obj in page.items:
            try:
                event = NODES.seen(obj)
            except Malformed:
                continue  # left out of the cache too
            assert isinstance(event, NodeSeen), event
            found.append(event.node)
    return found


async def _pods(api: Api) -> list[ObservedPod]:
    found: list[ObservedPod] = []
    async for page in api.pages(PODS.path, {}, page_size=500):
        for obj in page.items:
            try:
                event = PODS.seen(obj)
            except Malformed:
                continue
            assert isinstance(event, PodSeen), event
            found.append(event.pod)
    return found
