"""A pod's connection: the mounted token and CA, against a server on the loopback interface."""

import asyncio
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from policysched.files import UnreadableFile
from policysched.kube.client.service_account import TOKEN_RELOAD_INTERVAL_S, ServiceAccount
from policysched.kube.client.session import BadKubeconfig, ConnectionSettings, HttpTransport, connect
from policysched.kube.client.transport import ApiRequest
from tests.controlplane.certificates import Authority


def environ(port: int = 443, host: str = "127.0.0.1") -> dict[str, str]:
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("first\n")
    (folder / "ca.crt").write_text("a certificate")
    return folder


def token(account: ServiceAccount) -> str | None:
    return asyncio.run(account.get_api_key_with_prefix("BearerToken"))


def test_the_server_is_verified_by_the_mounted_ca_and_gets_the_token(mounted: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (mounted / "ca.crt").write_bytes(authority.certificate.read_bytes())
    serving = authority.serving()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(serving.certificate, serving.key)

    async def echo(request: web.Request) -> web.Response:
        return web.json_response(request.headers["Authorization"])

    async def scenario() -> bytes:
        application = web.Application()
        application.router.add_get("/", echo)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()

        async def load() -> ServiceAccount:
            return ServiceAccount(environ(runner.addresses[0][1]), mounted)

        try:
            async with HttpTransport(await load(), ConnectionSettings(), load) as transport:
                return (await transport.request(ApiRequest("GET", "/"))).body
        finally:
            await runner.cleanup()

    assert asyncio.run(scenario()) == b'"Bearer first"'


def test_a_rotated_token_is_read_and_a_missing_one_changes_nothing(
    mounted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 0.0
    account = ServiceAccount(environ(), mounted, lambda: now_s)
    (mounted / "token").write_text("second")
    assert token(account) == "Bearer first", "the file is not read for each request"

    now_s += TOKEN_RELOAD_INTERVAL_S + 1
    assert token(account) == "Bearer second"
    (mounted / "token").unlink()
    now_s += TOKEN_RELOAD_INTERVAL_S + 1

    assert token(account) == "Bearer second"
    assert [record.message for record in caplog.records] == ["cannot read the token; using the last one"]


def test_the_address_of_a_server_with_ipv6_is_in_brackets(mounted: Path) -> None:
    assert ServiceAccount(environ(443, "fd00::1"), mounted).host == "https://[fd00::1]:443"


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_missing_or_empty_file_is_named(mounted: Path, name: str) -> None:
    (mounted / name).write_text(" \n")
    with pytest.raises(UnreadableFile, match=f"{name}: the file is empty"):
        ServiceAccount(environ(), mounted)

    (mounted / name).unlink()
    with pytest.raises(UnreadableFile, match=f"{name}: no such file"):
        ServiceAccount(environ(), mounted)


def test_missing_files_of_a_service_account_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for key, value in environ().items():
        monkeypatch.setenv(key, value)

    with pytest.raises(
        BadKubeconfig, match=r"^the pod's service account: /var/run/secrets/.*: no such file$"
    ):
        asyncio.run(connect(ConnectionSettings()))


def test_a_pod_does_not_import_the_client_library(mounted: Path) -> None:
    script = (
        "import sys\n"
        "import policysched.kube.client.session\n"
        "from pathlib import Path\n"
        "from policysched.kube.client.service_account import ServiceAccount\n"
        f"ServiceAccount({environ()!r}, Path({str(mounted)!r}))\n"
        "sys.exit('kubernetes' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
