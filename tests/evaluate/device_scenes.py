"""Random devices, claims and pods that use them, for the property tests of devices.

Few devices and few claims, so that they compete, share and contradict each other. Everything is a
manifest decoded by `kube.decode.devices`.
"""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.pod_claims import choose_devices, pod_resource_claims
from policysched.kube.decode import devices
from policysched.model.pods import Pod
from tests.devices import ask, claim_manifest, class_manifest, given, gpu, slice_manifest, user
from tests.evaluate.clusters import NODE_NAMES, ClusterRandom, Scene, scene_of, scenes

Json = dict[str, Any]

CLAIMS = ("c0", "c1", "c2", "c3")
CLASSES = ("gpu", "big")
TIMES = ("2030-01-01T00:00:00Z", "2020-01-01T00:00:00Z")
"""When a device was allocated: after the scenes' times, so that its binding can still succeed, and too long ago."""
RESOURCES = ("example.com/card", "example.com/other", "deviceclass.resource.kubernetes.io/gpu")
DRIVERS = ("gpu.example.com", "nic.example.com")
SELECTORS = (
    'device.driver == "gpu.example.com"',
    'has(device.attributes["gpu.example.com"].big) && device.attributes["gpu.example.com"].big',
    'device.attributes["gpu.example.com"].rack == "x"',
    'device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("5Gi"))',
    "device.nothing.of.this",
)
ZONE = "topology.kubernetes.io/zone"


@st.composite
def device_scenes(draw: st.DrawFn) -> Scene:
    """A scene with devices and pods that use some."""
    return _with_devices(draw(scenes(pods=1, placed_max=3)), ClusterRandom(draw(st.integers(0, 2**32 - 1))))


def device_scene_of(number: int) -> Scene:
    """A scene without Hypothesis, determined by the number."""
    return _with_devices(scene_of(number, pods=1), ClusterRandom(number))


def _with_devices(scene: Scene, rng: ClusterRandom) -> Scene:
    for name in sorted(scene.cache.nodes):
        node = scene.cache.nodes[name]
        labels = {**node.labels, ZONE: rng.choice(("z1", "z2"))}
        own = {resource: rng.randrange(3) for resource in RESOURCES if rng.one_in(3)}
        allocatable = {**node.allocatable, **own}
        scene.cache.put_node(
            replace(node, labels=labels, taints=(), unschedulable=False, allocatable=allocatable)
        )
    for obj in random_devices(rng):
        put(scene.cache, obj)
    return replace(scene, pods=tuple(random_user(rng, f"coming-{number}") for number in range(3)))


def put(cache: ClusterCache, obj: Json) -> None:
    cache.put_device_object(devices.DEVICE_DECODERS[obj["kind"]](obj))


def random_user(rng: ClusterRandom, name: str) -> Pod:
    """A pod that uses claims, extended resources or both."""
    made = {"made": rng.choice((None, f"{name}-made"))} if rng.one_in(5) else {}
    resources, claims = rng.one_in(2), rng.some(CLAIMS, 2, least=1)
    kinds = {"containers": [_container(rng, "c"), _container(rng, "d")]} if resources else {}
    if resources and rng.one_in(3):
        kinds["initContainers"] = [_container(rng, "i")]
    if resources and rng.one_in(2):
        claims, made = [], {}
    return user(name, *claims, made=made, **kinds)


def _container(rng: ClusterRandom, name: str) -> Json:
    requests = {resource: str(rng.randrange(3)) for resource in rng.some((*RESOURCES, "cpu"), 2)}
    return {"name": name, "image": "app:1", "resources": {"requests": requests}}


def random_devices(rng: ClusterRandom) -> list[Json]:
    classes = [
        class_manifest(
            name,
            *((SELECTORS[1],) if name == "big" else ()),
            **({"extendedResourceName": rng.choice(RESOURCES[:2])} if rng.one_in(2) else {}),
        )
        for name in CLASSES
        if not rng.one_in(10)
    ]
    owners = [f"uid-coming-{number}" for number in range(3)]
    made = [
        claim_manifest(f"coming-{number}-made", *_requests(rng), owner=rng.choice(owners))
        for number in range(3)
        if not rng.one_in(3)
    ]
    left = [
        claim_manifest(f"left-{number}", *_requests(rng), owner=rng.choice(owners), extended=True)
        for number in range(2)
        if rng.one_in(6)
    ]
    claims = [_claim(rng, name) for name in CLAIMS if not rng.one_in(10)]
    return [*classes, *_slices(rng), *claims, *made, *left]


def _slices(rng: ClusterRandom) -> list[Json]:
    slices = []
    for name in NODE_NAMES:
        for driver in rng.some(DRIVERS, 2):
            slices += _pool(rng, name, driver)
    if rng.one_in(2):
        zone = {"key": ZONE, "operator": "In", "values": ["z1"]}
        reach = rng.choice(
            (
                {"allNodes": True},
                {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}},
                {"perDeviceNodeSelection": True},
            )
        )
        per_device = "perDeviceNodeSelection" in reach
        own = [rng.choice(({"nodeName": "n0"}, {"allNodes": True})) if per_device else {} for _ in range(2)]
        gpus = [_device(rng, f"s{place}", **more) for place, more in enumerate(own)]
        slices.append(slice_manifest(None, *gpus, pool="shared", **reach))
    return slices


