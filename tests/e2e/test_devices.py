"""Device claims on a real control plane: kube-scheduler and policysched allocate the same devices
and give the same reasons.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.controlplane.api import ApiError
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import wait_for
from tests.devices import (
    DRIVER,
    FINALIZER,
    Json,
    ask,
    asking,
    claim_spec,
    claiming,
    class_manifest,
    given,
    gpu,
    new,
    slice_manifest,
)
from tests.e2e.deployed import PLAIN, PODS, Deployed

GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
OURS = f'device.attributes["{DRIVER}"]'
ROOM = f'device.capacity["{DRIVER}"]'
CLAIM_CONTROLLER = "--controllers=resourceclaim-controller"


# ── the same cluster for both ──────────────────────────────────────────────────────────────────────────────────────


def slices() -> list[Json]:
    models = [
        gpu(
            f"g{place}",
            attributes={
                "model": model,
                "rack": rack,
                "index": place,
                "driverVersion": {"version": f"1.{place}.0"},
                **({"fast": True} if place == 2 else {}),
            },
            capacity={"memory": memory},
            **({"taints": [{"key": "hot", "value": "yes", "effect": "NoSchedule"}]} if place == 3 else {}),
        )
        for place, (model, rack, memory) in enumerate(
            [("a", "x", "40Gi"), ("b", "y", "80Gi"), ("b", "x", "80Gi"), ("a", "y", "40Gi")]
        )
    ]
    parts = [
        gpu(name, consumesCounters=[{"counterSet": "card", "counters": {"memory": {"value": memory}}}])
        for name, memory in (("whole", "40Gi"), ("half-0", "20Gi"), ("half-1", "20Gi"))
    ]
    counters = [{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi", "max": "6Gi"}}
    shared = gpu(
        "shared",
        allowMultipleAllocations=True,
        capacity={"memory": {"value": "8Gi", "requestPolicy": policy}},
    )
    zone = {"key": "rack", "operator": "In", "values": ["r1"]}
    near = {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
    return [
        slice_manifest("a", *models),
        slice_manifest("b", models[0], models[1], name="b-1", slices=2),
        slice_manifest("b", models[2], name="b-0", slices=2),
        slice_manifest("c", models[0], name="c-incomplete", slices=2),
        slice_manifest("a", *parts, name="a-parts", driver="part.example.com", pool="parts", slices=2),
        slice_manifest(
            "a", name="a-counters", driver="part.example.com", pool="parts", slices=2, sharedCounters=counters
        ),
        slice_manifest("b", shared, name="b-shared", driver="share.example.com", pool="b-shared"),
        slice_manifest(None, gpu("n0"), gpu("n1"), driver="net.example.com", pool="near", **near),
        slice_manifest(None, gpu("everywhere"), driver="all.example.com", pool="all", allNodes=True),
    ]


CLASSES = [
    class_manifest(
        "gpu", f'device.driver == "{DRIVER}"', config=[{"opaque": {"driver": DRIVER, "parameters": {"a": 1}}}]
    ),
    class_manifest("part", 'device.driver == "part.example.com"'),
    class_manifest("share", 'device.driver == "share.example.com"'),
    class_manifest("net", 'device.driver == "net.example.com"'),
    class_manifest("any"),
    class_manifest("odd", f"{OURS}.nothing"),
]

BIG = f'{ROOM}.memory.compareTo(quantity("80Gi")) >= 0'
SAME_RACK = {"constraints": [{"matchAttribute": f"{DRIVER}/rack"}]}
OWN_MODEL = {"constraints": [{"distinctAttribute": f"{DRIVER}/model", "requests": ["x", "y"]}]}
ALTERNATIVES = {
    "name": "r",
    "firstAvailable": [
        {"name": "three", **ask(BIG, count=3)},
        {"name": "two", **ask(BIG, count=2)},
        {"name": "one", **ask()},
    ],
}
OPAQUE = {"opaque": {"driver": "other.example.com", "parameters": {}}}

SPECS: dict[str, Json] = {
    "one": claim_spec(),
    "three": claim_spec(asking(count=3)),
    "five": claim_spec(asking(count=5)),
    "big": claim_spec(asking("r", BIG)),
    "fast": claim_spec(asking("r", f"has({OURS}.fast) && {OURS}.fast")),
    "fails": claim_spec(asking("r", f"{OURS}.fast")),
    "unknown-domain": claim_spec(asking("r", 'device.attributes["other.example.com"].x == 1')),
    "version": claim_spec(asking("r", f'{OURS}.driverVersion.isGreaterThan(semver("1.0.5"))')),
    "bind": claim_spec(asking("r", f'cel.bind(d, {OURS}, d.model == "b" && d.rack == "x")')),
    "all": claim_spec(asking(allocationMode="All")),
    "all-tolerant": claim_spec(
        asking(allocationMode="All", tolerations=[{"key": "hot", "operator": "Exists"}])
    ),
    "tolerant": claim_spec(
        asking("r", f"{OURS}.index == 3", tolerations=[{"key": "hot", "operator": "Equal", "value": "yes"}])
    ),
    "same-rack": claim_spec(asking(count=2), **SAME_RACK),
    "same-rack-three": claim_spec(asking(count=3), **SAME_RACK),
    "own-model": claim_spec(asking("x"), asking("y"), **OWN_MODEL),
    "backtracking": claim_spec(asking("any"), asking("best", f'{OURS}.model == "a"')),
    "alternatives": claim_spec(ALTERNATIVES),
    "configured": claim_spec(asking("x"), asking("y"), config=[{"requests": ["y"], **OPAQUE}, OPAQUE]),
    "part": claim_spec(asking(of_class="part")),
    "two-parts": claim_spec(asking(of_class="part", count=2)),
    "three-parts": claim_spec(asking(of_class="part", count=3)),
    "share": claim_spec(asking(of_class="share", capacity={"requests": {"memory": "2500Mi"}})),
    "share-default": claim_spec(asking(of_class="share")),
    "share-too-much": claim_spec(asking(of_class="share", capacity={"requests": {"memory": "7Gi"}})),
    "near": claim_spec(asking(of_class="net", count=2)),
    "everywhere": claim_spec(asking("r", 'device.driver == "all.example.com"', of_class="any")),
    "first-of-all": claim_spec(asking(of_class="any", count=2)),
    "odd-class": claim_spec(asking(of_class="odd")),
    "no-class": claim_spec(asking(of_class="none")),
    "too-many": claim_spec(asking("x", count=20), asking("y", count=13)),
}


def put_world(control_plane: ControlPlane) -> None:
    for name in ("a", "b", "c"):
        control_plane.add_node(ready_node(name, labels={"rack": "r2" if name == "c" else "r1"}))
    for class_ in CLASSES:
        control_plane.api.post(f"{GROUP}/deviceclasses", new(class_))
    for slice_ in slices():
        control_plane.api.post(f"{GROUP}/resourceslices", new(slice_))


NOT_SEEN_YET = "could not find ResourceClaim"
"""Reported while the pod is known and its claim is not: pods and claims arrive by separate watches.
kube-scheduler's PreEnqueue reports nothing in that time.
"""


def outcome(control_plane: ControlPlane, scheduler: str, name: str, spec: Json, node: str | None) -> Any:
    """Create one pod with one such claim that only this node may take, return the outcome, and
    delete both.
    """
    api = control_plane.api
    api.post(CLAIMS, {"metadata": {"name": name}, "spec": spec})
    manifest = pod(
        name,
        schedulerName=scheduler,
        resourceClaims=[{"name": "c", "resourceClaimName": name}],
        **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
    )
    api.post(PODS, manifest)

    def look() -> Any:
        pod = api.get(f"{PODS}/{name}")
        conditions = {
            condition["type"]: condition for condition in pod.get("status", {}).get("conditions", [])
        }
        if pod["spec"].get("nodeName"):
            return pod["spec"]["nodeName"]
        refused = conditions.get("PodScheduled")
        return refused and NOT_SEEN_YET not in refused["message"] and refused["message"]

    decision = wait_for(look, f"{scheduler} to say something of {name}")
    held = api.get(f"{CLAIMS}/{name}")
    api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    api.patch(f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}})
    api.delete(f"{CLAIMS}/{name}")
    wait_for(lambda: gone(control_plane, f"{CLAIMS}/{name}"), f"{name} to be gone")
    return plain(decision, held, node)


NEW_WORDS = (
    r" on device \S+(?=: CEL)|\. consider using CEL .* for optional fields"
    r"|(, request \w+: adding|: number of requested devices) \d+( devices)?|, with \d+ already accounted for"
)


def as_before_1_37(outcomes: Any) -> Any:
    """The outcomes without what 1.36 has otherwise and docs/builtins.md lists as not told apart: it always names the requests that
    a configuration of a class is for, and two messages have other words: of a selector that fails, which names no device and
    gives no advice, and of a claim for too many devices."""
    match outcomes:
        case {"source": "FromClass", **config}:
            config.pop("requests", None)
            return config
        case dict():
            return {key: as_before_1_37(value) for key, value in outcomes.items()}
        case list() | tuple():
            return [as_before_1_37(value) for value in outcomes]
        case str():
            return re.sub(NEW_WORDS, "", outcomes)
    return outcomes


def gone(control_plane: ControlPlane, path: str) -> bool:
    try:
        control_plane.api.get(path)
    except ApiError as error:
        return error.status == 404
    return False


def plain(decision: str, claim: Json, node: str | None) -> Any:
    """The claim without what differs in each run: times, UIDs and share IDs."""
    status = claim.get("status", {})
    allocation = status.get("allocation")
    if allocation is not None:
        allocation.pop("allocationTimestamp", None)
        for result in allocation["devices"]["results"]:
            if "shareID" in result:
                result["shareID"] = "some"
            for key, amount in result.get("consumedCapacity", {}).items():
                result["consumedCapacity"][key] = bytes_of(amount)
    reserved = [(consumer["resource"], consumer["name"]) for consumer in status.get("reservedFor", [])]
    finalizers = claim["metadata"].get("finalizers", [])
    return decision, allocation, reserved, finalizers


def bytes_of(amount: str) -> int:
    return int(amount.removesuffix("Gi")) * 2**30 if amount.endswith("Gi") else int(amount)


def cases() -> Iterator[tuple[str, Json, str | None]]:
    for name, spec in SPECS.items():
        for node in ("a", "b", "c"):
            yield f"{name}-{node}", spec, node


def test_both_schedulers_allocate_the_same_devices_and_give_the_same_reasons(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    put_world(whole_control_plane)
    deployed = Deployed(whole_control_plane, tmp_path)
    deployed.put_policies(main=deployed.plain_of_release())
    kube = whole_control_plane.start_scheduler()
    upstream = {
        name: outcome(whole_control_plane, "default-scheduler", name, spec, node)
        for name, spec, node in cases()
    }
    kube.stop()

    with deployed.running():
        own = {name: outcome(whole_control_plane, "test", name, spec, node) for name, spec, node in cases()}

    if deployed.kubernetes_minor() < 37:
        upstream, own = as_before_1_37(upstream), as_before_1_37(own)
    differences = {
        name: (upstream[name], own[name]) for name in upstream if not alike(upstream[name], own[name])
    }
    assert not differences, json.dumps(differences)
    assert sum(row[1] is not None for row in upstream.values()) > 30


ERROR = 'running "DynamicResources" filter plugin: '


def alike(upstream: Any, own: Any) -> bool:
    """kube-scheduler gives up at an error on one node. policysched rejects only that node, with the
    same message.
    """
    if upstream[0].startswith(ERROR):
        return upstream[0].removeprefix(ERROR) in own[0] and upstream[1:] == own[1:]
    return bool(upstream == own)


def test_a_claim_with_half_of_a_surrogate_pair_keeps_nobody_waiting(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The API server stores opaque parameters as they are written. One such claim ended each list of claims, and so the start."""
    put_world(whole_control_plane)
    config = [{"opaque": {"driver": DRIVER, "parameters": {"text": "\ud800"}}}]
    whole_control_plane.api.post(CLAIMS, {"metadata": {"name": "hostile"}, "spec": claim_spec(config=config)})
    deployed = Deployed(whole_control_plane, tmp_path)
    deployed.put_policies(main=deployed.plain_of_release())

    with deployed.running():
        decision, *_ = outcome(whole_control_plane, "test", "one-a", SPECS["one"], "a")

    assert decision == "a"


