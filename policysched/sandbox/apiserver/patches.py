"""Patches: JSON patch (RFC 6902), merge patch (RFC 7386) and Kubernetes' strategic merge patch.

All three change the document in place; the caller passes a copy. A strategic merge patch differs from
a merge patch in lists: some are merged by a key, some as sets, others are replaced; `$patch`,
`$retainKeys`, `$setElementOrder` and `$deleteFromPrimitiveList` control it. `MERGED_LISTS` has the
merge keys, from the `patchMergeKey` and `patchStrategy` tags of the API types.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jsonpatch import InvalidJsonPatch, JsonPatchException, JsonPointerException, apply_patch

from policysched.sandbox.apiserver.errors import StatusError, bad_request, unsupported_media_type
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.requests import ServerRequest, read_body

Json = dict[str, Any]

MERGE_AS_SET = ""
"""Instead of a merge key: the list holds plain values and is merged as a set."""

MERGED_LISTS: Mapping[str, str] = {
    "metadata.ownerReferences": "uid",
    "metadata.finalizers": MERGE_AS_SET,
    "spec.finalizers": MERGE_AS_SET,
    "status.conditions": "type",
    "status.addresses": "type",
    "status.hostIPs": "ip",
    "status.podIPs": "ip",
    "status.resourceClaimStatuses": "name",
    "spec.podCIDRs": MERGE_AS_SET,
    "spec.ports": "port",
    "imagePullSecrets": "name",
    "secrets": "name",
    # The rest is the pod's spec, wherever it is: in a Pod, or in the template of a controller.
    "PodSpec.volumes": "name",
    "PodSpec.containers": "name",
    "PodSpec.initContainers": "name",
    "PodSpec.ephemeralContainers": "name",
    "PodSpec.imagePullSecrets": "name",
    "PodSpec.hostAliases": "ip",
    "PodSpec.topologySpreadConstraints": "topologyKey",
    "PodSpec.schedulingGates": "name",
    "PodSpec.resourceClaims": "name",
    "Container.ports": "containerPort",
    "Container.env": "name",
    "Container.volumeMounts": "mountPath",
    "Container.volumeDevices": "devicePath",
}

_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_POD_SPECS = ("spec", "spec.template.spec", "spec.jobTemplate.spec.template.spec")
_TEMPLATE_METADATA = (
    "spec.template.metadata.",
    "spec.jobTemplate.metadata.",
    "spec.jobTemplate.spec.template.metadata.",
)


def merge_key(path: tuple[str, ...]) -> str | None:
    """How the list at `path` (without indexes) is merged: a key, `MERGE_AS_SET`, or None: replaced."""
    dotted = ".".join(path)
    for template in _TEMPLATE_METADATA:
        if dotted.startswith(template):
            dotted = "metadata." + dotted.removeprefix(template)
    if dotted in MERGED_LISTS:
        return MERGED_LISTS[dotted]
    for spec in _POD_SPECS:
        if dotted.startswith(spec + "."):
            subpath = path[len(spec.split(".")) :]
            if len(subpath) == 1 and f"PodSpec.{subpath[0]}" in MERGED_LISTS:
                return MERGED_LISTS[f"PodSpec.{subpath[0]}"]
            if len(subpath) == 2 and subpath[0] in _CONTAINER_LISTS:
                return MERGED_LISTS.get(f"Container.{subpath[1]}")
    return None


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def strategic_merge_patch(target: Json, patch: Json) -> Json:
    """Merge as for `kubectl apply` and `kubectl edit`. Raises a 400 `StatusError` for an invalid patch."""
    merged = _merge_map(target, patch, ())
    if not isinstance(merged, dict):
        raise bad_request("a strategic merge patch must leave an object")
    return merged


def _merge_map(target: Any, patch: Json, path: tuple[str, ...]) -> Any:
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"unknown $patch directive {directive!r} at {'.'.join(path) or 'the top'}")
    merged = target if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        retained_keys = set(patch["$retainKeys"])
        for key in [key for key in merged if key not in retained_keys]:
            del merged[key]
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            merged[name] = [item for item in merged.get(name) or [] if item not in value]
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merge_map(merged.get(key), value, (*path, key))
        elif isinstance(value, list):
            order = patch.get(f"$setElementOrder/{key}")
            merged[key] = _merge_list(merged.get(key), value, (*path, key), order)
        else:
            merged[key] = value
    for key, order in patch.items():
        if key.startswith("$setElementOrder/"):
            name = key.partition("/")[2]
            if name not in patch and isinstance(merged.get(name), list):
                merged[name] = _in_order(merged[name], order, merge_key((*path, name)))
    return merged


def _merge_list(target: Any, patch: list[Any], path: tuple[str, ...], order: list[Any] | None) -> list[Any]:
    key = merge_key(path)
    current = list(target) if isinstance(target, list) else []
    if key is None:
        return [_without_directives(item) for item in patch]
    if key == MERGE_AS_SET:
        merged = current + [item for item in patch if item not in current]
        return _in_order(merged, order, key)
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and item.get("$patch") == "replace")]
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(current) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            current = [old for old in current if old.get(key) != item[key]]
        elif at is None:
            current.append(_merge_map({}, item, path))
        else:
            current[at] = _merge_map(current[at], item, path)
    return _in_order(current, order, key)


def _in_order(items: list[Any], order: list[Any] | None, key: str | None) -> list[Any]:
    """Reorder items as the patch lists them; other items keep their relative position."""
    if not order or key is None:
        return items
    names = order if key == MERGE_AS_SET else [entry.get(key) for entry in order]
    rank = {name: at for at, name in enumerate(names)}

    def name_of(item: Any) -> Any:
        return item if key == MERGE_AS_SET else item.get(key)

    named = sorted((item for item in items if name_of(item) in rank), key=lambda item: rank[name_of(item)])
    ordered: list[Any] = []
    waiting = iter(named)
    left = len(named)
    for item in items:
        if name_of(item) in rank:
            ordered.append(next(waiting))
            left -= 1
        else:
            ordered.append(item)
    assert left == 0, f"{left} items lost while ordering by {names}"
    return ordered


def _without_directives(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_directives(item) for key, item in value.items() if not key.startswith("$")}
    return value


def json_patch(document: Any, operations: Any) -> Any:
    """RFC 6902. Raises a 422 `StatusError` if an operation cannot be applied, as kube-apiserver does."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    for operation in operations:
        if (
            not isinstance(operation, dict)
            or "op" not in operation
            or not isinstance(operation.get("path"), str)
        ):
            raise bad_request(f"a JSON patch operation has an op and a path: {operation!r}")
        if operation["path"] and not operation["path"].startswith("/"):
            raise bad_request(f"not a JSON pointer: {operation['path']!r}")
        try:
            document = apply_patch(document, [operation], in_place=True)
        except InvalidJsonPatch as error:
            raise bad_request(f"invalid JSON patch operation {operation!r}: {error}") from None
        except (JsonPatchException, JsonPointerException) as error:
            message = f"the server rejected our request due to an error in our request: {operation['op']} {operation['path']}: {error}"
            raise StatusError(422, "Invalid", message) from None
    return document


_STRATEGIC = "application/strategic-merge-patch+json"
_PATCHES: Mapping[str, Callable[[Json, Any], Any]] = {
    "application/json-patch+json": json_patch,
    "application/merge-patch+json": merge_patch,
    _STRATEGIC: strategic_merge_patch,
}


def read_patch(call: ServerRequest, kind: ResourceKind) -> Callable[[Json], Any]:
    """The body of a PATCH as a function. A custom resource has no strategic merge patch."""
    media_type = call.content_type.partition(";")[0].strip()
    accepted = [name for name in _PATCHES if kind.custom is None or name != _STRATEGIC]
    if media_type not in accepted:
        raise unsupported_media_type(
            f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
        )
    apply, patch = _PATCHES[media_type], read_body(call)
    if apply is not json_patch and not isinstance(patch, dict):
        raise bad_request(f"a patch of type {media_type} is an object")
    return lambda obj: apply(obj, patch)
