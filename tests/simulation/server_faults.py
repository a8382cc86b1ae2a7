"""Faults that look the same to every client: the server answers, and the answer is an error.

    webhook     the binds of one namespace: denied, failing, timing out, or put off for an hour
    members     some binds of gang members (`churn_teams`): denied, the next one of the pod perhaps not
    objects     some pods: every write of them fails, for good
    disk        the server's disk is full: no write succeeds
    size limit  ConfigMaps above a number of bytes are refused
    overload    503 with `Retry-After: 3600` to everything, for a few seconds

and one that a client has by itself: no file descriptors, so that no new connection can be made.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from typing import Literal
from zlib import crc32

import orjson

from policysched.kube.client.transport import ApiRequest, ApiResponse, ApiStream, Transport, TransportError
from tests.simulation.churn_teams import MEMBER_PREFIX

WebhookFault = Literal["denies", "fails", "hangs", "is overloaded"]
WEBHOOK_FAULTS: tuple[WebhookFault, ...] = ("denies", "fails", "hangs", "is overloaded")

_POD_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)(/\w+)?")


@dataclass(frozen=True, slots=True)
class HostileProfile:
    """The hostile faults of a seed: shares of the fault phase, and weights of `HOSTILE_ACTIONS`."""

    failing_objects_share: float
    connect_wait_share: float
    connect_wait_s: float
    action_weights: Mapping[str, float]
    action_interval_s: float
    config_map_limit_interval_s: float | None = None
    """The mean time between two changes of the largest ConfigMap that the server takes; None: it takes all."""


HOSTILE_ACTIONS: Mapping[str, float] = {
    "freeze a scheduler": 3.0,
    "set the wall clock": 1.0,
    "break the webhook": 3.0,
    "fill the disk": 1.0,
    "overload the server": 1.0,
    "take the file descriptors": 1.0,
}


def draw_hostile_profile(random: Random) -> HostileProfile | None:
    """None in half of the seeds. Each kind of action is absent from half of the others."""
    if random.random() < 0.5:
        return None
    weights = {name: weight for name, weight in HOSTILE_ACTIONS.items() if random.random() < 0.5}
    return HostileProfile(
        failing_objects_share=random.choice((0.0, 0.0, 0.05)),
        connect_wait_share=random.choice((0.0, 0.3)),
        connect_wait_s=random.choice((0.05, 1.0)),
        action_weights=weights or {"freeze a scheduler": 1.0},
        action_interval_s=random.choice((2.0, 6.0)),
        config_map_limit_interval_s=random.choice((None, None, 3.0, 12.0)),
    )


class ServerFaults:
    """The faults in force. `counts` has how many requests each hit."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.webhooks: dict[str, WebhookFault] = {}
        self.failing_objects_share = 0.0
        self.config_map_bytes_max: int | None = None
        self.refused_members_share = 0.0
        self._bind_requests: dict[str, int] = {}
        self._disk_full_until_s = self._overloaded_until_s = float("-inf")
        self.counts: dict[str, int] = {}

    def fill_disk(self, span_s: float) -> None:
        self._disk_full_until_s = self._loop.time() + span_s

    def overload(self, span_s: float) -> None:
        self._overloaded_until_s = self._loop.time() + span_s

    def disable(self) -> None:
        self.webhooks.clear()
        self.failing_objects_share = 0.0
        self.refused_members_share = 0.0
        self.config_map_bytes_max = None
        self._disk_full_until_s = self._overloaded_until_s = float("-inf")

    def response(self, request: ApiRequest) -> ApiResponse | Literal["hangs"] | None:
        """The error that a request gets; None: the server acts on it."""
        if self._loop.time() < self._overloaded_until_s:
            return self._error("overloaded", 503, "the server is overloaded", retry_after_s=3600)
        if request.method == "GET":
            return None
        if self._loop.time() < self._disk_full_until_s:
            return self._error("disk full", 500, "etcdserver: mvcc: database space exceeded")
        limit = self.config_map_bytes_max
        if limit is not None and "/configmaps" in request.path and len(request.body) > limit:
            return self._error("large ConfigMap", 413, f"Request entity too large: limit is {limit}")
        pod = _POD_PATH.fullmatch(request.path)
        if pod is None:
            return None
        if crc32(f"{pod[1]}/{pod[2]}".encode()) / 2**32 < self.failing_objects_share:
            return self._error("failing object", 500, "the stored object cannot be decoded")
        if pod[3] != "/binding":
            return None
        if self._refuses_member(pod[2]):
            return self._error(
                "member denied", 403, 'admission webhook "members.example.com" denied the request'
            )
        match self.webhooks.get(pod[1]):
            case "denies":
                return self._error("denied", 403, 'admission webhook "guard.example.com" denied the request')
            case "fails":
                return self._error("webhook fails", 500, 'failed calling webhook "guard.example.com"')
            case "is overloaded":
                return self._error("put off", 503, "try again later", retry_after_s=3600)
            case "hangs":
                self._count("webhook hangs")
                return "hangs"
            case None:
                return None

    def _refuses_member(self, name: str) -> bool:
        if not self.refused_members_share or not name.startswith(MEMBER_PREFIX):
            return False
        count = self._bind_requests[name] = self._bind_requests.get(name, 0) + 1
        return crc32(f"{name} {count}".encode()) / 2**32 < self.refused_members_share

    def _error(
        self, what: str, status: int, message: str, *, retry_after_s: int | None = None
    ) -> ApiResponse:
        self._count(what)
        reason = {403: "Forbidden", 413: "RequestEntityTooLarge", 503: "ServiceUnavailable"}.get(
            status, "InternalError"
        )
        body = {"kind": "Status", "code": status, "reason": reason, "message": message}
        headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
        return ApiResponse(status, orjson.dumps(body), headers)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


class FailingServerTransport:
    """A transport to a server with these faults, from a process that may lack file descriptors."""

    def __init__(self, inner: Transport, faults: ServerFaults) -> None:
        self._inner = inner
        self._faults = faults
        self._no_descriptors_until_s = float("-inf")

    def take_descriptors(self, span_s: float) -> None:
        self._no_descriptors_until_s = asyncio.get_running_loop().time() + span_s

    async def request(self, request: ApiRequest) -> ApiResponse:
        self._check_descriptors()
        fault = self._faults.response(request)
        if fault is None:
            return await self._inner.request(request)
        if isinstance(fault, ApiResponse):
            await asyncio.sleep(0.01)
            return fault
        await asyncio.sleep(request.timeout_s)
        raise TransportError(f"{request.method} {request.path}: no answer in {request.timeout_s:g} s")

    def stream(self, request: ApiRequest) -> AbstractAsyncContextManager[ApiStream]:
        self._check_descriptors()
        return self._inner.stream(request)

    def _check_descriptors(self) -> None:
        if asyncio.get_running_loop().time() < self._no_descriptors_until_s:
            raise TransportError("[Errno 24] Too many open files")
