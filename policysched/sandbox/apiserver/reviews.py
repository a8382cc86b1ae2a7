"""Who may do what: everybody everything, because the sandbox has no users. `kubectl auth can-i` and `whoami` ask this."""

from typing import Any

Json = dict[str, Any]

_USER = {"username": "sandbox", "groups": ["system:masters", "system:authenticated"]}
_ALL_RULES = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}
_ALLOWED = {"allowed": True, "reason": "the sandbox has no authorization"}
_AUTHORIZATION, _AUTHENTICATION = "authorization.k8s.io/v1", "authentication.k8s.io/v1"

_STATUSES: dict[str, tuple[str, Json]] = {
    f"/apis/{_AUTHORIZATION}/selfsubjectaccessreviews": ("SelfSubjectAccessReview", _ALLOWED),
    f"/apis/{_AUTHORIZATION}/subjectaccessreviews": ("SubjectAccessReview", _ALLOWED),
    f"/apis/{_AUTHORIZATION}/selfsubjectrulesreviews": ("SelfSubjectRulesReview", _ALL_RULES),
    f"/apis/{_AUTHENTICATION}/selfsubjectreviews": ("SelfSubjectReview", {"userInfo": _USER}),
}


def is_review(path: str) -> bool:
    return path in _STATUSES


def review(path: str, body: Json) -> Json:
    """The body with its answer."""
    kind, status = _STATUSES[path]
    api_version = path.removeprefix("/apis/").rpartition("/")[0]
    return {**body, "kind": kind, "apiVersion": api_version, "status": status}
