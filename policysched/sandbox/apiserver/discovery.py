"""Discovery and OpenAPI documents, which clients read first.

Discovery is served in the legacy form (one document per group and version) and in the aggregated form.
OpenAPI v3 lists for each kind that PATCH takes `fieldValidation` and `dryRun`, which makes kubectl
leave validation to the server, and has the schemas for `kubectl explain`.
"""

from collections.abc import Sequence
from typing import Any

from policysched.sandbox.apiserver.errors import StatusError, not_served
from policysched.sandbox.apiserver.kinds import SUBRESOURCE_KINDS, SUBRESOURCE_VERBS, VERBS, ResourceKind
from policysched.sandbox.apiserver.schemas import schemas_of

Json = dict[str, Any]

VERSION: Json = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+policysched-sandbox",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
"""What `/version` says. Clients compare major and minor with their own; the rest tells people what this is."""


def _groups(kinds: Sequence[ResourceKind]) -> dict[str, list[str]]:
    """Groups with their versions, without the core group, in order of first appearance."""
    groups: dict[str, list[str]] = {}
    for kind in kinds:
        if kind.group and kind.version not in groups.setdefault(kind.group, []):
            groups[kind.group].append(kind.version)
    return groups


def discovery(kinds: Sequence[ResourceKind], path: str, *, aggregated: bool) -> Json:
    """The document at `/api`, `/apis`, `/api/VERSION`, `/apis/GROUP` or `/apis/GROUP/VERSION`."""
    parts = path.strip("/").split("/")
    groups = _groups(kinds)
    match parts:
        case ["api"]:
            return (
                _aggregated(kinds, {"": ["v1"]})
                if aggregated
                else {"kind": "APIVersions", "versions": ["v1"]}
            )
        case ["apis"]:
            if aggregated:
                return _aggregated(kinds, groups)
            listed = [_group(group, versions) for group, versions in groups.items()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case ["api", version] if version == "v1":
            return _resources(kinds, "", version)
        case ["apis", group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, groups[group])}
        case ["apis", group, version] if version in groups.get(group, ()):
            return _resources(kinds, group, version)
    raise not_served("/".join(parts[1:]) or path)


def _group(group: str, versions: list[str]) -> Json:
    listed = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def _resources(kinds: Sequence[ResourceKind], group: str, version: str) -> Json:
    resources: list[Json] = []
    for kind in kinds:
        if (kind.group, kind.version) != (group, version):
            continue
        row: Json = {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.name,
            "verbs": list(VERBS),
        }
        if kind.short_names:
            row["shortNames"] = list(kind.short_names)
        if kind.categories:
            row["categories"] = list(kind.categories)
        resources.append(row)
        for name in kind.subresources:
            answer: Json = {
                "name": f"{kind.plural}/{name}",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind.name,
                "verbs": list(SUBRESOURCE_VERBS[name]),
            }
            if name in SUBRESOURCE_KINDS:
                other = SUBRESOURCE_KINDS[name]
                answer.update(group=other.group, version=other.version, kind=other.kind)
            resources.append(answer)
    group_version = f"{group}/{version}" if group else version
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    }


def _aggregated(kinds: Sequence[ResourceKind], groups: dict[str, list[str]]) -> Json:
    items = [
        {
            "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
            "versions": [
                {
                    "version": version,
                    "freshness": "Current",
                    "resources": [
                        _aggregated_resource(kind)
                        for kind in kinds
                        if (kind.group, kind.version) == (group, version)
                    ],
                }
                for version in versions
            ],
        }
        for group, versions in groups.items()
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _aggregated_resource(kind: ResourceKind) -> Json:
    subresources = []
    for name in kind.subresources:
        other = SUBRESOURCE_KINDS.get(name)
        response = (
            {"group": other.group, "version": other.version, "kind": other.kind}
            if other
            else {"group": kind.group, "version": kind.version, "kind": kind.name}
        )
        subresources.append(
            {"subresource": name, "responseKind": response, "verbs": list(SUBRESOURCE_VERBS[name])}
        )
    answer: Json = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.name},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(VERBS),
    }
    if kind.short_names:
        answer["shortNames"] = list(kind.short_names)
    if kind.categories:
        answer["categories"] = list(kind.categories)
    if subresources:
        answer["subresources"] = subresources
    return answer


def openapi(kinds: Sequence[ResourceKind], path: str) -> Json:
    """`/openapi/v3` and its documents, one per group and version. `/openapi/v2` is rejected."""
    parts = path.strip("/").split("/")
    if parts[:2] != ["openapi", "v3"]:
        raise StatusError(404, "NotFound", f"the sandbox does not serve {path}: it has OpenAPI v3 only")
    roots = {_root(kind.group, kind.version).strip("/"): (kind.group, kind.version) for kind in kinds}
    if len(parts) == 2:
        return {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in roots}}
    group_version = roots.get("/".join(parts[2:]))
    if group_version is None:
        raise StatusError(404, "NotFound", f"the sandbox does not serve {path}")
    group, version = group_version
    paths = {}
    for kind in kinds:
        if (kind.group, kind.version) == group_version:
            scope = "namespaces/{namespace}/" if kind.namespaced else ""
            paths[f"{_root(group, version)}/{scope}{kind.plural}/{{name}}"] = {
                "patch": _patch_operation(kind)
            }
    return {
        "openapi": "3.0.0",
        "info": {"title": "policysched sandbox", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {
            "schemas": schemas_of(
                tuple(kind for kind in kinds if (kind.group, kind.version) == group_version)
            )
        },
    }


def _root(group: str, version: str) -> str:
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def _patch_operation(kind: ResourceKind) -> Json:
    # Strategic merge patches are supported but not announced: kubectl would need schemas to make
    # them. Without the announcement it uses its built-in merge keys.
    announced = ("application/json-patch+json", "application/merge-patch+json")
    schema: Json = {"schema": {"type": "object"}}
    return {
        "operationId": f"patch{kind.name}",
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in ("dryRun", "fieldManager", "fieldValidation")
        ],
        "requestBody": {"content": dict.fromkeys(announced, schema), "required": True},
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {"group": kind.group, "kind": kind.name, "version": kind.version},
    }
