"""The extender protocol's JSON, read as a server of it: what kube-scheduler asks, and the forms in which it is answered.

The Go types (k8s.io/kube-scheduler/extender/v1) have no JSON tags: the names of fields are capitalised and read without
regard to case, and older schedulers wrote them in lower case. So names are read in any case and written capitalised.
Kubernetes' own objects inside (a pod, the items of a node list) have the names of its API.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.errors import Malformed
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.nodes import Node
from policysched.model.pods import Pod

Json = Mapping[str, Any]

EXTENDER_SCORE_MAX = 10
"""What extenders score up to: MaxExtenderPriority."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:]*[A-Za-z0-9])?")
_NAME_LENGTH_MAX = 253


class BadExtenderArgs(Exception):
    """What was sent is none of the protocol's arguments: words for whoever sent it."""


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """ExtenderArgs: a pod and the nodes that are left for it, whole (`nodes`; `node_json` has their JSON) or by name alone
    (`nodes` None). `names` are those of either, in the order in which they came."""

    pod: Pod
    names: tuple[NodeName, ...]
    nodes: tuple[Node, ...] | None
    node_json: Mapping[NodeName, Json]


@dataclass(frozen=True, slots=True)
class ProtocolVictims:
    """Who is to go from one node. `pods` has those that were sent whole."""

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
    """Reads nodes, and knows those again that came before: kube-scheduler sends the same ones with every pod."""

    def __init__(self, nodes_max: int = 20_000) -> None:
        self._nodes_max = nodes_max
        self._decoded: dict[tuple[str, str], tuple[str, Node]] = {}

    def decode(self, obj: Any) -> Node:
        """Raises Malformed."""
        meta = obj.get("metadata") if isinstance(obj, Mapping) else None
        if not isinstance(meta, Mapping):
            raise Malformed("Node", wire.object_name(obj), "metadata", "is missing")
        uid, name, version = meta.get("uid"), meta.get("name"), meta.get("resourceVersion")
        if not (isinstance(uid, str) and isinstance(name, str) and isinstance(version, str) and version):
            return wire.decode_node(obj)
        key = uid, name
        known = self._decoded.get(key)
        if known is not None and known[0] == version:
            return known[1]
        node = wire.decode_node(obj)
        if len(self._decoded) >= self._nodes_max:
            self._decoded.clear()
        self._decoded[key] = version, node
        return node


# ── what is asked ──────────────────────────────────────────────────────────────────────────────────────────────────


def parse_args(body: bytes, nodes: NodeDecodeCache) -> ExtenderArgs:
    """ExtenderArgs, of filter and prioritize. Raises BadArguments."""
    found = _object(body)
    pod, listed, names = (
        _pod(found),
        field_ignoring_case(found, "Nodes"),
        field_ignoring_case(found, "NodeNames"),
    )
    if listed is not None:
        return _args_with_nodes(pod, listed, nodes)
    if names is None:
        raise BadExtenderArgs("both Nodes and NodeNames are missing")
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise BadExtenderArgs("NodeNames is not a list of names")
    return ExtenderArgs(pod, tuple(map(NodeName, dict.fromkeys(names))), None, {})


def parse_preemption_args(body: bytes) -> ExtenderPreemptionArgs:
    """ExtenderPreemptionArgs. Raises BadArguments."""
    found = _object(body)
    pod = _pod(found)
    whole, meta = (
        field_ignoring_case(found, "NodeNameToVictims"),
        field_ignoring_case(found, "NodeNameToMetaVictims"),
    )
    given = whole if whole else meta
    if given is None:
        raise BadExtenderArgs("both NodeNameToVictims and NodeNameToMetaVictims are missing")
    if not isinstance(given, dict):
        raise BadExtenderArgs("the victims are not a map by node")
    read = _whole_victims if whole else _meta_victims
    return ExtenderPreemptionArgs(pod, {NodeName(node): read(node, one) for node, one in given.items()})


def parse_binding_args(body: bytes) -> ExtenderBindingArgs:
    """ExtenderBindingArgs. Raises BadArguments. The names become part of a path that is asked for with our rights, so they must be
    names as Kubernetes has them: whoever calls could end the path, or the request, elsewhere."""
    found = _object(body)
    texts = {name: field_ignoring_case(found, name) for name in ("PodUID", "PodNamespace", "PodName", "Node")}
    for name, text in texts.items():
        form = _UID if name == "PodUID" else _NAME
        if not isinstance(text, str) or len(text) > _NAME_LENGTH_MAX or not form.fullmatch(text):
            raise BadExtenderArgs(f"{name} is missing or not a valid name")
    return ExtenderBindingArgs(
        PodUid(texts["PodUID"]), texts["PodNamespace"], texts["PodName"], NodeName(texts["Node"])
    )


