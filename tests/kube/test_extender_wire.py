"""The extender protocol's JSON, as kube-scheduler and older ones write it, and as nobody should."""

import json
from typing import Any

import pytest

from policysched.kube.extender.protocol import (
    BadExtenderArgs,
    NodeDecodeCache,
    filter_result,
    parse_args,
    parse_binding_args,
    parse_preemption_args,
    preemption_result,
)
from tests.builders import node_manifest, pod_manifest


def arguments(**fields: Any) -> bytes:
    return json.dumps({"Pod": pod_manifest("web"), **fields}).encode()


def test_field_names_are_read_in_any_case_and_written_capitalised() -> None:
    old = json.dumps({"pod": pod_manifest("web"), "nodenames": ["a", "b"]}).encode()

    args = parse_args(old, NodeDecodeCache())
    result = filter_result(args, ["b"], {}, {"a": "no"})

    assert (args.pod.name, args.names, args.nodes) == ("web", ("a", "b"), None)
    assert result == {
        "Nodes": None,
        "NodeNames": ["b"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"a": "no"},
        "Error": "",
    }


def test_node_objects_are_returned_as_they_were_sent() -> None:
    rejected, other = node_manifest("a"), {**node_manifest("b"), "somethingNew": 1}
    args = parse_args(arguments(Nodes={"items": [rejected, other]}, NodeNames=None), NodeDecodeCache())

    result = filter_result(args, ["b"], {"a": "no"}, {})

    assert [node.name for node in args.nodes or ()] == ["a", "b"]
    assert result["Nodes"] == {"metadata": {}, "items": [other]}
    assert result["NodeNames"] is None


def test_no_passed_node_is_an_empty_list_and_not_null() -> None:
    args = parse_args(arguments(NodeNames=["a"]), NodeDecodeCache())

    assert filter_result(args, [], {}, {"a": "no"})["NodeNames"] == []


DEEP = b"[" * 1010 + b"]" * 1010


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (arguments(NodeNames=[]).replace(b'"web"', DEEP), "metadata.name: is a list"),
        (
            arguments(Nodes={"items": [{"metadata": {"name": "deep"}}]}).replace(b'"deep"', DEEP),
            "metadata.name: is a list",
        ),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "Pod is missing"),
        (b'{"Pod": 3, "NodeNames": []}', "Pod is missing"),
        (b'{"Pod": {}, "NodeNames": []}', "metadata"),
        (arguments(), "both Nodes and NodeNames are missing"),
        (arguments(NodeNames="a"), "not a list of names"),
        (arguments(NodeNames=[1]), "not a list of names"),
        (arguments(Nodes=[]), "not a list of nodes"),
        (arguments(Nodes={"items": "x"}), "not a list of nodes"),
        (arguments(Nodes={"items": [None]}), "metadata"),
        (arguments(Nodes={"items": [{"metadata": {"name": 4}}]}), "Node"),
    ],
)
def test_an_invalid_request_has_an_error_message(body: bytes, words: str) -> None:
    with pytest.raises(BadExtenderArgs, match=words):
        parse_args(body, NodeDecodeCache())


def test_a_node_of_the_same_version_is_decoded_once() -> None:
    reader = NodeDecodeCache()
    first = node_manifest("a")
    first["metadata"]["resourceVersion"] = "7"
    later = {**first, "metadata": {**first["metadata"], "resourceVersion": "8", "labels": {"new": "yes"}}}

    decoded, same, other = reader.decode(first), reader.decode(dict(first)), reader.decode(later)

    assert decoded is same
    assert other.labels == {"new": "yes"}


def versioned(name: str, **labels: str) -> dict[str, Any]:
    manifest = node_manifest(name, labels=labels)
    manifest["metadata"]["resourceVersion"] = "7"
    return manifest


def test_a_client_cannot_replace_a_node_of_another_client() -> None:
    reader = NodeDecodeCache()

    forged = reader.decode(versioned("a", pool="forged"), "tool")
    real = reader.decode(versioned("a", pool="real"), "system:kube-scheduler")

    assert (forged.labels["pool"], real.labels["pool"]) == ("forged", "real")


def test_nodes_with_long_texts_are_not_kept_in_thousands() -> None:
    reader = NodeDecodeCache(characters_max=10_000)
    first = reader.decode(versioned("a", text="x" * 4_000))
    assert reader.decode(versioned("a", text="x" * 4_000)) is first

    for index in range(50):
        reader.decode(versioned(f"n{index}", text="x" * 4_000))

    assert len(reader._decoded) <= 2
    assert reader.decode(versioned("a", text="x" * 4_000)) is not first


def test_nodes_without_a_version_are_decoded_each_time() -> None:
    reader, manifest = NodeDecodeCache(), node_manifest("a")

    before = reader.decode(manifest)
    manifest["metadata"]["labels"] = {"new": "yes"}

    assert before.labels != reader.decode(manifest).labels == {"new": "yes"}


def test_victims_are_read_as_objects_or_uids_and_returned_as_uids() -> None:
    victim = pod_manifest("low", uid="uid-low")
    body = {"Pod": pod_manifest("web")}
    whole = {**body, "NodeNameToVictims": {"a": {"Pods": [victim], "NumPDBViolations": 2}}}
    meta = {**body, "nodeNameToMetaVictims": {"a": {"pods": [{"uid": "uid-low"}], "numPDBViolations": 2}}}

    by_object, other = (parse_preemption_args(json.dumps(each).encode()) for each in (whole, meta))

    assert by_object.victims["a"].uids == other.victims["a"].uids == ("uid-low",)
    assert (list(by_object.victims["a"].pods), list(other.victims["a"].pods)) == (["uid-low"], [])
    for args in (by_object, other):
        assert preemption_result(args, ["a"]) == {
            "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 2}}
        }
    assert preemption_result(by_object, []) == {"NodeNameToMetaVictims": {}}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"NodeNameToVictims": [1]},
        {"NodeNameToVictims": {"a": 3}},
        {"NodeNameToVictims": {"a": {"Pods": [{}]}}},
        {"NodeNameToMetaVictims": {"a": {"Pods": [{}]}}},
        {"NodeNameToMetaVictims": {"a": {"Pods": "x"}}},
    ],
)
def test_malformed_victims_are_reported(more: dict[str, Any]) -> None:
    with pytest.raises(BadExtenderArgs):
        parse_preemption_args(json.dumps({"Pod": pod_manifest("web"), **more}).encode())


def test_a_binding_needs_all_four_names_and_each_must_be_a_valid_name() -> None:
    whole = {"PodName": "web", "PodNamespace": "team", "PodUID": "u", "Node": "a"}

    args = parse_binding_args(json.dumps(whole).encode())

    assert (args.uid, args.namespace, args.name, args.node) == ("u", "team", "web", "a")
    for name in whole:
        for bad in ("", None, 3, "../x", "..", "x?y#z", "x y", "x\r\nHost: evil", "x\n", "%2e%2e", "x" * 254):
            with pytest.raises(BadExtenderArgs, match=name):
                parse_binding_args(json.dumps({**whole, name: bad}).encode())
