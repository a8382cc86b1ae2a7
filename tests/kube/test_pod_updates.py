"""Updates of pods are decoded as if they were new, and take a fraction of the time."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from policysched.kube.client import watch_lines
from policysched.kube.client.watch_lines import split_object, watch_events
from policysched.kube.decode import pod_updates, pods
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.decode.pod_updates import decode_pod_update
from policysched.kube.decode.pods import decode_pod
from policysched.kube.watch.resources import PODS
from policysched.scheduler.events import PodUpdated
from tests.builders import pod_manifest
from tests.hostile import HOST, HOSTILE_SPECS, REQUIRED

Json = dict[str, Any]


def _label_keys(count: int) -> Json:
    """Terms and constraints that take values from the pod's labels."""
    selector = {"matchLabels": {"app": "a"}}
    term = {"topologyKey": HOST, "labelSelector": selector, "matchLabelKeys": ["app", "tier"]}
    constraint = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term}
    return {
        "affinity": {"podAffinity": {REQUIRED: [term] * count}},
        "topologySpreadConstraints": [constraint] * 4,
    }


def _own_labels(count: int) -> Json:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a"}}}
    return {"affinity": {"podAffinity": {REQUIRED: [term] * count}}}


SPECS = {**HOSTILE_SPECS, "label keys": _label_keys, "affinity to its own labels": _own_labels}


def large(kind: str, count: int = 4) -> Json:
    made: Json = pod_manifest("big", namespace="tenant")
    made["spec"] |= SPECS[kind](count)
    return made


def edit(obj: Json, rng: Random) -> None:
    """One change that a user, a controller, the kubelet or a scheduler makes."""
    meta, spec, status = obj["metadata"], obj["spec"], obj.setdefault("status", {})
    match rng.randrange(15):
        case 0:
            meta["labels"] = {"app": rng.choice("abc"), "tier": rng.choice("xy")}
        case 1:
            meta["annotations"] = {"note": str(rng.random())}
        case 2:
            status["conditions"] = [{"type": "PodScheduled", "status": "False", "message": str(rng.random())}]
        case 3:
            meta["deletionTimestamp"] = "2026-01-31T12:00:00Z"
        case 4:
            spec["nodeName"] = rng.choice(("", "a", "b"))
        case 5:
            status["phase"] = rng.choice(("Pending", "Running", "Failed"))
        case 6:
            spec["tolerations"] = [
                *spec.get("tolerations", ()),
                {"key": str(rng.random()), "operator": "Exists"},
            ]
        case 7:
            spec["containers"][0]["image"] = rng.choice(("app:1", "app:2"))
        case 8:
            meta["ownerReferences"] = [
                {"apiVersion": "v1", "kind": rng.choice("AB"), "name": "o", "uid": "u", "controller": True}
            ]
        case 9:
            status["conditions"] = [{"type": "Ready", "status": rng.choice(("True", "False"))}]
        case 10:
            amounts = {"cpu": rng.choice(("1", "2"))}
            name = spec["containers"][0]["name"]
            status["containerStatuses"] = [
                {"name": name, "allocatedResources": amounts, "resources": {"requests": amounts}}
            ]
        case 11:
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
            status["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": rng.choice(("c1", "c2"))}]
        case 12:
            status["qosClass"] = rng.choice(("BestEffort", "Burstable"))
        case 13:
            spec["schedulingGroup"] = {"podGroupName": rng.choice(("g1", "g2"))}
        case _:
            status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
    meta["resourceVersion"] = str(int(meta.get("resourceVersion") or 0) + 1)


def differences(seed: int) -> list[str]:
    """Between a history of updates and pods that are decoded anew."""
    rng, decoded, problems = Random(seed), None, []
    obj = large(rng.choice(sorted(SPECS)))
    for _ in range(12):
        obj = copy.deepcopy(obj)
        observed, decoded = decode_pod_update(obj, decoded)
        fresh = decode_pod(obj)
        if (observed, observed.version, observed.generation) != (fresh, fresh.version, fresh.generation):
            problems.append(f"seed {seed}: {observed} is not {fresh}"[:200])
        edit(obj, rng)
    return problems


