"""Pods of a megabyte whose creator gives them a node: what others read of them counts, in little memory."""

import gc
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from policysched.evaluate.columns.pod_query import other_pod_context
from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT, DecisionCost
from policysched.evaluate.scalar.leaves import attribute
from policysched.kube.decode import counted_names
from policysched.kube.decode.counted_names import CountedNames, metadata_keys
from policysched.kube.decode.errors import log_malformed
from policysched.kube.decode.pods import decode_pod
from policysched.kube.watch.known_objects import KnownObjects
from policysched.kube.watch.resources import pods_within
from policysched.lang.ir.program import Program
from policysched.model.pods import Pod
from policysched.scheduler.events import PodUpdated
from tests.builders import node, pod_manifest
from tests.hostile import HOST, HOSTILE_SPECS, anti_affinity
from tests.kube.test_pod_updates import line
from tests.reference.checked import program
from tests.scheduler.rig import Rig

Json = dict[str, Any]
KUBE_DEFAULT = "policy test version 1\ninclude kube_default\npreemption never\n"
GPU = "vendor.example/gpu"
NAMES = CountedNames()
NAMES.count_node("n", (GPU,))
KEPT_BYTES_MAX, COUNT = 700_000, 2_500


def on_a_node(spec: Json, name: str = "big", **metadata: Any) -> Json:
    obj: Json = pod_manifest(name, namespace="tenant", **metadata) | {"status": {"phase": "Running"}}
    obj["spec"] |= {**spec, "nodeName": "a"}
    return obj


def decode(obj: Json, decision_budget: int = DECISION_BUDGET_DEFAULT) -> tuple[PodUpdated, object]:
    decode_line = pods_within(decision_budget, NAMES).decode_line
    assert decode_line is not None
    event, decoded = decode_line(line(obj), None)
    assert isinstance(event, PodUpdated)
    return event, decoded


def kept_pod(obj: Json, decision_budget: int = DECISION_BUDGET_DEFAULT) -> Pod:
    return decode(obj, decision_budget)[0].pod.pod


def _values(number: int) -> Json:
    values = [f"v{number}-{index}" for index in range(10 * COUNT)]
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
    return on_a_node(anti_affinity([{"topologyKey": HOST, "labelSelector": selector}]), f"p{number}")


def _monitors(number: int) -> Json:
    rbd = {"image": "i", "monitors": [f"m{number}-{index}" for index in range(COUNT)]}
    return on_a_node({"volumes": [{"name": "v", "rbd": rbd}]}, f"p{number}")


def _texts(field: str, number: int) -> Json:
    return on_a_node({}, f"p{number}", **{field: {f"k{number}-{index}": "" for index in range(2 * COUNT)}})


def _hostile(kind: str, number: int) -> Json:
    return on_a_node(HOSTILE_SPECS[kind](COUNT + number), f"p{number}")


SHAPES: Mapping[str, Callable[[int], Json]] = {
    **{kind: partial(_hostile, kind) for kind in HOSTILE_SPECS},
    "labels": partial(_texts, "labels"),
    "annotations": partial(_texts, "annotations"),
    "values of a term": _values,
    "monitors of a disk": _monitors,
}


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_pod_on_a_node_takes_little_memory_whatever_it_has(shape: str) -> None:
    rig, kept = Rig(KUBE_DEFAULT, node("a"), node("b")), list[object]()
    rig.handle(PodUpdated(decode_pod(pod_manifest("w0", labels={"app": "a"}))))
    rig.settle()
    pods = [SHAPES[shape](number) for number in range(4)]
    tracemalloc.start()
    try:
        for obj in pods:
            event, decoded = decode(obj)
            rig.handle(event)
            kept.append(decoded)  # as the reflector does
        rig.handle(PodUpdated(decode_pod(pod_manifest("w1", labels={"app": "a"}))))
        rig.settle()
        gc.collect()
        kept_bytes = tracemalloc.get_traced_memory()[0] // len(pods)
    finally:
        tracemalloc.stop()

    assert kept_bytes < KEPT_BYTES_MAX


