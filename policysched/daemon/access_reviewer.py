"""The API server's reviews for the HTTP server: TokenReview, SubjectAccessReview, and the CA of client certificates.

It has a connection of its own, on the HTTP server's loop: reviews neither wait for binds nor take their connections.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from policysched.kube.client.api import ApiClient, ApiErrors, Forbidden, NotFound
from policysched.kube.client.session import ConnectionSettings, connect
from policysched.serve.access import AccessDecision, OpenReviewer, ReviewFailed, User

log = logging.getLogger(__name__)
Json = dict[str, Any]

_REVIEW_TIMEOUT_S = 10.0
"""kube-scheduler's time-out of a webhook request for a review."""
_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_CLIENT_CA = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
_CLIENT_CA_KEY = "client-ca-file"


class ApiAccessReviewer:
    """An `AccessReviewer` over the API."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._last_ca_problem = ""

    async def review_token(self, token: str) -> User | None:
        """Raises ReviewFailed."""
        status = await self._review(
            _TOKEN_REVIEWS, "authentication.k8s.io/v1", "TokenReview", {"token": token}
        )
        if not status.get("authenticated"):
            return None
        user = status.get("user")
        if not isinstance(user, Mapping) or not user.get("username"):
            raise ReviewFailed("the TokenReview names no user")
        extra = {name: tuple(values) for name, values in (user.get("extra") or {}).items()}
        return User(
            user["username"],
            tuple(user.get("groups") or ()),
            user.get("uid", ""),
            tuple(sorted(extra.items())),
        )

    async def review_access(self, user: User, verb: str, path: str) -> AccessDecision:
        """Raises ReviewFailed."""
        return await self._review_of(user, {"nonResourceAttributes": {"path": path, "verb": verb}})

    async def review_list_pods(self, user: User, namespace: str | None) -> AccessDecision:
        """Raises ReviewFailed."""
        attributes = {"verb": "list", "resource": "pods", "namespace": namespace or ""}
        return await self._review_of(user, {"resourceAttributes": attributes})

    async def _review_of(self, user: User, attributes: Json) -> AccessDecision:
        spec = {
            "user": user.name,
            "groups": list(user.groups),
            "uid": user.uid,
            "extra": {name: list(values) for name, values in user.extra},
            **attributes,
        }
        status = await self._review(_ACCESS_REVIEWS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return AccessDecision(status.get("allowed") is True, status.get("reason", ""))

    async def client_ca(self) -> str | None:
        """PEM text, empty if there is none or it may not be read; None if the server does not answer. A problem is logged
        when it begins."""
        problem, text = "", None
        try:
            config_map = await self._api.get(_CLIENT_CA, timeout_s=_REVIEW_TIMEOUT_S)
            text = str((config_map.get("data") or {}).get(_CLIENT_CA_KEY, ""))
        except (Forbidden, NotFound) as error:
            problem, text = error.message, ""
        except ApiErrors as error:
            problem = str(error)
        if problem and not self._last_ca_problem:
            log.warning(
                "cannot read the cluster's CA of client certificates; only bearer tokens are accepted",
                extra={"error": problem},
            )
        self._last_ca_problem = problem
        return text

    async def _review(self, path: str, version: str, kind: str, spec: Json) -> Json:
        body = {"apiVersion": version, "kind": kind, "metadata": {}, "spec": spec}
        try:
            answer = await self._api.create(path, body, timeout_s=_REVIEW_TIMEOUT_S)
        except ApiErrors as error:
            raise ReviewFailed(str(error)) from error
        status = answer.get("status")
        if not isinstance(status, dict):
            raise ReviewFailed(f"the {kind} has no status")
        return status


def api_reviewer(connection: ConnectionSettings) -> OpenReviewer:
    """Opens a reviewer with a connection of its own."""

    @asynccontextmanager
    async def open_reviewer() -> AsyncIterator[ApiAccessReviewer]:
        async with await connect(connection) as session:
            yield ApiAccessReviewer(ApiClient(session))

    return open_reviewer
