"""Permissions that RBAC rules grant, and permissions that a recorded run used, in the same form for
comparison.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.controlplane.api import Api, Json
from tests.controlplane.waiting import wait_for


@dataclass(frozen=True, order=True)
class Permission:
    """One verb on one resource. `namespace` is the namespace of a Role ("" for a ClusterRole),
    `name` the object that a rule names ("" for any).
    """

    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return (
            f"{self.verb} {self.group or 'core'}/{self.resource}{f' {self.name}' if self.name else ''}{where}"
        )

    def allows(self, other: "Permission") -> bool:
        """Whether the permission `other`, which a request needs, is covered by this one."""
        return (self.group, self.resource, self.verb) == (other.group, other.resource, other.verb) and (
            self.namespace in ("", other.namespace) and self.name in ("", other.name)
        )


def granted(manifests: Iterable[Json]) -> set[Permission]:
    """All permissions of these Roles and ClusterRoles; wildcards are `*`."""
    return {
        Permission(group, resource, verb, manifest["metadata"].get("namespace", ""), name)
        for manifest in manifests
        if manifest["kind"] in ("Role", "ClusterRole")
        for rule in manifest["rules"]
        if "resources" in rule  # paths such as /metrics are others' permissions
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def asked(records: Iterable[Json]) -> dict[Permission, set[int]]:
    """The permissions that the audit log's requests needed, with the status codes of their
    responses. A list or watch of one object by a field selector counts as one with that name, as
    for the API server's authorizer.
    """
    used: dict[Permission, set[int]] = {}
    for record in records:
        about = record.get("objectRef")
        if about is None:  # such as /version: everybody may use discovery
            continue
        resource = (
            f"{about['resource']}/{about['subresource']}" if "subresource" in about else about["resource"]
        )
        name = "" if record["verb"] == "create" else about.get("name", "")
        permission = Permission(
            about.get("apiGroup", ""), resource, record["verb"], about.get("namespace", ""), name
        )
        used.setdefault(permission, set()).add(record["responseStatus"]["code"])
    return used


def wait_until_allowed(api: Api, account: str, permissions: Iterable[Permission]) -> None:
    """Wait for kube-apiserver's authorizer, which receives roles by watches and so some time after
    they were applied. `account` is NAMESPACE:NAME of a ServiceAccount.
    """
    for permission in permissions:
        wait_for(
            lambda wanted=permission: allowed(api, account, wanted),
            f"{account} to be allowed to {permission}",
        )  # type: ignore[misc]


def allowed(api: Api, account: str, permission: Permission) -> bool:
    """The API server's current answer."""
    resource, _, subresource = permission.resource.partition("/")
    attributes = {
        "group": permission.group,
        "resource": resource,
        "subresource": subresource,
        "verb": permission.verb,
        "namespace": permission.namespace,
        "name": permission.name,
    }
    answer = api.post(
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {"spec": {"user": f"system:serviceaccount:{account}", "resourceAttributes": attributes}},
    )
    is_allowed: bool = answer["status"]["allowed"]
    return is_allowed
