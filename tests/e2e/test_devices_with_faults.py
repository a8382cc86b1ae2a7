"""Device claims and extended resources over a faulty transport, with restarts of the scheduler.

Requests are lost, delayed and repeated. No device is ever allocated to two claims, and at rest no
pod waits for a free device.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.device_usage import DeviceUsage
from policysched.config.settings import Settings, read_settings
from policysched.daemon.app import Runtime
from policysched.runtime.leadership import NoLeaderElection
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.sandbox.controllers import Controllers
from policysched.sandbox.faults import FaultRates
from tests.devices import asking, claim_spec, claiming, class_manifest, gpu, new, slice_manifest
from tests.e2e.test_deploy import DEPLOY, create_what_the_program_is_given
from tests.inline import check_inline
from tests.kube.world import World, on_virtual_time, running

Json = dict[str, Any]
ROUGH = FaultRates(
    latency_s=0.01,
    latency_spread_s=0.05,
    slow_share=0.05,
    slow_s=2.0,
    lost_before_share=0.05,
    lost_after_share=0.1,
    late_share=0.03,
    duplicate_share=0.05,
    watch_lifetime_s=20.0,
)
NODES = ("a", "b", "c")
PODS = 14
GPU = "example.com/gpu"


class Cluster:
    """Three nodes with three devices each, and more pods with claims than devices: some pods end,
    some share a claim.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.world = World()
        self.wrong: list[str] = []
        create_what_the_program_is_given(self.world)
        local = self.world.local
        local.create("deviceclasses", "", class_manifest(extendedResourceName=GPU))
        for name in NODES:
            self.world.add_node(name, cpu="4")
            local.create("resourceslices", "", new(slice_manifest(name, *(gpu(f"g{n}") for n in range(3)))))
        template = {"metadata": {"name": "one-gpu"}, "spec": {"spec": claim_spec(asking())}}
        local.create("resourceclaimtemplates", "default", template)
        local.create(
            "resourceclaims", "default", {"metadata": {"name": "shared"}, "spec": claim_spec(asking())}
        )
        local.listen("resourceclaims", lambda _: self.look())

    def app(self, turn: int) -> SchedulerApp:
        settings: Settings = read_settings(DEPLOY / "settings.yaml", {}, {})
        return SchedulerApp(
            settings,
            Runtime(
                transport=self.world.transport(ROUGH, self.seed * 10 + turn),
                check_texts=check_inline,
                now_ns=self.world.now_ns,
                monotonic_s=self.world.loop.time,
                random=lambda name: Random(f"{self.seed} {turn} {name}"),
                identity=f"turn-{turn}",
            ),
            NoLeaderElection(),
        )

    def claims(self) -> list[Json]:
        return list(self.world.local.list("resourceclaims", "default"))

    def look(self) -> None:
        """Called after each change of a claim; reads the server's objects only."""
        held = Counter(
            (result["pool"], result["device"])
            for claim in self.claims()
            for result in ((claim.get("status") or {}).get("allocation") or {"devices": {"results": ()}})[
                "devices"
            ]["results"]
        )
        self.wrong += [f"{device} has {count} claims" for device, count in held.items() if count > 1]

    def pod_comes(self, number: int) -> None:
        rng = self.rng.random()
        if rng < 0.3:
            self.world.add_pod(f"p{number}", scheduler="kube-default", cpu="100m", resources={GPU: "1"})
            return
        template = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
        wanted = claiming("shared") if rng < 0.5 else template
        self.world.add_pod(f"p{number}", scheduler="kube-default", cpu="100m", spec=wanted)

    def pod_ends(self) -> None:
        pods = [pod for pod in self.world.local.list("pods", "default") if pod["spec"].get("nodeName")]
        if pods:
            self.world.local.delete("pods", self.rng.choice(pods), grace_period_s=0)

    def claims_are_right(self) -> list[str]:
        """Each bound pod has claims whose devices its node can use and which are reserved for it,
        and a claim for its extended resource if it requests one. No other claim for extended
        resources has devices.
        """
        problems = []
        for pod in self.world.local.list("pods", "default"):
            of_pod = [claim for claim in self.claims() if uses(pod, claim["metadata"])]
            if not pod["spec"].get("nodeName"):
                continue
            if not pod["spec"].get("resourceClaims") and len(of_pod) != 1:
                problems.append(f"{pod['metadata']['name']} has no claim for its extended resource")
            for claim in of_pod:
                status = claim.get("status") or {}
                users = [consumer["uid"] for consumer in status.get("reservedFor") or ()]
                pools = [
                    result["pool"]
                    for result in (status.get("allocation") or {"devices": {"results": ()}})["devices"][
                        "results"
                    ]
                ]
                if pod["metadata"]["uid"] not in users or pools != [pod["spec"]["nodeName"]]:
                    problems.append(f"{pod['metadata']['name']} on {pod['spec']['nodeName']} with {status}")
        return problems

    def at_rest(self) -> list[str]:
        waiting = [
            pod["metadata"]["name"]
            for pod in self.world.local.list("pods", "default")
            if not pod["spec"].get("nodeName")
        ]
        taken = sum(bool((claim.get("status") or {}).get("allocation")) for claim in self.claims())
        idle = [f"{waiting} wait, and {9 - taken} devices are free"] if waiting and taken < 9 else []
        return [*self.claims_are_right(), *idle]


def uses(pod: Json, claim: Json) -> bool:
    """Whether the pod uses the claim with this metadata."""
    wanted = pod["spec"].get("resourceClaims")
    if not wanted:
        claim_status = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
        return bool(claim["name"] == claim_status.get("resourceClaimName"))
    if "resourceClaimName" in wanted[0]:
        return bool(claim["name"] == "shared")
    return bool(claim["name"].startswith(f"{pod['metadata']['name']}-gpu-"))


def played(seed: int) -> list[str]:
    problems: list[str] = []

    async def scenario() -> None:
        cluster = Cluster(seed)
        async with running(Controllers(cluster.world.local).run()):
            arrived = 0
            for turn in range(3):
                app = cluster.app(turn)
                async with running(app.run()):
                    for _ in range(12):
                        await asyncio.sleep(cluster.rng.random() * 6)
                        if arrived < PODS and cluster.rng.random() < 0.7:
                            arrived += 1
                            cluster.pod_comes(arrived)
                        elif cluster.rng.random() < 0.5:
                            cluster.pod_ends()
                await asyncio.sleep(20)  # a new leader waits for binds that the former one may have in flight
            last = cluster.app(9)
            async with running(last.run()):
                for number in range(arrived + 1, arrived + 13):
                    cluster.pod_comes(number)
                await asyncio.sleep(60)
                for _ in range(4):
                    cluster.pod_ends()
                await asyncio.sleep(400)
            problems.extend([*cluster.wrong, *cluster.at_rest()])
            bound = [
                pod for pod in cluster.world.local.list("pods", "default") if pod["spec"].get("nodeName")
            ]
            assert len(bound) > 3, f"seed {seed} binds no pod"

    on_virtual_time(scenario)
    return problems


@pytest.mark.parametrize("seed", range(6))
def test_no_device_is_allocated_twice_or_left_idle(seed: int) -> None:
    assert played(seed) == []


@pytest.mark.parametrize(
    ("where", "part", "planted"),
    [
        (DeviceCache, "reserve", lambda *_: None),
        (DeviceUsage, "remove", lambda *_: None),
    ],
    ids=["nothing is promised", "what is given back stays taken"],
)
def test_a_planted_bug_is_detected(
    where: Any, part: str, planted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, part, planted)

    assert any(played(seed) for seed in range(12))