def line(obj: Json) -> bytes:
    """A line of a watch: the fields in the order of the API server."""
    ordered = {"kind": "Pod", "apiVersion": "v1", **obj}
    status = ordered.pop("status", None)
    return orjson.dumps(
        {"type": "MODIFIED", "object": ordered if status is None else {**ordered, "status": status}}
    )


def differences_of_lines(seed: int) -> list[str]:
    """As `differences`, of pods whose lines are large. Their metadata and specs have keys that look like those of a pod."""
    rng, decoded, problems = Random(seed), None, []
    obj = large(rng.choice(sorted(SPECS)))
    obj["spec"].setdefault("volumes", []).append(
        {
            "name": "v",
            "ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {"storageClassName": "a"}}},
        }
    )
    obj["metadata"]["annotations"] = {"a": ',"spec":{', "spec": '},"status":{'}
    obj["status"] = {}
    for _ in range(12):
        obj = copy.deepcopy(obj)
        assert PODS.decode_line is not None
        event, decoded = PODS.decode_line(line(obj), decoded)
        fresh = decode_pod(obj)
        assert isinstance(event, PodUpdated)
        observed = event.pod
        if (observed, observed.version, observed.generation) != (fresh, fresh.version, fresh.generation):
            problems.append(f"seed {seed}: {observed} is not {fresh}"[:200])
        edit(obj, rng)
    return problems


def test_histories_of_large_lines_are_decoded_as_new_pods() -> None:
    assert [problem for seed in range(30) for problem in differences_of_lines(seed)] == []


def equal_spec_without_the_rest(read: Json, before: pod_updates.DecodedPod, kept: Any) -> Any:
    with patch.object(pod_updates, "_digest", return_value=before.digest):
        return _with_equal_spec(read, before, kept)


_with_equal_spec = pod_updates._with_equal_spec


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("_blake", lambda _data: b""),
        ("_KEPT_OF_SPEC", ()),
        ("_LABEL_KEYS", b"none"),
        ("_with_equal_spec", equal_spec_without_the_rest),
    ],
)
def test_planted_bugs_of_large_lines_are_found(name: str, bug: object) -> None:
    with patch.object(pod_updates, name, bug):
        assert any(differences_of_lines(seed) for seed in range(200))


def parsed_bytes(lines: list[bytes]) -> list[int]:
    """Of each line, how much is parsed. A line holds the interpreter's lock while it is."""
    parsed, decoded = [], None
    loads = orjson.loads
    for large_line in lines:
        parsed.append(0)

        def count(text: bytes) -> Any:
            parsed[-1] += len(text)
            return loads(text)

        with patch.object(watch_lines.orjson, "loads", count):
            assert PODS.decode_line is not None
            _, decoded = PODS.decode_line(large_line, decoded)
    return parsed


def conditions_of(kind: str) -> list[bytes]:
    obj = pod_manifest("big", namespace="tenant")
    obj["spec"] |= HOSTILE_SPECS[kind](500)
    conditions = [
        {"type": "PodScheduled", "status": "False", "message": f"try {number}"} for number in range(3)
    ]
    return [line({**obj, "status": {"conditions": [condition]}}) for condition in conditions]


@pytest.mark.parametrize("kind", sorted(HOSTILE_SPECS))
def test_the_condition_of_a_large_pod_does_not_parse_its_spec(kind: str) -> None:
    lines = conditions_of(kind)

    first, *others = parsed_bytes(lines)

    assert first >= len(lines[0])
    assert max(others) < 1_000


def test_a_spec_that_is_parsed_with_each_update_is_found() -> None:
    with patch.object(pod_updates, "_with_equal_spec", lambda *_: None):
        assert min(parsed_bytes(conditions_of("host ports"))) > 10_000


@pytest.mark.parametrize(
    "text",
    [
        b'{"metadata":{"x":{"a":1,"spec":{"b":2}}},"spec":{"c":3},"status":{"phase":"Pending"}}',
        b'{"metadata":{},"spec":{"c":3},"status":{"x":{"a":1,"status":{"b":2}}}}',
        b'{"metadata":{"x":{"a":1,"spec":{"b":2}}},"status":{"x":{"a":1,"status":{"b":2}}}}',
        b'{"status":{"a":1,"spec":{},"status":{}},"spec":{"a":1}}',
        b'{"metadata":{},"spec":{"c":3}}',
    ],
)
def test_a_line_with_other_keys_of_these_names_is_read_whole(text: bytes) -> None:
    obj, spec_line = split_object(b'{"type":"MODIFIED","object":' + text + b"}")

    assert (obj, spec_line) == (orjson.loads(text), None)