def _pool(rng: ClusterRandom, node: str, driver: str) -> list[Json]:
    generation, complete = rng.choice((1, 1, 2)), not rng.one_in(8)
    gpus = [_device(rng, f"g{place}") for place in range(rng.randrange(4))]
    count = 1 if complete else 2
    slices = [slice_manifest(node, *gpus, driver=driver, generation=generation, slices=count)]
    if rng.one_in(4):
        counters = [{"name": "card", "counters": {"memory": {"value": rng.choice(("10Gi", "20Gi"))}}}]
        parts = [
            gpu(
                f"p{place}",
                consumesCounters=[{"counterSet": "card", "counters": {"memory": {"value": "10Gi"}}}],
            )
            for place in range(3)
        ]
        more = {"driver": driver, "pool": f"{node}-parts", "slices": 2}
        slices.append(slice_manifest(node, name=f"{node}-{driver}-counters", sharedCounters=counters, **more))
        slices.append(slice_manifest(node, *parts, name=f"{node}-{driver}-parts", **more))
    return slices


def _device(rng: ClusterRandom, name: str, **more: Any) -> Json:
    attributes = {"big": rng.one_in(2), "rack": rng.choice("xy")} if not rng.one_in(4) else {}
    taints = [{"key": "broken", "effect": "NoSchedule"}] if rng.one_in(8) else []
    shared = {"allowMultipleAllocations": True} if rng.one_in(5) else {}
    slow = {"bindingConditions": ["Ready"]} if rng.one_in(8) else {}
    return gpu(
        name,
        attributes=attributes,
        capacity={"memory": rng.choice(("4Gi", "8Gi"))},
        **({"taints": taints} if taints else {}),
        **shared,
        **slow,
        **more,
    )


def _requests(rng: ClusterRandom) -> list[Json]:
    return [_request(rng, f"r{place}") for place in range(rng.choice((1, 1, 2)))]


def _request(rng: ClusterRandom, name: str) -> Json:
    if rng.one_in(4):
        subs = [{"name": f"s{place}", **_ask(rng)} for place in range(2)]
        return {"name": name, "firstAvailable": subs}
    more: Json = {}
    if rng.one_in(8):
        more["allocationMode"] = "All"
    if rng.one_in(8):
        more["adminAccess"] = True
    return {"name": name, "exactly": {**_ask(rng), **more}}


def _ask(rng: ClusterRandom) -> Json:
    more: Json = {"count": rng.choice((1, 1, 2))}
    if rng.one_in(6):
        more["capacity"] = {"requests": {"memory": rng.choice(("2Gi", "6Gi"))}}
    if rng.one_in(6):
        more["tolerations"] = [{"operator": "Exists"}]
    selectors = (rng.choice(SELECTORS),) if rng.one_in(3) else ()
    return ask(*selectors, of_class=rng.choice((*CLASSES, "gpu", "gpu")), **more)


def _claim(rng: ClusterRandom, name: str) -> Json:
    constraints = []
    if rng.one_in(4):
        kind = rng.choice(("matchAttribute", "distinctAttribute"))
        constraints = [{kind: "gpu.example.com/rack", **({"requests": ["r0"]} if rng.one_in(2) else {})}]
    status = None
    if rng.one_in(4):
        node = rng.choice((*NODE_NAMES, None))
        awaited: Json = {}
        if rng.one_in(2):
            conditions = {name: rng.choice(("True", "False")) for name in rng.some(("Ready", "Broken"), 2)}
            awaited = {
                "bindingConditions": ["Ready"],
                "bindingFailureConditions": ["Broken"],
                "at": rng.choice((None, *TIMES)),
                "reported": conditions,
            }
        reserved = rng.some(("coming-0", "other"), 2)
        status = given(rng.choice(("g0", "g1", "s0")), node=node, reserved=reserved, **awaited)
    return claim_manifest(name, *_requests(rng), status=status, constraints=constraints)


def change(cache: ClusterCache, rng: ClusterRandom, step: int) -> None:
    """Add, change or delete a device object, or reserve devices."""
    objects = random_devices(rng)
    classes = [obj for obj in objects if obj["kind"] == "DeviceClass"]
    obj = rng.choice(classes if classes and rng.one_in(4) else objects)
    obj["metadata"]["resourceVersion"] = str(step + 2)
    in_use = {allocated.device for allocated in cache.devices.usage.whole}
    results = obj.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    if any(result["device"] in in_use for result in results):
        del obj["status"]  # no other scheduler allocates reserved devices
    if rng.one_in(5):
        cache.drop_device_object(obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    elif rng.one_in(2) and cache.nodes:
        reserve_some(cache, rng, step)
    else:
        put(cache, obj)


def reserve_some(cache: ClusterCache, rng: ClusterRandom, step: int) -> None:
    """Reserve devices for a pod on the first node that has them; some are written, some unreserved."""
    pod, available = random_user(rng, f"promised-{step}"), AvailableDevices(cache.devices)
    claims = pod_resource_claims(pod, available, has_stale_claim=available.has_extended_claim(pod))
    for node in [cache.nodes[name] for name in sorted(cache.nodes)]:
        choice = claims if isinstance(claims, str) else choose_devices(pod, claims, node, available)
        if not isinstance(choice, str):
            cache.devices.reserve(pod.uid, choice, 1)
            if rng.one_in(3):
                cache.devices.unreserve(pod.uid, choice, 1)
            elif rng.one_in(2):
                versions = {claim.key: claim.version + 1 for claim, _ in choice.allocated}
                cache.devices.mark_written(pod.uid, choice, versions, 1)
            if choice.claim_to_create is not None and rng.one_in(3):
                cache.devices.mark_claim_deleted(choice.claim_to_create[0].key, "")
            return
