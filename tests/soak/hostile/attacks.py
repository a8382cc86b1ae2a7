"""What a hostile tenant tries. Each attack runs until it is cancelled, at the rates of `bounds`, and replaces what it created
once there is enough of it, so that expensive objects are there all the time and continue to arrive. `clean_up` deletes
what they left.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from tests.bench.beside.world import World, world
from tests.controlplane.api import MERGE_PATCH, Json
from tests.controlplane.certificates import KeyPair
from tests.controlplane.cluster import HOST
from tests.controlplane.objects import pod
from tests.hostile import HOSTILE_SPECS, REQUIRED
from tests.soak.hostile.bounds import Pace, Rates

NAMESPACE = "hostile"
RIGHTS = {
    "": ["pods", "configmaps"],
    "policy": ["poddisruptionbudgets"],
    "resource.k8s.io": ["resourceclaims"],
}
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
GANG, MEMBERS = "example.com/gang", "example.com/members"
SIZE_MAX = 1024 * 1024
"""etcd refuses objects of 1.5 MiB."""
KINDS = {
    "pods": "/api/v1",
    "configmaps": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
}


@dataclass(frozen=True)
class Target:
    """Where the tenant's process finds everything. `admin` is the operator, `tenant` has `RIGHTS` in its namespace.
    `node_count` nodes are called node-00000 and so on; `scheduler` is the policy that it shares with the friendly tenant,
    `own` and `own`-edited those of its team; the ports are at `port`."""

    url: str
    authority_path: Path
    admin: KeyPair
    tenant: KeyPair
    port: int
    node_count: int
    scheduler: str
    own: str
    rates: Rates


def attack(target: Target, names: Sequence[str], hits: Connection) -> None:
    """Run until the process gets SIGTERM; then send what hit since SIGUSR1, by name. Before it, nothing hit: the attacks
    begin. A process of its own, so that its work does not delay the clock of the friendly tenant; its machine is
    elsewhere, so it has the processor only when nobody else wants it. It ends with the process that started it."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    async def run() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with world(replace(target, admin=target.tenant)) as world_, world(target) as operator:
            tenants = {name: Hostile(world_, operator, target) for name in names}
            loop.add_signal_handler(signal.SIGTERM, ended.set)
            loop.add_signal_handler(signal.SIGUSR1, _begin_window, tenants.values())
            attacking = [asyncio.create_task(ATTACKS[name](tenant)) for name, tenant in tenants.items()]
            ending = asyncio.create_task(ended.wait())
            hits.send(dict.fromkeys(names, 0))
            while not ending.done():
                await asyncio.wait([ending, *attacking], return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in attacking if task.done()]:
                    attacking.remove(task)
                    task.result()  # an attack that failed ends them all
            hits.send({name: tenant.hits for name, tenant in tenants.items()})
            os._exit(0)

    asyncio.run(run())


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _begin_window(tenants: Iterable["Hostile"]) -> None:
    for tenant in tenants:
        tenant.begin_window()


class Hostile:
    """The tenant as the client of one attack: it may create pods, budgets and claims in its namespace, edit its policies,
    and reach the ports. `hits`: its requests that were accepted."""

    numbers = itertools.count()

    def __init__(self, world_: World, operator: World, target: Target) -> None:
        self.hits = 0
        self.port = target.port
        self.scheduler = target.scheduler
        self.own = target.own
        self._world = world_
        self._operator = operator
        self._pace = Pace(target.rates)

    def begin_window(self) -> None:
        """The burst is over, and hits count."""
        self.hits = 0
        self._pace.end_burst()

    async def create(self, kind: str, body: Json) -> None:
        await self.send("POST", f"{KINDS[kind]}/namespaces/{NAMESPACE}/{kind}", body)

    async def send(
        self,
        method: str,
        path: str,
        body: Json,
        *,
        content: str = "application/json",
        as_operator: bool = False,
    ) -> None:
        """What the API server refuses is the tenant's own problem. `as_operator`: what a kubelet or an administrator does in
        its namespace."""
        sender, data = self._operator if as_operator else self._world, orjson.dumps(body)
        await self._pace.wait(len(data))
        request = sender.session.request(
            method, f"{sender.url}{path}", data=data, headers={"Content-Type": content}
        )
        # The API server closes the connection of a large request that it has no seat for.
        with contextlib.suppress(aiohttp.ClientError):
            async with request as answer:
                await answer.read()
                self.hits += answer.status < 300

    async def create_pod(
        self,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        *,
        scheduler: str | None = None,
        **spec: Any,
    ) -> str:
        name = f"hostile-{next(self.numbers):06}"
        made = pod(
            name, **{"cpu": "10m", "memory": "8Mi", "schedulerName": scheduler or self.scheduler, **spec}
        )
        made["metadata"] |= {"labels": dict(labels or {}), "annotations": dict(annotations or {})}
        await self.create("pods", made)
        return name

    async def patch_pod(self, name: str, body: Json) -> None:
        await self.send("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", body, content=MERGE_PATCH)

    async def put_policy(self, key: str, text: str) -> None:
        """Into the ConfigMap of the team, which is created if need be."""
        path = f"{KINDS['configmaps']}/namespaces/{NAMESPACE}/configmaps/policysched-policies"
        meta = {"name": "policysched-policies"}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {f"{key}.policy": text}}
        await self.send("PATCH", f"{path}?fieldManager={key}", body, content="application/apply-patch+yaml")

    async def delete(self, kind: str, name: str) -> None:
        path = f"{KINDS[kind]}/namespaces/{NAMESPACE}/{kind}/{name}"
        await self.send("DELETE", path, {"gracePeriodSeconds": 0})

    async def keep_creating(
        self, count: int, create: Callable[[int], Awaitable[str]], *, kind: str = "pods"
    ) -> None:
        """For ever; beyond `count` the oldest one is deleted before the next one is created."""
        names: deque[str] = deque()
        for number in itertools.count():
            if len(names) == count:
                await self.delete(kind, names.popleft())
            names.append(await create(number))


