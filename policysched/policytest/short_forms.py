"""Expands short forms of nodes, pods and namespaces to Kubernetes objects. Complete objects are unchanged."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.text import Diagnostic, Span

Json = dict[str, Any]

NODE_CPU, NODE_MEMORY, NODE_PODS = "8", "32Gi", "110"
_ZONE = "topology.kubernetes.io/zone"
_HOSTNAME = "kubernetes.io/hostname"


def expand_namespace(short: Json) -> Json:
    if "metadata" in short:
        return {**short, "kind": "Namespace"}
    return {"kind": "Namespace", "metadata": dict(short)}


def expand_node(short: Json) -> Json:
    """A ready node with its hostname label, and default capacity where none is given."""
    if "metadata" in short:
        return {**short, "kind": "Node"}
    labels = {_HOSTNAME: short["name"], **({_ZONE: short["zone"]} if "zone" in short else {})}
    allocatable = {
        "cpu": short.get("cpu", NODE_CPU),
        "memory": short.get("memory", NODE_MEMORY),
        "pods": short.get("pods", NODE_PODS),
        **short.get("resources", {}),
    }
    return {
        "kind": "Node",
        "metadata": {
            "name": short["name"],
            "labels": {**labels, **short.get("labels", {})},
            "annotations": short.get("annotations", {}),
        },
        "spec": {
            "taints": [_parse_taint(text) for text in short.get("taints", ())],
            "unschedulable": short.get("unschedulable", False),
        },
        "status": {
            "allocatable": _quantity_texts(allocatable),
            "conditions": [{"type": "Ready", "status": "True" if short.get("ready", True) else "False"}],
        },
    }


def expand_pod(short: Json, *, scheduler: str) -> Json:
    """A pod of the policy unless it names another scheduler; running if it has a node."""
    if "metadata" in short:
        spec = {"schedulerName": scheduler, **(short.get("spec") or {})}
        return {**short, "kind": "Pod", "spec": spec}
    requests = {key: short[key] for key in ("cpu", "memory") if key in short} | short.get("requests", {})
    resources = {"requests": _quantity_texts(requests), "limits": _quantity_texts(short.get("limits", {}))}
    return {
        "kind": "Pod",
        "metadata": {
            "name": short["name"],
            "namespace": short.get("namespace", "default"),
            "labels": short.get("labels", {}),
            "annotations": short.get("annotations", {}),
        },
        "spec": {
            "schedulerName": short.get("schedulerName", scheduler),
            "priority": short.get("priority", 0),
            "containers": [{"name": "main", "image": "example", "resources": resources}],
            **({"nodeName": short["node"]} if "node" in short else {}),
            **short.get("spec", {}),
        },
        "status": {"phase": short.get("phase", "Running" if "node" in short else "Pending")},
    }


def unknown_name(noun: str, name: str, known: Iterable[str], span: Span) -> Diagnostic:
    """The diagnostic of an unknown name."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    known_names = (
        f"known: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "none is known"
    )
    help_text = f"did you mean `{close[0]}`?" if close else known_names
    return make_diagnostic("PS702", f"unknown {noun} `{name}`", span, label="unknown", help=help_text)


def _quantity_texts(quantities: Json) -> dict[str, str]:
    return {name: str(amount) for name, amount in quantities.items()}


def _parse_taint(text: str) -> dict[str, str]:
    rest, _, effect = text.partition(":")
    key, _, value = rest.partition("=")
    return {"key": key, "value": value, "effect": effect}
