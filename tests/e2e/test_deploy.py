"""The shipped manifests apply, and their RBAC grants exactly what the program uses."""

import asyncio
import json
import re
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from policysched.config.settings import read_settings
from policysched.daemon import metric_families
from policysched.daemon.app import Runtime
from policysched.data_files import data_file
from policysched.kube.client.api import ApiClient
from policysched.kube.client.transport import ApiRequest, ApiResponse, ApiStream, Transport
from policysched.kube.decode.devices import EXTENDED_RESOURCE_CLAIM_ANNOTATION
from policysched.kube.leader_election import LeaderElector
from policysched.kube.write.report_content import EventContent
from policysched.model.pod_groups import GROUP_ANNOTATION, GROUP_LABEL
from policysched.runtime import telemetry
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.sandbox.apiserver.kinds import POD_GROUP_KINDS
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.volumes import claim, local_volume, storage_class, using
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.devices import claim_spec, claiming, class_manifest, gpu, new, slice_manifest
from tests.e2e.deployed import Deployed
from tests.e2e.permissions import granted as rules_of
from tests.e2e.permissions import wait_until_allowed
from tests.e2e.program import BIN, kubectl
from tests.e2e.sandbox import Cluster
from tests.inline import EventLoopLeaderElection, check_inline
from tests.kube.test_bind import bind
from tests.kube.test_events_and_conditions import failed
from tests.kube.world import World, on_virtual_time, running, until

DEPLOY = Path(__file__).parents[2] / "deploy"
Use = tuple[str, str, str, str]  # verb, group, resource with subresource, name or ""


def manifests() -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(BIN / "kubectl"), "kustomize", str(DEPLOY)], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(done.stdout))


def granted() -> set[Use]:
    """Every permission of the shipped roles; the name is empty for rules without resourceNames."""
    uses: set[Use] = set()
    for role in manifests():
        for rule in role.get("rules", []) if role["kind"] in ("Role", "ClusterRole") else []:
            uses |= {
                (verb, group, resource, name)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
                for name in rule.get("resourceNames", [""])
            }
    return uses


class Recorder:
    """A transport that records the permission that each request needs."""

    def __init__(self, transport: Transport, before: Callable[[ApiRequest], None] = lambda _: None) -> None:
        self._transport = transport
        self._before = before
        self.used: set[Use] = set()

    async def request(self, request: ApiRequest) -> ApiResponse:
        self._note(request)
        self._before(request)
        return await self._transport.request(request)

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[ApiStream]:
        self._note(request)
        async with self._transport.stream(request) as stream:
            yield stream

    def _note(self, request: ApiRequest) -> None:
        path = re.fullmatch(
            r"/(?:api|apis/(?P<group>[^/]+))/v1[a-z0-9]*(?:/namespaces/[^/]+(?=/))?/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?P<sub>/[a-z]+)?",
            request.path,
        )
        assert path is not None, f"unknown path: {request.path}"
        name = path["name"] or ""
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(
            request.method, "get" if name else "list"
        )
        if "watch" in request.params:
            verb = "watch"
        selector = request.params.get("fieldSelector", "")
        if selector.startswith("metadata.name="):
            name = selector.removeprefix("metadata.name=")
        kind = path["kind"] + (path["sub"] or "")
        by_name = path["kind"] in ("configmaps", "leases")
        self.used.add((verb, path["group"] or "", kind, name if by_name else ""))