async def clean_up(world_: World) -> None:
    """Delete what attacks left."""
    paths = [f"{group}/namespaces/{NAMESPACE}/{kind}?gracePeriodSeconds=0" for kind, group in KINDS.items()]
    for path in (*paths, f"{WEBHOOKS}/hostile"):
        async with world_.session.delete(f"{world_.url}{path}", json={"gracePeriodSeconds": 0}) as answer:
            await answer.read()


Attack = Callable[[Hostile], Awaitable[None]]


async def large_pods_on_nodes(hostile: Hostile) -> None:
    """Ten pods of 608 KiB with 5,000 anti-affinity terms, on nodes that their creator names."""
    spec = HOSTILE_SPECS["anti-affinity on its own topology keys"](5_000)

    async def create(number: int) -> str:
        return await hostile.create_pod(nodeName=f"node-{number % 10:05}", scheduler="nobody", **spec)

    await hostile.keep_creating(10, create)


async def pods_over_the_budget(hostile: Hostile) -> None:
    """Of each kind that is expensive to decide about, one as large as the API server takes."""
    sized = ((spec_of(5_000), spec_of(2_500)) for spec_of in HOSTILE_SPECS.values())
    specs = [large if len(orjson.dumps(large)) < SIZE_MAX else smaller for large, smaller in sized]
    for spec in specs:
        for container in spec.get(
            "containers", ()
        ):  # the API server wants limits for other resources than its own
            if "resources" in container:
                container["resources"]["limits"] = container["resources"]["requests"]

    async def create(number: int) -> str:
        return await hostile.create_pod(**specs[number % len(specs)])

    await hostile.keep_creating(len(specs), create)


async def pods_below_the_budget(hostile: Hostile) -> None:
    """A hundred pods that fit nowhere, no two equal, each with 500 affinity terms that a bind of anybody could satisfy."""

    async def create(number: int) -> str:
        terms = [
            {
                "labelSelector": {"matchLabels": {"app": f"none-{number}-{term}"}},
                "namespaceSelector": {},
                "topologyKey": "kubernetes.io/hostname",
            }
            for term in range(500)
        ]
        return await hostile.create_pod(affinity={"podAffinity": {REQUIRED: terms}})

    await hostile.keep_creating(100, create)


async def pods_that_fit_nowhere(hostile: Hostile) -> None:
    """Up to a thousand pods, no two equal."""
    await hostile.keep_creating(1_000, lambda number: hostile.create_pod(cpu=f"{100_000 + number}m"))


async def binds_that_fail(hostile: Hostile) -> None:
    """A webhook of the namespace that nothing answers, and 60 pods."""
    guard = {
        "name": "guard.example.com",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
        "clientConfig": {"url": f"https://{HOST}:9/"},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods/binding"],
            }
        ],
    }
    configuration = {"metadata": {"name": "hostile"}, "webhooks": [guard]}
    await hostile.send("POST", WEBHOOKS, configuration, as_operator=True)
    await hostile.keep_creating(60, lambda _: hostile.create_pod())