# ── extended resources of device classes ───────────────────────────────────────────────────────────────────────────

CARD, OTHER = "example.com/card", "example.com/other"
OF_CLASS = "deviceclass.resource.kubernetes.io/card"


def container(name: str, **more: Any) -> Json:
    """A container. `asks`: amounts by resource. For extended resources, requests are limits as
    well.
    """
    asks = more.pop("asks", {})
    resources = {"requests": {"cpu": "10m", **asks}, "limits": dict(asks)}
    return {"name": name, "image": "registry.test/app:1", "resources": resources, **more}


def sidecar(name: str, **more: Any) -> Json:
    return container(name, restartPolicy="Always", **more)


RESOURCES: dict[str, Json] = {
    "one": {"containers": [container("a", asks={CARD: "1"})]},
    "two-of-four": {"containers": [container("a", asks={CARD: "2"}), container("b", asks={CARD: "2"})]},
    "five": {"containers": [container("a", asks={CARD: "5"})]},
    "of-the-class": {"containers": [container("a", asks={OF_CLASS: "1"})]},
    "by-both-names": {"containers": [container("a", asks={OF_CLASS: "1", CARD: "1"})]},
    "nobody-s": {"containers": [container("a", asks={OTHER: "1"})]},
    "also-nobody-s": {"containers": [container("a", asks={OTHER: "1", CARD: "1"})]},
    "lent": {
        "initContainers": [container("i", asks={CARD: "1"})],
        "containers": [container("a", asks={CARD: "2"})],
    },
    "more-at-first": {
        "initContainers": [
            container("i", asks={CARD: "3"}),
            sidecar("s", asks={CARD: "1"}),
            container("j", asks={CARD: "2"}),
        ],
        "containers": [container("a", asks={CARD: "1"}), container("b")],
    },
    "with-a-claim": {
        "containers": [container("a", asks={CARD: "1"})],
        "resourceClaims": [{"name": "c", "resourceClaimName": "CLAIM"}],
    },
}