def _args_with_nodes(pod: Pod, listed: Any, reader: NodeDecodeCache) -> ExtenderArgs:
    if not isinstance(listed, dict) or not isinstance(field_ignoring_case(listed, "Items") or [], list):
        raise BadExtenderArgs("Nodes is not a list of nodes")
    read: dict[NodeName, Node] = {}
    sent: dict[NodeName, Json] = {}
    for obj in field_ignoring_case(listed, "Items") or []:
        try:
            node = reader.decode(obj)
        except Malformed as error:
            raise BadExtenderArgs(str(error)) from error
        read[node.name], sent[node.name] = node, obj
    return ExtenderArgs(pod, tuple(read), tuple(read.values()), sent)


def _whole_victims(node: str, one: Any) -> ProtocolVictims:
    pods = {}
    for obj in _victims(node, one):
        try:
            pod = wire.decode_pod(obj).pod
        except Malformed as error:
            raise BadExtenderArgs(f"a victim on {node}: {error}") from error
        pods[pod.uid] = pod
    return ProtocolVictims(tuple(pods), pods, _violations(one))


def _meta_victims(node: str, one: Any) -> ProtocolVictims:
    uids = [field_ignoring_case(obj, "UID") if isinstance(obj, dict) else None for obj in _victims(node, one)]
    if not all(isinstance(uid, str) and uid for uid in uids):
        raise BadExtenderArgs(f"a victim on {node} has no UID")
    return ProtocolVictims(tuple(map(PodUid, map(str, uids))), {}, _violations(one))


def _victims(node: str, one: Any) -> list[Any]:
    pods = (field_ignoring_case(one, "Pods") or []) if isinstance(one, dict) else None
    if not isinstance(pods, list):
        raise BadExtenderArgs(f"the victims on {node} are not a list of pods")
    return pods


def _violations(one: Json) -> int:
    count = field_ignoring_case(one, "NumPDBViolations")
    return count if isinstance(count, int) else 0


def _pod(found: Json) -> Pod:
    obj = field_ignoring_case(found, "Pod")
    if not isinstance(obj, dict):
        raise BadExtenderArgs("Pod is missing")
    try:
        return wire.decode_pod(obj).pod
    except Malformed as error:
        raise BadExtenderArgs(str(error)) from error


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadExtenderArgs(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadExtenderArgs("not a JSON object")
    return found


def field_ignoring_case(obj: Json, name: str) -> Any:
    """By its name, or by its name in another case; None where it is absent."""
    if name in obj:
        return obj[name]
    wanted = name.lower()
    return next((value for key, value in obj.items() if key.lower() == wanted), None)


# ── what is answered ───────────────────────────────────────────────────────────────────────────────────────────────


def filter_result(
    args: ExtenderArgs,
    passed: Iterable[NodeName],
    failed: Mapping[NodeName, str],
    unresolvable: Mapping[NodeName, str],
) -> Json:
    """ExtenderFilterResult in the form in which the nodes came. `unresolvable`: evicting pods would not help there."""
    kept = set(passed)
    left = [name for name in args.names if name in kept]
    whole = args.nodes is not None
    return {
        "Nodes": {"metadata": {}, "items": [args.node_json[name] for name in left]} if whole else None,
        "NodeNames": None if whole else left,
        "FailedNodes": failed,
        "FailedAndUnresolvableNodes": unresolvable,
        "Error": "",
    }


def filter_error(words: str) -> Json:
    """No node is judged. kube-scheduler fails the pod with these words, or goes on without us where we are ignorable."""
    return {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": None,
        "FailedAndUnresolvableNodes": None,
        "Error": words,
    }


def host_priority_list(scores: Mapping[NodeName, int]) -> list[Json]:
    """HostPriorityList."""
    return [{"Host": node, "Score": score} for node, score in scores.items()]


def preemption_result(args: ExtenderPreemptionArgs, nodes: Iterable[NodeName]) -> Json:
    """ExtenderPreemptionResult: the nodes of those asked about that are kept, with the victims unchanged."""
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
    """ExtenderBindingResult; an empty error: it is bound."""
    return {"Error": error}
