"""What the API server answers to a write of a status: metadata alone, as the object may have a megabyte."""

import asyncio
from random import Random

from policysched.kube.client.api import ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.transport import METADATA_ONLY
from policysched.kube.write.pod_group_status import PodGroupStatusWrite
from policysched.kube.write.report_content import PodScheduledCondition
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_groups import PodGroupKey, PodGroupStatus
from policysched.scheduler.commands import ClearNomination, Evict, Prebind, Victim
from tests.kube.world import Script, on_virtual_time, running, writers


def test_no_write_of_a_status_has_the_object_answered() -> None:
    """Each victim, preemptor and PodGroup was parsed on the main loop, up to 13 ms for a megabyte."""

    async def scenario() -> None:
        script, random, connectivity = Script([(200, {})]), Random(1), Connectivity(lambda: 0.0)
        api = ApiClient(script)
        claims, evictor, reporter = writers(api, random, connectivity)
        async with running(claims.run(), evictor.run(), reporter.run()):
            uid, node = PodUid("u"), NodeName("a")
            claims.put(Prebind(uid, "ns", "claims", node, (), (), nominate=True))
            evictor.put(Evict(uid, "ns", "high", "p", node, (Victim(PodUid("v"), "ns", "victim"),)))
            evictor.put(ClearNomination(uid, "ns", "cleared"))
            reporter.set_condition(PodScheduledCondition("ns", "pending", "p", "Unschedulable", "no"))
            for number, kind in enumerate(("scheduling.k8s.io", "scheduling.x-k8s.io")):
                key = PodGroupKey(kind, "ns", f"group-{number}")  # type: ignore[arg-type]
                reporter.set_condition(PodGroupStatusWrite(key, f"g{number}", "v1", PodGroupStatus()))
            await asyncio.sleep(10)
        patches = {
            request.path.split("/")[-2]: request.accept
            for request in script.requests
            if request.method == "PATCH"
        }
        names = {"claims", "high", "victim", "cleared", "pending", "group-0", "group-1"}
        assert patches == dict.fromkeys(names, METADATA_ONLY)

    on_virtual_time(scenario)