def test_what_others_read_of_a_large_pod_on_a_node_counts() -> None:
    obj = on_a_node(HOSTILE_SPECS["tolerations"](COUNT), cpu="3")
    obj["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    obj["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    obj["spec"] |= anti_affinity([{"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a"}}}])

    kept, whole = kept_pod(obj), decode_pod(obj).pod

    assert (kept.requests, kept.host_ports, kept.claims) == (whole.requests, whole.host_ports, whole.claims)
    assert kept.pod_affinity == whole.pod_affinity
    assert kept.scoring_requests_placed == whole.scoring_requests_placed
    assert kept.tolerations == ()


def test_of_thousands_of_resources_those_that_nodes_have_count() -> None:
    obj = on_a_node(HOSTILE_SPECS["resources"](COUNT))
    obj["spec"]["containers"][0]["resources"]["requests"] |= {"cpu": "3", GPU: "7"}

    kept = kept_pod(obj)

    assert (kept.requests["cpu"], kept.requests[GPU], len(kept.requests)) == (3_000, 7, 500)
    assert kept.limits.keys() <= kept.requests.keys()


def test_the_terms_of_a_pod_on_a_node_count_if_there_is_room_for_all_of_them() -> None:
    few, many = (
        on_a_node(HOSTILE_SPECS["anti-affinity by host that selects nothing"](n)) for n in (250, 500)
    )

    assert kept_pod(few) == decode_pod(few).pod
    assert kept_pod(many).pod_affinity is None


def test_no_policy_reads_an_item_that_is_not_known() -> None:
    large = kept_pod(on_a_node(HOSTILE_SPECS["tolerations"](COUNT), cpu="1"))
    many = kept_pod(on_a_node(HOSTILE_SPECS["resources"](COUNT)))
    small = kept_pod(on_a_node({}, cpu="1"))

    def value(pod: Pod, *path: str) -> object:
        return attribute("other", path)(other_pod_context(pod, None))

    assert [value(large, "tolerations"), value(large, "images")] == [None, None]
    assert [value(large, "requests", "cpu"), value(large, "requests", "gpu")] == [1_000, 0]
    assert [value(many, "requests", "tenant.example/resource-0"), value(many, "requests", "gpu")] == [1, None]
    assert [value(small, "tolerations"), value(small, "requests", "gpu")] == [(), 0]


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_a_policy_reads_what_a_pod_does_not_have_where_only_its_labels_were_dropped(field: str) -> None:
    large = kept_pod(on_a_node({}, cpu="1", **{field: {f"k{i}": "" for i in range(257)}}))
    ended = decode_ended(on_a_node({}, **{field: {f"k{i}": "" for i in range(257)}}))
    no_limits = kept_pod(on_a_node(HOSTILE_SPECS["tolerations"](COUNT)))

    def value(pod: Pod, *path: str) -> object:
        return attribute("victim", path)(other_pod_context(pod, None))

    for pod in (large, ended):
        assert pod.too_large and pod.dropped == {field}
        assert [value(pod, "tolerations"), value(pod, "requests", "gpu")] == [(), 0]
    assert [value(no_limits, "tolerations"), value(no_limits, "limits", "gpu")] == [None, 0]


def decode_ended(obj: Json) -> Pod:
    obj["status"]["phase"] = "Failed"
    return kept_pod(obj)


@pytest.mark.parametrize("kind", sorted(HOSTILE_SPECS))
def test_an_ended_pod_is_kept_without_its_items_beyond_a_quarter_of_the_budget(kind: str) -> None:
    obj = on_a_node(HOSTILE_SPECS[kind](50 if kind == "tolerations" else 501))
    few = on_a_node(HOSTILE_SPECS[kind](5))

    ended, small = decode_ended(obj), decode_ended(few)

    assert ended.dropped and DecisionCost(ended).operations(0, 2_000) <= 2_000
    assert small == decode_pod(few).pod


def test_an_ended_pod_is_kept_without_what_placement_reads() -> None:
    """With what the next version of it could be decoded with, all of it would be kept."""
    obj = on_a_node(HOSTILE_SPECS["volume claims"](400))
    obj["status"]["phase"] = "Failed"
    rig = Rig(KUBE_DEFAULT, node("a"))
    event, decoded = decode(obj)
    rig.handle(event)

    assert decoded is None
    (ended,) = rig.scheduler.core.cache.ended_pods.pods.values()
    assert (ended.full_name, ended.claims) == ("tenant/big", ())


