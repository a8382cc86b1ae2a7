"""All writers over one pool of connections, while webhooks of many namespaces answer nothing."""

import asyncio
from random import Random

from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.session import ConnectionSettings
from policysched.kube.client.transport import ApiRequest, ApiResponse
from policysched.kube.write.bind import Binder
from policysched.kube.write.report_content import PodScheduledCondition
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.commands import Bind, ClearNomination, Prebind
from tests.kube.world import Script, no_answer, on_virtual_time, running, until, writers

NODE = NodeName("a")
HANGING = [f"hanging-{index}" for index in range(40)]


class Pool(Script):
    """Of the default size."""

    def __init__(self) -> None:
        super().__init__([(201, {})])
        self.connections = asyncio.Semaphore(ConnectionSettings().connections_max)
        self.hung: set[str] = set()

    async def request(self, request: ApiRequest) -> ApiResponse:
        async with self.connections:
            if "/namespaces/hanging" in request.path:
                self.hung.add(request.path.split("/")[-2])
                await asyncio.sleep(request.timeout_s)
                raise no_answer()
            return await super().request(request)


def test_hanging_requests_of_all_writers_leave_connections_to_binds() -> None:
    async def scenario() -> None:
        pool, random, connectivity = Pool(), Random(1), Connectivity(lambda: 0.0)
        api, bound = ApiClient(pool), list[object]()
        binder = Binder(api, bound.append, random=random, connectivity=connectivity)
        claims, evictor, reporter = writers(api, random, connectivity)
        async with running(binder.run(), claims.run(), evictor.run(), reporter.run()):
            for number in range(400):
                namespace, uid = HANGING[number % len(HANGING)], f"p{number}"
                claims.put(Prebind(PodUid(uid), namespace, uid, NODE, (), (), nominate=True))
                evictor.put(ClearNomination(PodUid(uid), namespace, uid))
                reporter.set_condition(PodScheduledCondition(namespace, uid, uid, "Unschedulable", "no"))
            for second in range(30):
                await asyncio.sleep(1.0)
                binder.put(Bind(PodUid(f"b{second}"), "other", f"b{second}", NODE, "p", ""))
                await until(lambda second=second: len(bound) == second + 1, "the bind", within_s=0.1)  # type: ignore[misc]
        assert len(pool.hung) > 100

    on_virtual_time(scenario)