def test_histories_of_updates_are_decoded_as_new_pods() -> None:
    assert [problem for seed in range(30) for problem in differences(seed)] == []


def the_spec_is_not_compared(obj: Json, spec_digest: bytes) -> bytes:
    return b""


def the_status_is_not_compared(status: Json) -> tuple[()]:
    return ()


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("_digest", the_spec_is_not_compared),
        ("resource_status", the_status_is_not_compared),
        ("_LABEL_KEYS", b"none"),
        ("is_ready", lambda _spec, _status: False),
        ("affinity_of_labels", lambda affinity, _: affinity),
        ("spread_of_labels", lambda spread, _: spread),
    ],
)
def test_planted_bugs_are_found(name: str, bug: object) -> None:
    with patch.object(pod_updates, name, bug):
        assert any(differences(seed) for seed in range(200))


@pytest.mark.parametrize("kind", sorted(HOSTILE_SPECS))
def test_a_changed_label_of_a_large_pod_does_not_decode_its_spec(kind: str) -> None:
    obj = large(kind)
    _, decoded = decode_pod_update(obj, None)

    with patch.object(pods, "_decode_pod_spec", side_effect=AssertionError("the spec is decoded")):
        for number in range(3):
            obj["metadata"]["labels"] = {"app": f"v{number}"}
            observed, decoded = decode_pod_update(obj, decoded)
            assert observed.pod.labels == {"app": f"v{number}"}


def test_a_bind_and_a_status_do_not_decode_the_spec() -> None:
    obj = pod_manifest("small")
    pending, decoded = decode_pod_update(obj, None)

    with patch.object(pods, "_decode_pod_spec", side_effect=AssertionError("the spec is decoded")):
        obj["spec"]["nodeName"] = "node-1"
        bound, decoded = decode_pod_update(obj, decoded)
        obj["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        running, _ = decode_pod_update(obj, decoded)

    assert (bound.node, bound.pod is pending.pod) == ("node-1", True)
    assert (running.phase, running.pod.ready) == ("Running", True)


class ReadKeys(dict[str, Any]):
    """Notes the keys that are read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


def test_what_the_decoder_reads_beside_the_spec_is_compared() -> None:
    """A decoder that reads another field of the metadata or the status would miss a change of it."""
    obj = pod_manifest("read") | {"status": ReadKeys({"phase": "Pending"})}
    obj["metadata"] = ReadKeys(obj["metadata"])
    obj["spec"] |= {"nodeName": "a", "resourceClaims": [{"name": "a", "resourceClaimTemplateName": "b"}]}

    pods._decode_pod_spec(obj["metadata"], obj["spec"], obj["status"])
    by_decoder = obj["status"].read
    by_digest = ReadKeys({"phase": "Pending"})
    pod_updates._digest({**obj, "status": by_digest}, b"")

    assert by_decoder <= by_digest.read
    renewed = {"labels", "annotations", "deletionTimestamp"}
    assert obj["metadata"].read & set(pod_updates._CHANGING_META) == renewed


@pytest.mark.parametrize("spec", [None, "text", {"containers": 5}])
def test_a_malformed_pod_is_reported_as_before(spec: object) -> None:
    obj = {**pod_manifest("bad"), "spec": spec}

    with pytest.raises(MalformedObject):
        decode_pod_update(obj, None)


def test_a_line_in_thousands_of_chunks_takes_time_in_proportion_to_its_length() -> None:
    """Joined chunk by chunk, this line is copied for seconds."""

    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"type": "ADDED", "object": {"a": "'
        for _ in range(8_000):
            yield b"x" * 1_000
        yield b'"}}\n{"type": "DELETED", "object": {}}\n'

    async def read() -> list[str]:
        return [event.type async for event in watch_events(chunks(), 60.0)]

    began_s = time.process_time()

    assert asyncio.run(read()) == ["ADDED", "DELETED"]
    assert time.process_time() - began_s < 1.0
