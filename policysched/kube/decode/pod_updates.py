"""Decodes updates of large pods: what did not change is taken from the version before.

The API server delivers a whole pod for each change of a label, an annotation or a condition. A spec of a megabyte takes up
to 80 ms to decode, a comparison of its JSON 3 ms. Pods below `LARGE_BYTES` are decoded whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import orjson

from policysched.kube.decode.core_objects import Json
from policysched.kube.decode.pod_affinity import affinity_of_labels, spread_of_labels
from policysched.kube.decode.pod_groups import decode_group_references
from policysched.kube.decode.pods import decode_pod, observed_pod
from policysched.kube.decode.primitives import decode_object, string_map
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod

LARGE_BYTES = 16 * 1024
"""Of the spec as JSON. Smaller ones take less than 2 ms to decode."""

_OPTIONS = orjson.OPT_NON_STR_KEYS
_LABEL_KEYS = b'atchLabelKeys":'
"""Of `matchLabelKeys` and `mismatchLabelKeys`: terms that take values from the pod's labels."""
_CHANGING_META = (
    "labels",
    "annotations",
    "deletionTimestamp",
    "resourceVersion",
    "generation",
    "managedFields",
)


@dataclass(frozen=True, slots=True)
class DecodedPod:
    """A large pod. `digest` is that of everything that `pod` was decoded from, except `_CHANGING_META` and the condition
    PodScheduled, which no scheduler reads."""

    digest: bytes
    pod: Pod
    reads_label_keys: bool


def decode_pod_update(obj: Json, before: DecodedPod | None) -> tuple[ObservedPod, DecodedPod | None]:
    """The pod, and what the next update of it can be decoded with. Raises MalformedObject."""
    spec_json = _json(obj.get("spec"))
    if spec_json is None or len(spec_json) < LARGE_BYTES:
        return decode_pod(obj), None
    digest = decode_object("Pod", obj, lambda read: _digest(read, spec_json))
    if before is None or before.digest != digest:
        observed = decode_pod(obj)
        return observed, DecodedPod(digest, observed.pod, _LABEL_KEYS in spec_json)
    observed = decode_object("Pod", obj, lambda read: observed_pod(read, _updated(read, before)))
    return observed, replace(before, pod=observed.pod)


def _updated(obj: Json, before: DecodedPod) -> Pod:
    pod, meta, spec = before.pod, obj["metadata"], obj["spec"]
    labels = string_map(meta.get("labels"), "metadata.labels")
    if labels != pod.labels and before.reads_label_keys:
        return decode_pod(obj).pod
    return replace(
        pod,
        labels=labels,
        annotations=string_map(meta.get("annotations"), "metadata.annotations"),
        terminating=meta.get("deletionTimestamp") is not None,
        pod_affinity=affinity_of_labels(pod.pod_affinity, labels),
        spread=spread_of_labels(pod.spread, labels),
        group_references=decode_group_references(meta, spec),
    )


def _digest(obj: Json, spec_json: bytes) -> bytes:
    meta, status = obj["metadata"], obj.get("status") or {}
    conditions = [
        condition for condition in status.get("conditions") or () if condition.get("type") != "PodScheduled"
    ]
    stable_meta = {key: value for key, value in meta.items() if key not in _CHANGING_META}
    digest = blake2b(spec_json, digest_size=16)
    for part in (stable_meta, {**status, "conditions": conditions}):
        digest.update(b"\0" + orjson.dumps(part, option=_OPTIONS))
    return digest.digest()


def _json(spec: Any) -> bytes | None:
    """None: it is malformed, as the decoder will say."""
    if not isinstance(spec, Mapping):
        return None
    try:
        return orjson.dumps(spec, option=_OPTIONS)
    except orjson.JSONEncodeError:
        return None