def test_rbac_grants_what_a_run_uses_and_nothing_else() -> None:
    used: set[Use] = set()

    async def scenario() -> None:
        world = World(extra_kinds=POD_GROUP_KINDS)
        transports = [
            Recorder(world.transport(), somebody_else_writes_first(world)),
            Recorder(world.transport()),
        ]
        app = shipped(world, *transports)
        create_what_the_program_is_given(world)
        world.add_node("a")
        world.add_pod("web", scheduler="kube-default", cpu="1")
        world.add_pod(
            "stateful", scheduler="kube-default", cpu="1m", spec={"volumes": using("found", "missing")}
        )
        for plural, space, obj in (*stored(), *offered()):
            world.local.create(plural, space, obj)
        world.add_pod("accelerated", scheduler="kube-default", cpu="1m", spec=claiming("devices"))
        refused = world.add_pod("huge", scheduler="kube-default", cpu="1000")
        world.local.create("pods", "default", somebody_elses())
        world.local.create("priorityclasses", "", {"metadata": {"name": "urgent"}, "value": 1000})
        world.local.create(
            "poddisruptionbudgets", "default", {"metadata": {"name": "web"}, "spec": {"minAvailable": 1}}
        )

        async with running(app.run()):
            await until(lambda: world.node_of("web"), "the first pod to be bound")
            await until(lambda: promised(world), "volumes to be promised and asked for")
            await until(lambda: world.node_of("accelerated"), "a pod with devices to be bound")
            stands_for_a_resource(world)
            await until(lambda: world.node_of("card"), "a pod with an extended resource to be bound")
            in_groups(world)
            await until(lambda: len(group_statuses(world)) == 3, "the status of a group of each API")
            elsewhere(world, app)
            await until(lambda: app.binder.counts.lost == 1, "a bind that comes too late")
            urgent = {"priorityClassName": "urgent"}
            world.add_pod("urgent", scheduler="kube-default", cpu="4", priority=1000, spec=urgent)
            await until(lambda: app.evictor.counts.evicted, "the first pod to make room")
            world.local.update(
                "nodes", {"metadata": {"name": "a"}}, lambda node: {**node, "spec": {"unschedulable": True}}
            )
            await asyncio.sleep(300)
            for _ in range(2):
                app.reporter.record_event(pending_words(refused))
                await asyncio.sleep(150)
            app.request_stop()
            await asyncio.sleep(30)
        used.update(*(transport.used for transport in transports))

    on_virtual_time(scenario)

    assert used == granted() - {NO_REQUEST} - OF_THE_HTTP_SERVER


NO_REQUEST = ("patch", "resource.k8s.io", "resourceclaims/binding", "")
"""What the API server additionally authorizes for a write to a claim's status."""

OF_THE_HTTP_SERVER = {
    ("get", "", "configmaps", "extension-apiserver-authentication"),
    ("create", "authentication.k8s.io", "tokenreviews", ""),
    ("create", "authorization.k8s.io", "subjectaccessreviews", ""),
}
"""This run serves no port; `test_permissions` checks these on a real API server."""


def offered() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        ("deviceclasses", "", class_manifest()),
        ("resourceslices", "", new(slice_manifest("a", gpu("g0")))),
        ("resourceclaims", "default", {"metadata": {"name": "devices"}, "spec": claim_spec()}),
    ]


def stands_for_a_resource(world: World) -> None:
    """A pod that requests an extended resource while a claim of an earlier attempt still exists."""
    named = {"metadata": {"name": "card"}, "spec": {"extendedResourceName": "example.com/card"}}
    world.local.create("deviceclasses", "", named)
    cards = new(slice_manifest("a", gpu("card"), pool="cards", name="cards"))
    world.local.create("resourceslices", "", cards)
    asking = {"example.com/card": "1"}
    pod = world.add_pod(
        "card", scheduler="kube-default", cpu="1m", resources=asking, limits=asking, gates=["hold"]
    )
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "card",
        "uid": pod["metadata"]["uid"],
        "controller": True,
    }
    meta = {
        "name": "left",
        "annotations": {EXTENDED_RESOURCE_CLAIM_ANNOTATION: "true"},
        "ownerReferences": [owner],
    }
    request = {"name": "r", "exactly": {"deviceClassName": "card", "count": 1}}
    world.local.create(
        "resourceclaims", "default", {"metadata": meta, "spec": {"devices": {"requests": [request]}}}
    )
    world.local.update("pods", pod, lambda obj: {**obj, "spec": {**obj["spec"], "schedulingGates": []}})


