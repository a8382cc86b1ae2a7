"""What is kept of pods with thousands of items, such as tolerations and terms, which take several times their JSON in memory.

A pod that exceeds the budget of a decision without a node is decided about on no cluster: its items are dropped, and those of an
ended pod beyond a quarter of the budget. So are hundreds of labels or annotations, thousands of scheduling gates, and long texts of an
ended pod, which only totals over all pods read. A pod on a node, or nominated, counts for others: it is kept with as many of the items
that others read as a quarter of the budget allows.
`Pod.too_large` says why it is not decided about, and `Pod.dropped` of which fields items are missing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice
from typing import Any, TypeVar

from policysched.cluster.pod_index import compact_ended_pod
from policysched.evaluate.decision_cost import ITEM_OPERATIONS, DecisionCost
from policysched.kube.decode.core_objects import Json
from policysched.kube.decode.counted_names import CountedNames
from policysched.kube.decode.first_items import COUNTED_ALWAYS, with_first_items
from policysched.kube.decode.pod_updates import DecodedPod, PodPart, Role
from policysched.model.copies import changed_copy
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import HostPort, HostPortNumbers, Pod

_DecodedUpdate = tuple[ObservedPod, DecodedPod | None]
DecodePod = Callable[[DecodedPod | None], _DecodedUpdate]
"""Decodes a pod with what was decoded before."""
Item = TypeVar("Item")

_READ_TO_PLACE_IT: Mapping[str, Any] = {
    "node_selector": {},
    "tolerations": (),
    "affinity": None,
    "spread": (),
    "images": (),
    "image_volumes": (),
    "device_claims": (),
    "extended": (),
    "uncovered": (),
}
_ITEMS: Mapping[str, Any] = {
    **_READ_TO_PLACE_IT,
    "pod_affinity": None,
    "host_ports": (),
    "claims": (),
    "disks": (),
    "mounts": (),
    "requests": {},
    "limits": {},
}

_NO_ITEMS = frozenset(("host_port_numbers", "uncovered"))
_NO_CHANGES: Mapping[str, Any] = {}

_ENDED_PHASES = ("Succeeded", "Failed")
_METADATA = frozenset(("labels", "annotations"))
_NAMED = _METADATA | {"requests"}
_METADATA_MAX = 256
"""Of labels, and of annotations. Pods on nodes are indexed by each key of a label, which takes 0.8 KB."""
_TOO_MUCH_METADATA = (
    f"the pod has more than {_METADATA_MAX} labels or annotations; it is scheduled with fewer"
)
_GATES_MAX = 4096
_TOO_MANY_GATES = f"the pod has more than {_GATES_MAX} scheduling gates; it is scheduled with fewer"

_COUNTED_PART = 4
"""An operation is about a byte of what is kept of a pod on a node: half a megabyte by default."""
_IN_PART = "it counts in part for others"
_TOO_MUCH_ENDED = "the pod has ended, and has more items, labels or texts than are kept"
_ENDED_TEXT_MAX = 8 * 1024
"""Characters of the labels of an ended pod, of its annotations, and of its images: nothing limits how many such pods there are."""
_TOO_MANY_ITEMS_TO_COUNT = f"the pod has more items than the budget of a decision allows (settings: scheduling.decision_budget); {_IN_PART}"
_TOO_MUCH_METADATA_TO_COUNT = f"the pod has more than {_METADATA_MAX} labels or annotations; {_IN_PART}"


def decode_without_unread_items(
    decode: DecodePod, before: DecodedPod | None, decision_budget: int, names: CountedNames
) -> _DecodedUpdate:
    """What `decode` returns, without the items of a pod that no cluster decides about, and of one that counts for others without
    those that nobody reads and those beyond a limit. `Pod.too_large` says why they are missing. `decision_budget`: in operations
    (`evaluate.decision_cost`). `names`: those of requests, labels and annotations that are kept first."""
    revision = names.known_revision
    observed, decoded = decode(before)
    role, part = _role(observed), None
    if observed.pod.too_large:
        assert before is not None and before.part is not None, f"of {observed.pod.full_name} no part is known"
        if role != before.part.role or _is_known_whole(observed.pod) or lacks_names(before, revision):
            observed, decoded = decode(None)
        else:
            part = before.part
    elif role == "counted" and observed.pod.ready and before is not None and observed.pod is before.pod:
        return observed, decoded  # it is ready, so it was on its node before
    if decoded is None:
        return observed, None
    pod, changes = observed.pod, _NO_CHANGES
    if role == "ended":
        changes = _without_items(pod, decision_budget // _COUNTED_PART)
        changes = {**changes, **_without_long_texts(changed_copy(pod, **changes), names)}
        changes = changes and {**changes, "too_large": _TOO_MUCH_ENDED}
    elif role == "pending":
        changes = _without_items(pod, decision_budget)
    elif observed.node or pod.too_large or _without_items(pod, decision_budget):
        # Otherwise it is only nominated, and is still to be decided about: that needs all of it.
        changes = _without_uncounted_items(pod, decision_budget // _COUNTED_PART, names)
    if pod.dropped and pod.dropped & _METADATA:
        changes = {"dropped": pod.dropped - _METADATA, **changes}
    if role == "ended":
        decoded = (
            None  # it hardly changes any more, and is kept without what placement reads (`compact_ended_pod`)
        )
    if not changes:
        return observed, decoded
    pod = changed_copy(pod, **changes)
    kept = None if decoded is None else replace(decoded, pod=pod, part=part or PodPart(role, revision))
    return replace(observed, pod=pod), kept


def shortened(pod: Json, decision_budget: int, names: CountedNames) -> Json:
    """The JSON of a pod with thousands of items without most of those that are dropped, so that they are not decoded. One that waits
    for a node is left whole, since its message counts them."""
    if not pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in _ENDED_PHASES:
        return pod
    return with_first_items(pod, decision_budget // _COUNTED_PART, names.resources)


def counts_for_others(pod: Json) -> bool:
    """Whether the JSON, of whatever form, is that of a pod that has a node or is nominated, and has not ended."""
    spec, status = (part if isinstance(part := pod.get(name), Mapping) else {} for name in ("spec", "status"))
    return (
        bool(spec.get("nodeName") or status.get("nominatedNodeName"))
        and status.get("phase") not in _ENDED_PHASES
    )


def held(observed: ObservedPod) -> ObservedPod:
    """What a standby keeps of a pod: of an ended one no more than the cluster, as nothing limits how many there are."""
    return replace(observed, pod=compact_ended_pod(observed.pod)) if observed.finished else observed


def _role(observed: ObservedPod) -> Role:
    if observed.finished:
        return "ended"
    return "counted" if observed.node or observed.nominated_node else "pending"


def lacks_names(decoded: DecodedPod, revision: int) -> bool:
    """Whether some of its items may be read since this revision of `CountedNames`, and not when it was decoded."""
    part = decoded.part
    is_current = part is None or part.role != "counted" or part.revision >= revision
    return not is_current and not decoded.pod.dropped.isdisjoint(_NAMED)


def _is_known_whole(pod: Pod) -> bool:
    """Whether only labels and annotations were dropped, which can be kept by now."""
    return pod.dropped <= _METADATA and not _has_too_much_metadata(pod)


def _has_too_much_metadata(pod: Pod) -> bool:
    return max(len(pod.labels), len(pod.annotations)) > _METADATA_MAX


def _without_items(pod: Pod, decision_budget: int) -> Mapping[str, Any]:
    """The changes to a pod that does not count for others; none if it may be decided about."""
    dropped, message = dict[str, Any](), DecisionCost(pod).over_budget_message(0, decision_budget)
    if message:
        dropped |= _ITEMS
    if len(pod.gates) > _GATES_MAX:
        message = message or _TOO_MANY_GATES
        dropped |= {**_ITEMS, "gates": ()}
    if _has_too_much_metadata(pod):
        message = message or pod.too_large or _TOO_MUCH_METADATA
        dropped |= {"labels": {}, "annotations": {}}
    return _changes(pod, dropped, message)


def _without_uncounted_items(pod: Pod, limit: int, names: CountedNames) -> Mapping[str, Any]:
    """The changes to a pod that counts for others."""
    kept, message = dict[str, Any](), ""
    if DecisionCost(pod).operations(0, limit) > limit:
        message = _TOO_MANY_ITEMS_TO_COUNT
        kept |= _counted_items(pod, limit, names)
    if _has_too_much_metadata(pod):
        message = message or pod.too_large or _TOO_MUCH_METADATA_TO_COUNT
        for name in ("labels", "annotations"):
            kept[name] = _first_texts(getattr(pod, name), names.metadata_keys)
    return _changes(pod, kept, message)


def _first_texts(texts: Mapping[str, str], keys: Sequence[str]) -> Mapping[str, str]:
    """Those of these keys, and as many others as there is room."""
    read = {key: texts[key] for key in keys if key in texts}
    others = ((key, text) for key, text in texts.items() if key not in read)
    return dict(islice(chain(read.items(), others), _METADATA_MAX))


def _without_long_texts(pod: Pod, names: CountedNames) -> Mapping[str, Any]:
    """The changes to an ended pod. Of its labels and annotations it keeps what policies read, and the shortest others."""
    kept = dict[str, Any]()
    for name in ("labels", "annotations"):
        texts: Mapping[str, str] = getattr(pod, name)
        sizes = {key: len(key) + len(text) for key, text in texts.items()}
        if sum(sizes.values()) > _ENDED_TEXT_MAX:
            shortest = sorted(sizes, key=sizes.__getitem__)
            ends = accumulate(sizes[key] for key in shortest)
            keys = [key for key, end in zip(shortest, ends, strict=True) if end <= _ENDED_TEXT_MAX]
            kept[name] = {key: texts[key] for key in (*names.metadata_keys, *keys) if key in texts}
    if sum(map(len, pod.images)) > _ENDED_TEXT_MAX:
        kept["images"] = ()
    return _changes(pod, kept, None)


def _changes(pod: Pod, kept: Mapping[str, Any], message: str | None) -> Mapping[str, Any]:
    """The changes that leave of a pod what is `kept` of these fields. None if that is nothing."""
    if not kept:
        return _NO_CHANGES
    dropped = {name for name, value in kept.items() if value != getattr(pod, name)} - _NO_ITEMS
    return {**kept, "too_large": message or "", "dropped": pod.dropped - _METADATA | dropped}


def _counted_items(pod: Pod, limit: int, names: CountedNames) -> Mapping[str, Any]:
    """The first items within the limit, the amounts that others need most before the rest. Host ports are all kept, as numbers if
    they exceed it. The affinity terms come last, all or none, since they are for the pod itself."""
    room = limit // ITEM_OPERATIONS

    def within_room(items: Iterable[Item], size: Callable[[Item], int] = lambda _: 1) -> Iterator[Item]:
        nonlocal room
        for item in items:
            if size(item) > room:
                return
            room -= size(item)
            yield item

    in_use = dict.fromkeys(name for name in pod.requests if name in COUNTED_ALWAYS or name in names.resources)
    resources = list(within_room(chain(in_use, (name for name in pod.requests if name not in in_use))))
    kept: dict[str, Any] = {
        **_READ_TO_PLACE_IT,
        "requests": {name: pod.requests[name] for name in resources},
        "limits": {name: pod.limits[name] for name in resources if name in pod.limits},
        "host_ports": tuple(within_room(pod.host_ports)) if len(pod.host_ports) <= room else (),
        "claims": tuple(within_room(pod.claims)),
        "mounts": tuple(within_room(pod.mounts)),
        "disks": tuple(within_room(pod.disks, lambda disk: len(disk.monitors) or 1)),
    }
    if len(kept["host_ports"]) < len(pod.host_ports):
        kept["host_port_numbers"] = _as_numbers(pod.host_ports)
    terms = DecisionCost(changed_copy(pod, **{**_ITEMS, "pod_affinity": pod.pod_affinity}))
    left = room * ITEM_OPERATIONS
    return kept if terms.operations(0, left) <= left else {**kept, "pod_affinity": None}


def _as_numbers(ports: Iterable[HostPort]) -> tuple[HostPortNumbers, ...]:
    numbers = dict[str, list[int]]()
    for port in ports:
        numbers.setdefault(port.protocol, []).append(port.port)
    return tuple([HostPortNumbers.of(protocol, numbers[protocol]) for protocol in sorted(numbers)])
