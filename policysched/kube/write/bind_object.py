"""The Binding that is sent for a pod, and what the pod shows of it."""

import orjson

from policysched.kube.client.api import ApiStatusError, InvalidResponse
from policysched.scheduler.commands import Bind
from policysched.scheduler.events import BindConfirmed, BindLost, BindRefused

BindOutcome = BindConfirmed | BindRefused | BindLost


def bind_outcome_from_pod(bind: Bind, pod: dict[str, object], reason: ApiStatusError) -> BindOutcome:
    """Raises InvalidResponse."""
    meta, spec = pod.get("metadata"), pod.get("spec")
    if not isinstance(meta, dict) or not isinstance(spec, dict):
        raise InvalidResponse(f"the answer for {bind.namespace}/{bind.name} is not a pod")
    if meta.get("uid") != bind.uid:
        return BindLost(bind.uid, f"the name now belongs to another pod: {reason.message}")
    node = spec.get("nodeName")
    if node == bind.node:
        return BindConfirmed(bind.uid, bind.node)
    if node:
        return BindLost(bind.uid, f"another client bound it to {node}: {reason.message}")
    return BindRefused(bind.uid, reason.message)


def binding_body(bind: Bind) -> bytes:
    """With the UID, the server refuses to bind another pod of the same name."""
    return orjson.dumps(
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": bind.name, "namespace": bind.namespace, "uid": bind.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node},
        }
    )