LONG = "x" * 9_000


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_an_ended_pod_is_kept_without_long_texts_that_no_policy_reads(field: str) -> None:
    """They were kept until the API server deletes the pod: 256 KiB of annotations, and the names of 500 images."""
    names = CountedNames(lambda: {"test": READS})
    names.revision()
    decode_line = pods_within(DECISION_BUDGET_DEFAULT, names).decode_line
    assert decode_line is not None
    containers = [{"name": f"c{number}", "image": f"{number}{LONG}:1"} for number in range(3)]
    texts = {"other": LONG, "zz/mode": LONG, "app": "a", **{f"k{number}": "x" * 60 for number in range(200)}}
    obj = on_a_node({"containers": containers}, **{field: texts})
    running = kept_pod(obj)

    obj["status"]["phase"] = "Succeeded"
    event, decoded = decode_line(line(obj), None)

    assert isinstance(event, PodUpdated)
    ended, kept = event.pod.pod, getattr(event.pod.pod, field)
    assert kept.items() < texts.items()
    assert (kept["zz/mode"], kept["app"], "other" in kept, ended.images) == (LONG, "a", False, ())
    assert 7_000 < sum(len(key) + len(text) for key, text in kept.items() if text != LONG) <= 8_192
    assert (ended.dropped, decoded) == ({field, "images"}, None)
    assert getattr(running, field) == texts and len(running.images) == 3


def test_an_ended_pod_with_too_many_items_is_kept_without_long_texts_either() -> None:
    obj = on_a_node(HOSTILE_SPECS["tolerations"](501), annotations={"other": 20 * LONG, "short": "a"})

    ended = decode_ended(obj)

    assert (ended.tolerations, ended.annotations) == ((), {"short": "a"})
    assert {"tolerations", "annotations"} <= ended.dropped


def test_a_standby_keeps_no_more_of_an_ended_pod_than_the_cluster() -> None:
    obj = on_a_node(HOSTILE_SPECS["volume claims"](400)) | {"status": {"phase": "Failed"}}
    resource = pods_within(DECISION_BUDGET_DEFAULT, NAMES)
    emitted: list[Any] = []
    known = KnownObjects(resource, emitted.append, log_malformed, holds=True)
    known.store("u", 1, decode(obj))
    rig = Rig(KUBE_DEFAULT, node("a"))
    rig.handle(decode(obj)[0])

    known.release()

    assert [event.pod.pod for event in emitted] == list(rig.scheduler.core.cache.ended_pods.pods.values())


@pytest.mark.parametrize("ip", ["", "10.0.0.7"])
def test_every_host_port_of_a_large_pod_conflicts(ip: str) -> None:
    obj = on_a_node(HOSTILE_SPECS["host ports"](COUNT))
    obj["spec"]["containers"][0]["ports"].append({"containerPort": 1, "hostPort": 53, "protocol": "UDP"})
    rig = Rig(KUBE_DEFAULT, node("a"))
    rig.handle(decode(obj)[0])

    def fits(port: int, protocol: str) -> bool:
        wanted = [{"containerPort": 1, "hostPort": port, "hostIP": ip, "protocol": protocol}]
        spec = {"containers": [{"name": "c", "image": "app:1", "ports": wanted}]}
        pod = decode_pod(pod_manifest(f"w{port}-{protocol.lower()}", scheduler="test", spec=spec))
        rig.handle(PodUpdated(pod))
        rig.settle()
        return rig.scheduler.core.pods[pod.pod.uid].node is not None

    assert [fits(port, "TCP") for port in (9_999, 10_000, 9_999 + COUNT, 10_000 + COUNT)] == [
        True,
        False,
        False,
        True,
    ]
    assert [fits(53, protocol) for protocol in ("TCP", "UDP", "SCTP")] == [True, False, True]


def test_a_total_leaves_out_a_pod_whose_items_are_not_known() -> None:
    text = "policy test version 1\nfilter few require count(pods on node where {}) < 1\npreemption never\n"
    large = decode(on_a_node(HOSTILE_SPECS["tolerations"](COUNT)))[0]
    placed = []
    for condition in ('not ("x" in other.tolerations)', 'other.namespace == "tenant"'):
        rig = Rig(text.format(condition), node("a"))
        rig.handle(large)
        rig.handle(PodUpdated(decode_pod(pod_manifest("small", scheduler="test"))))
        rig.settle()
        placed.append(any(pod.node for pod in rig.scheduler.core.pods.values()))

    assert placed == [True, False]