def somebody_else_writes_first(world: World) -> Callable[[ApiRequest], None]:
    """Conflict once, when the device claim is written, so that policysched has to read it."""
    left = [True]

    def before(request: ApiRequest) -> None:
        if left and request.method == "PATCH" and "/resourceclaims/" in request.path:
            left.clear()
            claim = {"metadata": {"namespace": "default", "name": "devices"}}
            world.local.update("resourceclaims", claim, annotated)

    return before


def annotated(claim: dict[str, Any]) -> dict[str, Any]:
    claim["metadata"]["annotations"] = {"seen": "by somebody"}
    return claim


def stored() -> list[tuple[str, str, dict[str, Any]]]:
    """One claim is bound to an existing volume, and another waits for provisioning, which nothing
    does here.
    """
    volume = {**local_volume("v", node="a"), "status": {"phase": "Available"}}
    return [
        ("storageclasses", "", storage_class("local")),
        ("storageclasses", "", storage_class("made", "example.com/maker")),
        ("persistentvolumes", "", volume),
        ("persistentvolumeclaims", "default", claim("found")),
        ("persistentvolumeclaims", "default", claim("missing", "made")),
    ]


def promised(world: World) -> bool:
    annotation = "volume.kubernetes.io/selected-node"
    return any(
        "claimRef" in persistentvolume["spec"] for persistentvolume in world.local.list("persistentvolumes")
    ) and any(
        annotation in persistentvolumeclaim["metadata"].get("annotations", {})
        for persistentvolumeclaim in world.local.list("persistentvolumeclaims")
    )


def shipped(world: World, transport: Transport, lease_transport: Transport) -> SchedulerApp:
    settings = read_settings(DEPLOY / "settings.yaml", {}, {})
    assert settings.lease is not None
    elector = LeaderElector(
        ApiClient(lease_transport),
        settings.lease,
        identity="one",
        monotonic_s=world.loop.time,
        now_ns=world.now_ns,
        random=Random(1),
    )
    return SchedulerApp(
        settings,
        Runtime(
            transport=transport,
            check_texts=check_inline,
            now_ns=world.now_ns,
            monotonic_s=world.loop.time,
            random=Random,
            identity="one",
        ),
        EventLoopLeaderElection(elector),
    )


def create_what_the_program_is_given(world: World) -> None:
    world.local.create("namespaces", "", {"metadata": {"name": "policysched"}})
    for manifest in manifests():
        plural = {"ConfigMap": "configmaps", "Lease": "leases"}.get(manifest["kind"])
        if plural is not None:
            world.local.create(plural, "policysched", manifest)
    config = yaml.safe_load((DEPLOY / "example-policies.yaml").read_text())
    with_groups = {"pod-groups.policy": data_file("policies", "pod-groups.policy").read_text()}
    world.local.create("configmaps", "policysched", {**config, "data": {**config["data"], **with_groups}})


def in_groups(world: World) -> None:
    """A pod in a group of each API."""
    for kind in POD_GROUP_KINDS:
        if kind.name == "PodGroup":
            spec = {"minMember": 1, "schedulingPolicy": {"gang": {"minCount": 1}}}
            name = kind.group.partition(".")[2].replace(".", "-")
            group = {"metadata": {"name": name}, "spec": spec}
            world.server.registry.create(kind, "default", group)
            more: dict[str, dict[str, Any]] = {
                "scheduling.k8s.io": {"spec": {"schedulingGroup": {"podGroupName": name}}},
                "scheduling.x-k8s.io": {"labels": {GROUP_LABEL: name}},
                "scheduling.volcano.sh": {"annotations": {GROUP_ANNOTATION: name}},
            }
            world.add_pod(f"of-{name}", scheduler="pod-groups", cpu="1m", **more[kind.group])


def group_statuses(world: World) -> list[Any]:
    """The status of each group that has one."""
    stored = [world.server.store.collection(kind.stored_as) for kind in POD_GROUP_KINDS]
    objects = [entry.obj for entries in stored for entry in entries.in_namespace("default")]
    return [obj["status"] for obj in objects if obj.get("status")]


