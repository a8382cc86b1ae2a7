"""The simulated kubelet and controllers, on virtual time: phases of pods, rollouts, jobs and
garbage collection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from policysched.sandbox.apiserver import ApiServer, subresources
from policysched.sandbox.controllers import Controllers
from policysched.sandbox.kubelet import EXIT_CODE, RUN_SECONDS, Kubelet
from policysched.sandbox.local_client import LocalClient
from policysched.sandbox.nodes import make_nodes
from tests.contract.manifests import config_map, deployment, node, pod
from tests.simulation.virtual_time import run_virtual

Result = TypeVar("Result")


def run_story(story: Callable[[ApiServer, LocalClient], Awaitable[Result]]) -> Result:
    """Run a story with two nodes, a kubelet that starts pods in 2 s and stops them in 3 s, and the
    controllers.
    """

    async def main() -> Result:
        loop = asyncio.get_running_loop()
        server = ApiServer(now=lambda: 1_700_000_000 + loop.time())
        local = LocalClient(server)
        for manifest in make_nodes(2):
            local.create("nodes", "", manifest)
        parts = [Kubelet(local, start_s=2.0, stop_s=3.0), Controllers(local)]
        tasks = [asyncio.create_task(part.run()) for part in parts]
        await asyncio.sleep(0)
        try:
            return await story(server, local)
        finally:
            for task in tasks:
                task.cancel()

    return run_virtual(main())


def bind(server: ApiServer, name: str, to: str = "node-1") -> None:
    subresources.bind(server.registry, server.kind("pods"), "default", name, {"target": {"name": to}})


def bind_all(server: ApiServer, local: LocalClient) -> None:
    for waiting in local.list("pods"):
        if not waiting["spec"].get("nodeName"):
            bind(server, waiting["metadata"]["name"])


def phase(local: LocalClient, name: str) -> str:
    pod = local.get("pods", "default", name)
    return "gone" if pod is None else pod["status"]["phase"]


def test_a_bound_pod_runs_after_its_start_and_an_unbound_one_never() -> None:
    async def story(server: ApiServer, local: LocalClient) -> list[tuple[str, str]]:
        for name in ("bound", "waiting"):
            local.create("pods", "default", pod(name))
        bind(server, "bound")
        phases = []
        for _ in range(2):
            await asyncio.sleep(1.5)
            phases.append((phase(local, "bound"), phase(local, "waiting")))
        return phases

    assert run_story(story) == [("Pending", "Pending"), ("Running", "Pending")]


def test_a_pod_with_a_run_time_ends_although_it_is_changed_meanwhile() -> None:
    async def story(server: ApiServer, local: LocalClient) -> list[str]:
        for name, code in (("good", "0"), ("bad", "3")):
            body = pod(name, restartPolicy="Never")
            body["metadata"]["annotations"] = {RUN_SECONDS: "10", EXIT_CODE: code}
            local.create("pods", "default", body)
            bind(server, name)
        await asyncio.sleep(8)
        good = local.get("pods", "default", "good")
        assert good is not None
        local.update("pods", good, lambda obj: {**obj, "metadata": {**obj["metadata"], "labels": {"a": "b"}}})
        before = [phase(local, "good"), phase(local, "bad")]
        await asyncio.sleep(4.5)
        return [*before, phase(local, "good"), phase(local, "bad")]

    assert run_story(story) == ["Running", "Running", "Succeeded", "Failed"]


def test_a_deleted_pod_stays_until_its_kubelet_has_stopped_it() -> None:
    async def story(server: ApiServer, local: LocalClient) -> list[str]:
        local.create("pods", "default", pod("web"))
        bind(server, "web")
        await asyncio.sleep(3)
        web = local.get("pods", "default", "web")
        assert web is not None
        local.delete("pods", web)
        await asyncio.sleep(2.5)
        stopping = phase(local, "web")
        await asyncio.sleep(1)
        return [stopping, phase(local, "web")]

    assert run_story(story) == ["Running", "gone"]


def test_a_pod_starts_when_its_node_is_created_and_is_deleted_with_it() -> None:
    async def story(server: ApiServer, local: LocalClient) -> list[str]:
        local.create("pods", "default", pod("web"))
        bind(server, "web", to="late")
        await asyncio.sleep(10)
        phases = [phase(local, "web")]
        late = local.create("nodes", "", node("late"))
        await asyncio.sleep(3)
        phases.append(phase(local, "web"))
        local.delete("nodes", late)
        await asyncio.sleep(1)
        return [*phases, phase(local, "web")]

    assert run_story(story) == ["Pending", "Running", "gone"]


def test_a_node_without_status_becomes_ready_with_its_hostname() -> None:
    async def story(_: ApiServer, local: LocalClient) -> tuple[Any, Any]:
        local.create("nodes", "", node("mine", cpu="7"))
        await asyncio.sleep(1)
        mine = local.get("nodes", "", "mine")
        assert mine is not None
        ready = {c["type"]: c["status"] for c in mine["status"]["conditions"]}["Ready"]
        return ready, (
            mine["metadata"]["labels"]["kubernetes.io/hostname"],
            mine["status"]["allocatable"]["cpu"],
        )

    assert run_story(story) == ("True", ("mine", "7"))


def test_a_rolling_update_keeps_max_unavailable_and_max_surge() -> None:
    async def story(server: ApiServer, local: LocalClient) -> tuple[int, int, set[str]]:
        body = deployment("web", replicas=8)
        body["spec"]["strategy"] = {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}}
        made = local.create("deployments", "default", body)
        await asyncio.sleep(1)
        bind_all(server, local)
        await asyncio.sleep(5)

        def change(obj: Any) -> Any:
            obj["spec"]["template"]["spec"]["containers"][0]["image"] = "app:2"
            return obj

        local.update("deployments", made, change)
        fewest_ready, most = 8, 8
        for _ in range(400):
            await asyncio.sleep(0.1)
            bind_all(server, local)
            active = [p for p in local.list("pods") if not p["metadata"].get("deletionTimestamp")]
            ready = [p for p in active if p["status"]["phase"] == "Running"]
            fewest_ready, most = min(fewest_ready, len(ready)), max(most, len(active))
        images = {p["spec"]["containers"][0]["image"] for p in local.list("pods")}
        return fewest_ready, most, images

    assert run_story(story) == (7, 10, {"app:2"})


def test_a_job_replaces_failed_pods_until_its_backoff_limit() -> None:
    async def story(server: ApiServer, local: LocalClient) -> tuple[dict[str, str], int]:
        template = pod("x", restartPolicy="Never")
        template["metadata"] = {"annotations": {RUN_SECONDS: "1", EXIT_CODE: "1"}}
        spec = {"backoffLimit": 2, "template": {"metadata": template["metadata"], "spec": template["spec"]}}
        local.create("jobs", "default", {"metadata": {"name": "train"}, "spec": spec})
        for _ in range(60):
            await asyncio.sleep(0.5)
            bind_all(server, local)
        job = local.get("jobs", "default", "train")
        assert job is not None
        return {c["type"]: c["status"] for c in job["status"]["conditions"]}, job["status"]["failed"]

    assert run_story(story) == ({"FailureTarget": "True", "Failed": "True"}, 3)


def test_an_indexed_job_gives_each_index_one_pod() -> None:
    async def story(_: ApiServer, local: LocalClient) -> list[str]:
        template = {"spec": pod("x", restartPolicy="Never")["spec"]}
        spec = {"completions": 4, "parallelism": 3, "completionMode": "Indexed", "template": template}
        local.create("jobs", "default", {"metadata": {"name": "train"}, "spec": spec})
        await asyncio.sleep(1)
        return sorted(
            p["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
            for p in local.list("pods")
        )

    assert run_story(story) == ["0", "1", "2"]


def test_owned_objects_are_deleted_with_their_owner_and_objects_with_their_namespace() -> None:
    async def story(_: ApiServer, local: LocalClient) -> tuple[int, int, bool]:
        made = local.create("deployments", "default", deployment("web", replicas=3))
        namespace = local.create("namespaces", "", {"metadata": {"name": "there"}})
        await asyncio.sleep(1)
        local.create("configmaps", "there", config_map("a"))
        pods_before = len(list(local.list("pods")))
        local.delete("deployments", made)
        local.delete("namespaces", namespace)
        await asyncio.sleep(5)
        left = [*local.list("pods"), *local.list("replicasets"), *local.list("configmaps", "there")]
        return pods_before, len(left), local.get("namespaces", "", "there") is None

    assert run_story(story) == (3, 0, True)