def put_resources(control_plane: ControlPlane) -> None:
    """Node `d` has the extended resource itself."""
    control_plane.api.post(
        f"{GROUP}/deviceclasses",
        new(class_manifest("card", f'device.driver == "{DRIVER}"', extendedResourceName=CARD)),
    )
    own = ready_node("d")
    for room in ("capacity", "allocatable"):
        own["status"][room] = {**own["status"][room], CARD: "2"}
    control_plane.add_node(own)
    control_plane.api.post(f"{GROUP}/resourceslices", new(slice_manifest("d", gpu("g0"))))


def outcome_of_resources(
    control_plane: ControlPlane, scheduler: str, name: str, spec: Json, node: str
) -> Any:
    """Create a pod with these containers that only this node may take, and return the outcome and
    its claim.
    """
    api, spec = control_plane.api, json.loads(json.dumps(spec).replace("CLAIM", name))
    if "resourceClaims" in spec:
        api.post(CLAIMS, {"metadata": {"name": name}, "spec": claim_spec()})
    wants = {"nodeSelector": {"kubernetes.io/hostname": node}, **spec}
    api.post(PODS, pod(name, schedulerName=scheduler, **wants))
    decision, status = wait_for(lambda: told(control_plane, name), f"{scheduler} to say something of {name}")
    claims = [plain_claim(claim, node) for claim in api.items(CLAIMS)]
    api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    for stored in api.items(CLAIMS):
        path = f"{CLAIMS}/{stored['metadata']['name']}"
        api.patch(path, {"metadata": {"finalizers": None}})
        api.delete(path)
    wait_for(lambda: not api.items(CLAIMS), f"the claims of {name} to be gone")
    named = status.pop("resourceClaimName", "")
    return decision, claims, named.rpartition("-")[0], status


