"""PodGroups of other schedulers as custom resources, which their own manifests would install."""

from tests.controlplane.api import Json

CONDITION = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in ("type", "status", "reason", "message", "transitionID")},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
    },
}


def crd(group: str, version: str, status: Json) -> Json:
    """A PodGroup as scheduler-plugins and Volcano define it, with the fields that are used here."""
    counts = {name: {"type": "integer"} for name in ("running", "succeeded", "failed")}
    resources = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
    spec = {
        "type": "object",
        "properties": {"minMember": {"type": "integer", "format": "int32"}, "minResources": resources},
    }
    schema = {
        "type": "object",
        "properties": {
            "spec": spec,
            "status": {"type": "object", "properties": {"phase": {"type": "string"}, **counts, **status}},
        },
    }
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"podgroups.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "names": {
                "kind": "PodGroup",
                "listKind": "PodGroupList",
                "plural": "podgroups",
                "singular": "podgroup",
            },
            "scope": "Namespaced",
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }
