"""The extender protocol's JSON on the server side: decodes requests from kube-scheduler and encodes responses.

The Go types (k8s.io/kube-scheduler/extender/v1) have no JSON tags: field names are capitalised and matched without
regard to case, and older schedulers wrote them in lower case. So names are read in any case and written capitalised.
Kubernetes objects inside (a pod, the items of a node list) use the names of the API.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from policysched.kube.decode import core_objects
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.decode.pods import decode_pod
from policysched.kube.decode.primitives import object_name
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.nodes import Node
from policysched.model.pods import Pod

Json = Mapping[str, Any]

EXTENDER_SCORE_MAX = 10
"""The maximal score: MaxExtenderPriority."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?")
_NAME_LENGTH_MAX = 253


class BadExtenderArgs(Exception):
    """The request does not conform to the protocol. The message is for the client."""


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """ExtenderArgs: a pod and its candidate nodes, as objects (`nodes`; `node_json` has their JSON) or by name alone
    (`nodes` None). `names` are the nodes of either form in the order received."""

    pod: Pod
    names: tuple[NodeName, ...]
    nodes: tuple[Node, ...] | None
    node_json: Mapping[NodeName, Json]


@dataclass(frozen=True, slots=True)
class ProtocolVictims:
    """The victims on one node. `pods` has those that were sent as objects."""

    uids: tuple[PodUid, ...]
    pods: Mapping[PodUid, Pod]
    pdb_violations: int


@dataclass(frozen=True, slots=True)
class ExtenderPreemptionArgs:
    pod: Pod
    victims: Mapping[NodeName, ProtocolVictims]


@dataclass(frozen=True, slots=True)
class ExtenderBindingArgs:
    uid: PodUid
    namespace: str
    name: str
    node: NodeName


class NodeDecodeCache:
    """Decodes nodes once per version: kube-scheduler sends the same ones with every pod. Each client has its own nodes, since
    nobody else vouches for what a client sends under a name and version. Bounded by nodes and by their texts."""

    def __init__(self, nodes_max: int = 20_000, characters_max: int = 2**26) -> None:
        self._nodes_max, self._characters_max = nodes_max, characters_max
        self._decoded: dict[tuple[str, str, str], tuple[str, Node]] = {}
        self._characters = 0

    def decode(self, obj: Any, client: str = "") -> Node:
        """Raises MalformedObject."""
        meta = obj.get("metadata") if isinstance(obj, Mapping) else None
        if not isinstance(meta, Mapping):
            raise MalformedObject("Node", object_name(obj), "metadata", "is missing")
        uid, name, version = meta.get("uid"), meta.get("name"), meta.get("resourceVersion")
        if not (isinstance(uid, str) and isinstance(name, str) and isinstance(version, str) and version):
            return core_objects.decode_node(obj)
        key = client, uid, name
        decoded = self._decoded.get(key)
        if decoded is not None and decoded[0] == version:
            return decoded[1]
        node = core_objects.decode_node(obj)
        self._characters += _characters(node) - (0 if decoded is None else _characters(decoded[1]))
        if len(self._decoded) >= self._nodes_max or self._characters > self._characters_max:
            self._decoded.clear()
            self._characters = _characters(node)
        self._decoded[key] = version, node
        return node


def _characters(node: Node) -> int:
    """Of what can be long in a node, roughly."""
    texts = (*node.labels.values(), *node.annotations.values(), *node.images, *node.allocatable)
    return sum(map(len, texts))


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────


def parse_args(body: bytes, nodes: NodeDecodeCache, client: str = "") -> ExtenderArgs:
    """ExtenderArgs, of filter and prioritize, from this client. Raises BadExtenderArgs."""
    args = _object(body)
    pod, node_list, names = (
        _pod(args),
        field_ignoring_case(args, "Nodes"),
        field_ignoring_case(args, "NodeNames"),
    )
    if node_list is not None:
        return _args_with_nodes(pod, node_list, nodes, client)
    if names is None:
        raise BadExtenderArgs("both Nodes and NodeNames are missing")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadExtenderArgs("NodeNames is not a list of names")
    return ExtenderArgs(pod, tuple(map(NodeName, dict.fromkeys(names))), None, {})


def parse_preemption_args(body: bytes) -> ExtenderPreemptionArgs:
    """ExtenderPreemptionArgs. Raises BadExtenderArgs."""
    args = _object(body)
    pod = _pod(args)
    victim_pods, meta = (
        field_ignoring_case(args, "NodeNameToVictims"),
        field_ignoring_case(args, "NodeNameToMetaVictims"),
    )
    victims = victim_pods if victim_pods else meta
    if victims is None:
        raise BadExtenderArgs("both NodeNameToVictims and NodeNameToMetaVictims are missing")
    if not isinstance(victims, dict):
        raise BadExtenderArgs("the victims are not a map by node")
    decode = _whole_victims if victim_pods else _meta_victims
    return ExtenderPreemptionArgs(
        pod, {NodeName(node): decode(node, value) for node, value in victims.items()}
    )