def told(control_plane: ControlPlane, name: str) -> Any:
    pod = control_plane.api.get(f"{PODS}/{name}")
    status = pod.get("status", {})
    if pod["spec"].get("nodeName"):
        return pod["spec"]["nodeName"], status.get("extendedResourceClaimStatus", {})
    refused = {condition["type"]: condition for condition in status.get("conditions", [])}.get("PodScheduled")
    return refused and NOT_SEEN_YET not in refused["message"] and (refused["message"], {})


def plain_claim(claim: Json, node: str) -> Any:
    meta = claim["metadata"]
    base = meta["name"].rpartition("-")[0] if meta.get("annotations") else meta["name"]
    owners = [
        {key: reference[key] for key in reference if key != "uid"}
        for reference in meta.get("ownerReferences", [])
    ]
    return base, meta.get("annotations"), owners, claim["spec"], plain("", claim, node)


def cases_of_resources() -> Iterator[tuple[str, Json, str]]:
    for name, spec in RESOURCES.items():
        for node in ("a", "b", "d"):
            yield f"{name}-{node}", spec, node


def test_both_schedulers_create_the_same_claims_for_extended_resources(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    put_world(whole_control_plane)
    put_resources(whole_control_plane)
    deployed = Deployed(whole_control_plane, tmp_path)
    deployed.put_policies(main=deployed.plain_of_release())
    kube = whole_control_plane.start_scheduler()
    upstream = {
        name: outcome_of_resources(whole_control_plane, "default-scheduler", name, spec, node)
        for name, spec, node in cases_of_resources()
    }
    kube.stop()

    with deployed.running():
        own = {
            name: outcome_of_resources(whole_control_plane, "test", name, spec, node)
            for name, spec, node in cases_of_resources()
        }

    refused, bound = upstream.pop(MENDED), own.pop(MENDED)
    if deployed.kubernetes_minor() < 37:
        upstream, own = as_before_1_37(upstream), as_before_1_37(own)
    differences = {name: (upstream[name], own[name]) for name in upstream if upstream[name] != own[name]}
    assert not differences, json.dumps(differences)
    assert sum(bool(row[3]) for row in upstream.values()) > 10
    assert "nil or empty request mappings" in refused[0]
    assert bound[0] == "d"


MENDED = "with-a-claim-d"
"""kube-scheduler creates an empty claim if the node has the extended resource itself and the pod
has its own claim; it cannot write that to the pod's status, and never binds the pod.
"""


# ── binding conditions of devices ──────────────────────────────────────────────────────────────────────────────────


def offer_slow(control_plane: ControlPlane) -> None:
    control_plane.add_node(ready_node("a"))
    control_plane.api.post(f"{GROUP}/deviceclasses", new(class_manifest()))
    slow = gpu(
        "g0",
        bindsToNode=True,
        bindingConditions=["example.com/attached"],
        bindingFailureConditions=["example.com/broken"],
    )
    control_plane.api.post(f"{GROUP}/resourceslices", new(slice_manifest("a", slow)))


def report(control_plane: ControlPlane, claim: str, condition: str) -> None:
    """Report a condition of the claim's device, as its driver does."""
    reported = {
        "type": condition,
        "status": "True",
        "reason": "Said",
        "message": "so it is",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    device = {"driver": DRIVER, "pool": "a", "device": "g0", "conditions": [reported]}
    control_plane.api.patch(f"{CLAIMS}/{claim}/status", {"status": {"devices": [device]}})


def bound_late(control_plane: ControlPlane, scheduler: str, condition: str) -> Any:
    """A pod whose device reports a condition once the pod waits for it: the message while it waits,
    and the outcome of both.
    """
    api, name = control_plane.api, f"{scheduler}-{condition.rpartition('/')[2]}"
    api.post(CLAIMS, {"metadata": {"name": name}, "spec": claim_spec()})
    api.post(PODS, pod(name, schedulerName=scheduler, **claiming(name)))

    def held() -> Any:
        return api.get(f"{CLAIMS}/{name}").get("status", {}).get("reservedFor")

    def pending() -> list[str]:
        events = api.items("/apis/events.k8s.io/v1/namespaces/default/events")
        mine = [event for event in events if event["regarding"]["name"] == name]
        return [event["note"] for event in mine if event["reason"] == "BindingConditionsPending"]

    wait_for(held, f"the claim of {name} to be reserved")
    waits = wait_for(pending, f"{name} to wait")[0]
    waiting = api.get(f"{CLAIMS}/{name}")
    first = (waiting["status"]["allocation"] or {}).get("allocationTimestamp")
    bound_before = api.get(f"{PODS}/{name}")["spec"].get("nodeName")
    report(control_plane, name, condition)
    decision, _ = wait_for(lambda: told(control_plane, name), f"{scheduler} to say something of {name}")
    if decision != "a":
        wait_for(lambda: given_anew(api.get(f"{CLAIMS}/{name}")), f"the claim of {name} to be taken back")
    api.delete(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    api.patch(f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}})
    api.delete(f"{CLAIMS}/{name}")
    wait_for(lambda: gone(control_plane, f"{CLAIMS}/{name}"), f"{name} to be gone")
    _, allocation, *_ = plain("", waiting, "a")
    return waits, bool(first), bound_before, decision.replace(name, "NAME"), allocation


def given_anew(claim: Json) -> bool:
    """Whether the reported conditions are removed with the allocation."""
    return "devices" not in claim.get("status", {})


def test_both_schedulers_wait_for_device_binding_conditions(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    offer_slow(whole_control_plane)
    deployed = Deployed(whole_control_plane, tmp_path)
    deployed.put_policies(main=deployed.plain_of_release())
    conditions = ("example.com/attached", "example.com/broken")
    kube = whole_control_plane.start_scheduler()
    upstream = [bound_late(whole_control_plane, "default-scheduler", condition) for condition in conditions]
    kube.stop()

    with deployed.running():
        own = [bound_late(whole_control_plane, "test", condition) for condition in conditions]

    assert own == upstream, json.dumps([upstream, own])
    assert [decision for _, _, _, decision, _ in own] == [
        "a",
        'running PreBind plugin "DynamicResources": device binding failed: claim=NAME, reason=Said, message="so it is"',
    ]


# ── claim templates and deallocation ───────────────────────────────────────────────────────────────────────────────


def offered(control_plane: ControlPlane, *nodes: str, count: int = 1) -> None:
    for name in nodes:
        control_plane.add_node(ready_node(name))
        gpus = [gpu(f"g{number}") for number in range(count)]
        control_plane.api.post(f"{GROUP}/resourceslices", new(slice_manifest(name, *gpus)))
    control_plane.api.post(f"{GROUP}/deviceclasses", class_manifest())


def templated(deployed: Deployed, name: str) -> None:
    path = f"{GROUP}/namespaces/default/resourceclaimtemplates"
    deployed.api.post(path, {"metadata": {"name": name}, "spec": {"spec": claim_spec()}})


def devices_of(deployed: Deployed) -> list[str]:
    return [
        f"{result['pool']}/{result['device']}"
        for claim in deployed.api.items(CLAIMS)
        for result in (claim.get("status", {}).get("allocation") or {"devices": {"results": []}})["devices"][
            "results"
        ]
    ]


def test_each_pod_of_a_template_gets_a_device_and_releases_it_when_it_ends(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(whole_control_plane, tmp_path)
    offered(whole_control_plane, "a", "b", count=2)
    deployed.put_policies(main=PLAIN)
    whole_control_plane.start_controller_manager(CLAIM_CONTROLLER)
    templated(deployed, "one-gpu")
    wants = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}

    with deployed.running():
        for number in range(4):
            deployed.create(f"p{number}", **wants)
        deployed.all_bound(4)
        full = devices_of(deployed)
        deployed.create("late", **wants)
        full_up = "0/2 nodes are available: 2 cannot allocate all claims."
        wait_for(lambda: deployed.condition("late")["message"].startswith(full_up), "the pod to be told")
        deployed.api.delete(f"{PODS}/p1", {"gracePeriodSeconds": 0})
        deployed.bound("late")
        after = devices_of(deployed)

    assert sorted(full) == ["a/g0", "a/g1", "b/g0", "b/g1"]
    assert sorted(after) == sorted(full)


def test_pods_share_a_claim_where_its_devices_are(whole_control_plane: ControlPlane, tmp_path: Path) -> None:
    deployed = Deployed(whole_control_plane, tmp_path)
    offered(whole_control_plane, "a", "b")
    deployed.put_policies(main=PLAIN)
    deployed.api.post(CLAIMS, {"metadata": {"name": "shared"}, "spec": claim_spec()})

    with deployed.running():
        for number in range(6):
            deployed.create(f"p{number}", **claiming("shared"))
        pods = deployed.all_bound(6)

    held = deployed.api.get(f"{CLAIMS}/shared")["status"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {held["allocation"]["devices"]["results"][0]["pool"]}
    assert sorted(consumer["name"] for consumer in held["reservedFor"]) == [
        f"p{number}" for number in range(6)
    ]


def test_an_unused_claim_is_deallocated_from_a_full_node(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(whole_control_plane, tmp_path)
    offered(whole_control_plane, "a", "b")
    deployed.put_policies(main=PLAIN)
    claim = deployed.api.post(
        CLAIMS, {"metadata": {"name": "c", "finalizers": [FINALIZER]}, "spec": claim_spec()}
    )
    held = {"allocation": given("g0", node="a")["allocation"]}
    deployed.api.put(f"{CLAIMS}/c/status", {**claim, "status": held})

    with deployed.running():
        on_b = {"nodeSelector": {"kubernetes.io/hostname": "b"}}
        deployed.create("web", **claiming("c"), **on_b)
        node = deployed.bound("web")

    assert node == "b"
    assert devices_of(deployed) == ["b/g0"]