async def rejected_by_kubelets(hostile: Hostile) -> None:
    """Pods of a Windows image, each rejected by its kubelet: the tenant's controller makes another one."""
    while True:
        name = await hostile.create_pod(cpu="7900m")
        await asyncio.sleep(0.5)
        status = {
            "phase": "Failed",
            "reason": "OutOfcpu",
            "message": "Pod was rejected: Node didn't have enough resource",
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status"
        await hostile.send("PATCH", path, {"status": status}, content=MERGE_PATCH, as_operator=True)


async def gangs_that_never_complete(hostile: Hostile) -> None:
    """One of 5,000 that has at most 500 members, and up to 500 of two that have one."""

    async def create(number: int) -> str:
        if number % 2:
            return await hostile.create_pod({GANG: f"small-{number}", MEMBERS: "2"})
        return await hostile.create_pod({GANG: "large", MEMBERS: "5000"})

    await hostile.keep_creating(1_000, create)


async def labels_that_change(hostile: Hostile) -> None:
    """Twenty pods on nodes and twenty that wait change their labels all the time."""
    waiting = [await hostile.create_pod(cpu="100") for _ in range(20)]
    placed = [await hostile.create_pod(nodeName="node-00000", scheduler="nobody") for _ in range(20)]
    for number in itertools.count():
        for name in (waiting[number % 20], placed[number % 20]):
            await hostile.patch_pod(name, {"metadata": {"labels": {"app": f"v{number}"}}})


async def long_annotations(hostile: Hostile) -> None:
    """Annotations of 60 to 200 KiB, new ones all the time."""
    name = await hostile.create_pod(cpu="100")
    for number in itertools.count():
        await hostile.patch_pod(name, {"metadata": {"annotations": {"example.com/x": f"{number}é" * 20_000}}})


async def many_budgets(hostile: Hostile) -> None:
    """Up to five hundred PodDisruptionBudgets that select the tenant's pods, and pods that ask for preemption."""
    selector = {
        "matchExpressions": [{"key": "app", "operator": "NotIn", "values": [f"v{i}" for i in range(20)]}]
    }

    async def create(number: int) -> str:
        name = f"budget-{number}"
        body = {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": selector}}
        await hostile.create("poddisruptionbudgets", body)
        return name

    await hostile.keep_creating(500, create, kind="poddisruptionbudgets")


async def claims_with_expensive_selectors(hostile: Hostile) -> None:
    """Claims whose CEL takes milliseconds for each device."""
    expression = "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, a + b + c > 0))) && false"

    async def create(number: int) -> str:
        if number >= 20:
            await hostile.delete("resourceclaims", f"claim-{number - 20}")
        request = {
            "name": "all",
            "exactly": {
                "deviceClassName": "hostile",
                "selectors": [{"cel": {"expression": f"{expression} && {number} == {number}"}}],
            },
        }
        body = {"metadata": {"name": f"claim-{number}"}, "spec": {"devices": {"requests": [request]}}}
        await hostile.create("resourceclaims", body)
        claims = [{"name": "all", "resourceClaimName": f"claim-{number}"}]
        return await hostile.create_pod(resourceClaims=claims)

    await hostile.keep_creating(20, create)


async def churn(hostile: Hostile) -> None:
    """Pods that are deleted as soon as they are created."""
    while True:
        await hostile.delete("pods", await hostile.create_pod())


async def expensive_policy(hostile: Hostile) -> None:
    """A policy of the team's own as expensive as it may be, with a backlog of pods that it places nowhere."""
    scores = "".join(
        f"score s{number} weight 1 higher count(pods where other.namespace == pod.namespace"
        f' and other.labels["app"] == "v{number}") + node.pods * {number} normalize max\n'
        for number in range(45)
    )
    text = f'policy {hostile.own} version 1\ninclude "base.policy"\n{scores}'
    await hostile.put_policy("own", text)

    async def create_pod(number: int) -> str:
        return await hostile.create_pod({"app": f"v{number % 1_000}"}, scheduler=hostile.own)

    await hostile.keep_creating(1_000, create_pod)


async def edits_of_a_policy(hostile: Hostile) -> None:
    """The team's policy, broken and mended all the time."""
    for number in itertools.count():
        broken = f"filter x require node.naem == {number}\n" if number % 2 else ""
        text = f'policy {hostile.own}-edited version 1\ninclude "base.policy"\n# {number}\n{broken}'
        await hostile.put_policy("edited", text)


async def readers(hostile: Hostile) -> None:
    """Fifty clients that read /decisions and /metrics all the time, and fifty that send half a request."""

    async def read(session: aiohttp.ClientSession, path: str) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"http://{HOST}:{hostile.port}{path}") as answer:
                    await answer.read()
                    hostile.hits += answer.status < 300
            await asyncio.sleep(0.01)

    async def half() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, hostile.port)
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: ")
                await asyncio.sleep(5)
                writer.close()
            await asyncio.sleep(0.1)

    paths = ("/decisions", "/metrics", "/policy", "/pending")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = (read(session, paths[number % len(paths)]) for number in range(50))
        await asyncio.gather(*clients, *(half() for _ in range(50)))


ATTACKS: Mapping[str, Attack] = {
    attack.__name__: attack
    for attack in (
        large_pods_on_nodes,
        pods_over_the_budget,
        pods_below_the_budget,
        pods_that_fit_nowhere,
        binds_that_fail,
        rejected_by_kubelets,
        gangs_that_never_complete,
        labels_that_change,
        long_annotations,
        many_budgets,
        claims_with_expensive_selectors,
        churn,
        expensive_policy,
        edits_of_a_policy,
        readers,
    )
}