def somebody_elses() -> dict[str, Any]:
    return {
        "metadata": {"name": "other"},
        "spec": {"schedulerName": "x", "containers": [{"name": "c", "image": "i"}]},
    }


def elsewhere(world: World, app: SchedulerApp) -> None:
    """Bind a pod that another scheduler has bound meanwhile."""
    pod = world.add_pod("taken", scheduler="kube-default", gates=["hold"])
    world.local.update("pods", pod, lambda obj: {**obj, "spec": {**obj["spec"], "schedulingGates": []}})
    world.local.delete("pods", pod, grace_period_s=0)
    app.binder.put(bind(pod))


def pending_words(pod: dict[str, Any]) -> EventContent:
    return failed(pod, "said twice")


def test_the_deployed_policy_equals_the_shipped_one() -> None:
    config = yaml.safe_load((DEPLOY / "example-policies.yaml").read_text())

    assert config["data"] == {"kube-default.policy": data_file("policies", "kube-default.policy").read_text()}


def test_the_alerts_use_metrics_that_exist() -> None:
    rules = yaml.safe_load((DEPLOY / "alerts" / "policysched.rules.yaml").read_text())["groups"][0]["rules"]
    sources = [Path(str(module.__file__)).read_text() for module in (telemetry, metric_families)]
    known = set(re.findall(r'"((?:policysched|scheduler)_[a-z_]+)"', "".join(sources)))

    assert rules
    for rule in rules:
        named = set(re.findall(r"(?:policysched|scheduler)_[a-z_]+", rule["expr"]))
        assert named and named <= known, rule["alert"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    made.start()
    yield made
    made.stop()


def test_the_manifests_apply_twice_to_the_sandbox(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-k", str(DEPLOY), "--dry-run=client")
    cluster.kubectl("apply", "-k", str(DEPLOY))
    cluster.kubectl("create", "-f", str(DEPLOY / "example-policies.yaml"))
    kept = '{"data":{"kube-default.policy":"kept"}}'
    cluster.kubectl(
        "patch", "configmap", "policies-last-good", "-n", "policysched", "--type=merge", "-p", kept
    )

    again = cluster.kubectl("apply", "-k", str(DEPLOY))

    # kubectl sends the selector of a PodDisruptionBudget each time (its patch strategy is `replace`).
    changed = [line for line in again.splitlines() if not line.endswith("unchanged")]
    assert changed == ["poddisruptionbudget.policy/policysched configured"]
    path = "/api/v1/namespaces/policysched/configmaps/policies-last-good"
    assert cluster.get(path)["data"] == {"kube-default.policy": "kept"}


def test_requests_of_the_scheduler_have_the_priority_levels_of_kube_scheduler_s(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Not the one that the ServiceAccounts of all tenants share."""
    Deployed(control_plane, tmp_path)
    token = control_plane.service_account_token("policysched", "policysched")
    levels = control_plane.api.items("/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations")
    name_of = {level["metadata"]["uid"]: level["metadata"]["name"] for level in levels}

    def level_of(path: str) -> str:
        request = Request(f"{control_plane.url}{path}", headers={"Authorization": f"Bearer {token}"})
        tls = ssl.create_default_context(cafile=str(control_plane.authority_path))
        with urlopen(request, context=tls) as answer:
            return name_of[answer.headers["X-Kubernetes-PF-PriorityLevel-UID"]]

    lease = "/apis/coordination.k8s.io/v1/namespaces/policysched/leases/policysched"
    wait_for(lambda: level_of("/api/v1/pods") == "workload-high", "the FlowSchemas to be in force")
    assert level_of(lease) == "leader-election"


def test_the_shipped_service_account_suffices_to_bind_report_and_reload(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """On a real API server with RBAC: only the ServiceAccount, roles and objects of deploy/."""
    items = [manifest for manifest in manifests() if manifest["kind"] != "Deployment"]
    items.append(yaml.safe_load((DEPLOY / "example-policies.yaml").read_text()))
    admin = Admin(control_plane)
    admin.kubectl("apply", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    control_plane.create_namespace("team")
    control_plane.add_node(ready_node("a"))
    settings = tmp_path / "settings.yaml"
    settings.write_text((DEPLOY / "settings.yaml").read_text().replace("http: :10259\n", ""))
    kubeconfig = control_plane.service_account_kubeconfig("policysched", "policysched")
    wait_until_allowed(control_plane.api, "policysched:policysched", rules_of(items))
    try:
        with admin.run("--kubeconfig", str(kubeconfig), "--config", str(settings)) as log:
            admin.run_pod("web", cpu="100m")
            admin.run_pod("huge", cpu="100")
            wait_for(lambda: admin.node_of("web") == "a", "the pod to be bound")
            wait_for(lambda: admin.event_messages("web", "Scheduled"), "the event")
            (reason,) = wait_for(lambda: admin.event_messages("huge", "FailedScheduling"), "the reason")
            assert reason == (
                "0/1 nodes are available: 1 Insufficient cpu. preemption: "
                "0/1 nodes are available: 1 Preemption is not helpful for scheduling."
            )

            closed = 'policy kube-default version 1\ninclude kube_default\npreemption never\nfilter shut reject node.name != "" says "closed"\n'
            admin.put_policy(closed)
            wait_for(lambda: "filter shut" in admin.last_good(), "the edit to be kept")
            admin.run_pod("late", cpu="100m")
            (reason,) = wait_for(
                lambda: admin.event_messages("late", "FailedScheduling"), "the edit to decide"
            )
            assert reason == "0/1 nodes are available: 1 closed."

            admin.put_policy(closed.replace("node.name", "node.naem"))
            wait_for(lambda: admin.event_messages("policies", "PolicyRejected"), "the refusal")
            admin.put_policy("policy kube-default version 1\ninclude kube_default\n")
            wait_for(lambda: admin.node_of("late") == "a", "the pod to be woken")
        assert "forbidden" not in log.read_text(), log.read_text()
    finally:
        kinds = ("clusterrole", "clusterrolebinding", "priorityclass")
        for kind in kinds:
            admin.kubectl("delete", kind, "policysched", "--ignore-not-found")


class Admin:
    """The owner of the cluster, with kubectl."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return kubectl(self._control_plane.kubeconfig_path, *arguments, stdin=stdin)

    def run_pod(self, name: str, *, cpu: str) -> None:
        container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
        spec = {
            "schedulerName": "kube-default",
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self._control_plane.api.post("/api/v1/namespaces/team/pods", body)

    def node_of(self, name: str) -> str | None:
        node: str | None = self._control_plane.api.get(f"/api/v1/namespaces/team/pods/{name}")["spec"].get(
            "nodeName"
        )
        return node

    def event_messages(self, name: str, reason: str) -> list[str]:
        events = self._control_plane.api.items("/api/v1/events")
        return [
            event["message"]
            for event in events
            if event["involvedObject"]["name"] == name and event["reason"] == reason
        ]

    def put_policy(self, text: str) -> None:
        change = {"data": {"kube-default.policy": text}}
        self._control_plane.api.patch("/api/v1/namespaces/policysched/configmaps/policies", change)

    def last_good(self) -> str:
        path = "/api/v1/namespaces/policysched/configmaps/policies-last-good"
        return json.dumps(self._control_plane.api.get(path).get("data", {}))

    def run(self, *flags: str) -> Any:
        return program(self._control_plane.folder / "policysched.log", *flags)


@contextmanager
def program(log: Path, *flags: str) -> Iterator[Path]:
    """Run `policysched run`; it must exit with 0 after SIGTERM."""
    with log.open("w") as file:
        process = subprocess.Popen([str(BIN / "policysched"), "run", *flags], stderr=file)
    try:
        yield log
        process.terminate()
        assert process.wait(timeout=PATIENCE_S) == 0, log.read_text()
    except BaseException:
        print(log.read_text())
        raise
    finally:
        process.kill()
        process.wait()