def parse_binding_args(body: bytes) -> ExtenderBindingArgs:
    """ExtenderBindingArgs. Raises BadExtenderArgs. The names become part of a request path that is sent with our
    permissions, so they must be valid Kubernetes names: a client could otherwise change the path."""
    args = _object(body)
    texts = {name: field_ignoring_case(args, name) for name in ("PodUID", "PodNamespace", "PodName", "Node")}
    for name, text in texts.items():
        form = _UID if name == "PodUID" else _NAME
        if not isinstance(text, str) or len(text) > _NAME_LENGTH_MAX or not form.fullmatch(text):
            raise BadExtenderArgs(f"{name} is missing or not a valid name")
    return ExtenderBindingArgs(
        PodUid(texts["PodUID"]), texts["PodNamespace"], texts["PodName"], NodeName(texts["Node"])
    )


def _args_with_nodes(pod: Pod, node_list: Any, cache: NodeDecodeCache, client: str) -> ExtenderArgs:
    if not isinstance(node_list, dict) or not isinstance(field_ignoring_case(node_list, "Items") or [], list):
        raise BadExtenderArgs("Nodes is not a list of nodes")
    nodes: dict[NodeName, Node] = {}
    node_json: dict[NodeName, Json] = {}
    for obj in field_ignoring_case(node_list, "Items") or []:
        try:
            node = cache.decode(obj, client)
        except MalformedObject as error:
            raise BadExtenderArgs(str(error)) from error
        nodes[node.name], node_json[node.name] = node, obj
    return ExtenderArgs(pod, tuple(nodes), tuple(nodes.values()), node_json)


def _whole_victims(node: str, victims: Any) -> ProtocolVictims:
    pods = {}
    for obj in _victims(node, victims):
        try:
            pod = decode_pod(obj).pod
        except MalformedObject as error:
            raise BadExtenderArgs(f"a victim on {node}: {error}") from error
        pods[pod.uid] = pod
    return ProtocolVictims(tuple(pods), pods, _violations(victims))


def _meta_victims(node: str, victims: Any) -> ProtocolVictims:
    uids = [
        field_ignoring_case(obj, "UID") if isinstance(obj, dict) else None for obj in _victims(node, victims)
    ]
    if not all(isinstance(uid, str) and uid for uid in uids):
        raise BadExtenderArgs(f"a victim on {node} has no UID")
    return ProtocolVictims(tuple(map(PodUid, map(str, uids))), {}, _violations(victims))


def _victims(node: str, victims: Any) -> list[Any]:
    pods = (field_ignoring_case(victims, "Pods") or []) if isinstance(victims, dict) else None
    if not isinstance(pods, list):
        raise BadExtenderArgs(f"the victims on {node} are not a list of pods")
    return pods


def _violations(victims: Json) -> int:
    count = field_ignoring_case(victims, "NumPDBViolations")
    return count if isinstance(count, int) else 0


def _pod(args: Json) -> Pod:
    obj = field_ignoring_case(args, "Pod")
    if not isinstance(obj, dict):
        raise BadExtenderArgs("Pod is missing")
    try:
        return decode_pod(obj).pod
    except MalformedObject as error:
        raise BadExtenderArgs(str(error)) from error


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadExtenderArgs(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadExtenderArgs("not a JSON object")
    return value


def field_ignoring_case(obj: Json, name: str) -> Any:
    """The value of the field, in any case; None if it is absent."""
    if name in obj:
        return obj[name]
    lower_name = name.lower()
    return next((value for key, value in obj.items() if key.lower() == lower_name), None)


# ── responses ───────────────────────────────────────────────────────────────────────────────────────────────


def filter_result(
    args: ExtenderArgs,
    passed: Iterable[NodeName],
    failed: Mapping[NodeName, str],
    unresolvable: Mapping[NodeName, str],
) -> Json:
    """ExtenderFilterResult in the form of the request's nodes. `unresolvable`: preemption does not help there."""
    kept = set(passed)
    names = [name for name in args.names if name in kept]
    as_objects = args.nodes is not None
    return {
        "Nodes": {"metadata": {}, "items": [args.node_json[name] for name in names]} if as_objects else None,
        "NodeNames": None if as_objects else names,
        "FailedNodes": failed,
        "FailedAndUnresolvableNodes": unresolvable,
        "Error": "",
    }


def filter_error(message: str) -> Json:
    """No node is filtered. kube-scheduler fails the pod with the message, or ignores it if the extender is ignorable."""
    return {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": None,
        "Error": message,
    }


def host_priority_list(scores: Mapping[NodeName, int]) -> list[Json]:
    """HostPriorityList."""
    return [{"Host": node, "Score": score} for node, score in scores.items()]


def preemption_result(args: ExtenderPreemptionArgs, nodes: Iterable[NodeName]) -> Json:
    """ExtenderPreemptionResult: the remaining candidate nodes with unchanged victims."""
    return {
        "NodeNameToMetaVictims": {
            node: {
                "Pods": [{"UID": uid} for uid in args.victims[node].uids],
                "NumPDBViolations": args.victims[node].pdb_violations,
            }
            for node in nodes
        }
    }


def binding_result(error: str) -> Json:
    """ExtenderBindingResult; an empty error means that the pod is bound."""
    return {"Error": error}
