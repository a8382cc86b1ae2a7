"""A validating webhook for the binds of one seed's namespace: it allows them, or denies, fails or hangs for a moment."""

import asyncio
import base64
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from tests.controlplane.cluster import HOST, ControlPlane
from tests.e2e.chaos.fault_profile import WEBHOOK_FAULTS, Fault
from tests.e2e.chaos.workload import Admin

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
TIMEOUT_S = 1
"""The least that the API allows."""


class AdmissionWebhook:
    """Registered while the context is open, if the seed uses it. `injected` gets each bind that it does not allow."""

    def __init__(
        self, admin: Admin, control_plane: ControlPlane, injected: Counter[Fault], moments: tuple[Fault, ...]
    ) -> None:
        self._is_used = any(fault in WEBHOOK_FAULTS for fault in moments)
        self._admin, self._control_plane = admin, control_plane
        self._injected = injected
        self._fault = Fault.NONE
        self._name = f"guard-{admin.name}"
        app = web.Application()
        app.router.add_post("/", self._review)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def __aenter__(self) -> "AdmissionWebhook":
        if not self._is_used:
            return self
        await self._runner.setup()
        serving = self._control_plane.serving
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(serving.certificate, serving.key)
        await web.TCPSite(self._runner, HOST, 0, ssl_context=tls).start()
        await self._admin.send("POST", CONFIGURATIONS, self._configuration(self._runner.addresses[0][1]))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_used:
            await self._admin.send("DELETE", f"{CONFIGURATIONS}/{self._name}")
            await self._runner.cleanup()

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """One of `WEBHOOK_FAULTS`, for each bind meanwhile."""
        assert fault in WEBHOOK_FAULTS, fault
        self._fault = fault
        try:
            yield
        finally:
            self._fault = Fault.NONE

    def _configuration(self, port: int) -> dict[str, object]:
        authority = self._control_plane.authority_path.read_bytes()
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods/binding"],
        }
        webhook = {
            "name": "guard.example.com",
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": TIMEOUT_S,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._admin.name}},
            "clientConfig": {
                "url": f"https://{HOST}:{port}/",
                "caBundle": base64.b64encode(authority).decode(),
            },
            "rules": [rule],
        }
        return {"metadata": {"name": self._name}, "webhooks": [webhook]}

    async def _review(self, request: web.Request) -> web.Response:
        review, fault = await request.json(), self._fault
        if fault is not Fault.NONE:
            self._injected[fault] += 1
        if fault is Fault.WEBHOOK_HANGS:
            await asyncio.sleep(2 * TIMEOUT_S)
        if fault in (Fault.WEBHOOK_FAILS, Fault.WEBHOOK_HANGS):
            return web.Response(status=500)
        response = {"uid": review["request"]["uid"], "allowed": fault is Fault.NONE}
        return web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        )