READS = program(
    'input team: string = pod.labels["zz/team"] default "none"',
    'input mode: string = pod.annotations["zz/mode"] default "none"',
    'queue by pod.labels["zz/rank"] else "none"',
    'filter few require count(pods on node where has other.labels["zz/kind"]) < 1',
    'preemption { victims = has victim.labels["zz/victim"] }',
)
READ_KEYS = ["zz/team", "zz/mode", "zz/rank", "zz/kind", "zz/victim"]


def test_the_keys_that_a_policy_reads_anywhere_are_known() -> None:
    assert sorted(metadata_keys(READS)) == sorted(READ_KEYS)


def test_an_edit_reads_the_edited_policy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand teams, one edits all the time."""
    policies = {f"team{number}": replace(READS, name=f"team{number}") for number in range(5)}
    names, read = CountedNames(lambda: policies), list[str]()

    def read_keys(program: Program) -> list[str]:
        read.append(program.name)
        return metadata_keys(program)

    monkeypatch.setattr(counted_names, "metadata_keys", read_keys)
    names.revision()
    assert sorted(read) == sorted(policies)

    policies["team3"] = replace(READS, name="team3")
    names.revision()
    names.revision()

    assert read[5:] == ["team3"]
    assert names.metadata_keys == tuple(metadata_keys(READS))


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_of_hundreds_of_labels_those_that_policies_read_count(field: str) -> None:
    policies = dict[str, Program]()
    names = CountedNames(lambda: policies)
    texts = {f"a{number:04}": "" for number in range(300)} | dict.fromkeys(READ_KEYS, "yes")
    obj = on_a_node({}, **{field: texts})
    decode_line = pods_within(DECISION_BUDGET_DEFAULT, names).decode_line
    assert decode_line is not None

    def read_keys() -> list[str]:
        nonlocal decoded
        event, decoded = decode_line(line(obj), decoded)
        assert isinstance(event, PodUpdated)
        kept = getattr(event.pod.pod, field)
        assert len(kept) == 256
        return [key for key in READ_KEYS if key in kept]

    decoded: object = None
    names.revision()
    assert read_keys() == []
    policies["test"] = READS
    assert names.revision() == 1
    assert read_keys() == READ_KEYS
    del policies["test"]
    assert names.revision() == 1, "nothing is read again"


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize(
    ("kind", "operator", "key", "fits"),
    [
        ("podAntiAffinity", "In", "zz/app", False),
        ("podAntiAffinity", "NotIn", "zz/app", False),
        ("podAntiAffinity", "Exists", "zz/app", False),
        ("podAntiAffinity", "DoesNotExist", "zz/app", False),
        ("podAntiAffinity", "In", "a0000", True),
        ("podAntiAffinity", "DoesNotExist", "a0000", True),
        ("podAffinity", "In", "zz/app", False),
        ("podAffinity", "DoesNotExist", "zz/app", False),
        ("podAffinity", "Exists", "a0000", True),
    ],
)
def test_a_required_term_of_others_does_not_rely_on_labels_that_are_not_known(
    kind: str, operator: str, key: str, fits: bool, count: int
) -> None:
    """`count`: as a tally, and as many terms are counted."""
    texts = {f"a{number:04}": "" for number in range(300)} | {"zz/app": "a"}
    values = ["a"] if operator in ("In", "NotIn") else []
    requirement = {"key": key, "operator": operator, "values": values}
    term = {
        "labelSelector": {"matchExpressions": [requirement]},
        "namespaceSelector": {},
        "topologyKey": HOST,
    }
    rig = Rig(KUBE_DEFAULT, node("a", labels={HOST: "a"}))
    rig.handle(decode(on_a_node({}, labels=texts))[0])

    terms = {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term] * count}}}
    pod = decode_pod(pod_manifest("w", scheduler="test", spec=terms, labels={"zz/app": "b"}))
    rig.handle(PodUpdated(pod))
    rig.settle()

    assert (rig.scheduler.core.pods[pod.pod.uid].node is not None) == fits
