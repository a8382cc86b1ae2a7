"""Proxies, server names and credentials of a kubeconfig, with a real API server and verified TLS."""

import asyncio
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from policysched.kube.client.session import ConnectionSettings, connect
from policysched.kube.client.transport import ApiRequest, TransportError
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.connect_proxy import ConnectProxy, connect_proxy
from tests.controlplane.objects import ready_node
from tests.e2e.deployed import PLAIN, Deployed

pytestmark = pytest.mark.control_plane

BEHIND = "kubernetes.default.svc"
"""A name that is in the server's certificate and that no resolver knows."""

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectProxy]:
    """A name that occurs nowhere else."""
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with connect_proxy() as server:
        yield server


@pytest.fixture
def written(control_plane: ControlPlane, tmp_path: Path) -> Callable[[Change], Path]:
    """The admin's kubeconfig with a change."""

    def write(change: Change) -> Path:
        config = json.loads(control_plane.kubeconfig_path.read_text())
        change(config)
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    return write


def cluster(**fields: str) -> Change:
    return lambda config: config["clusters"][0]["cluster"].update(
        {name.replace("_", "-"): value for name, value in fields.items()}
    )


def user(fields: dict[str, Any]) -> Change:
    def change(config: dict[str, Any]) -> None:
        config["users"][0]["user"] = fields

    return change


def who(kubeconfig: Path) -> str:
    """The user that the server authenticates with this kubeconfig. Also lists and watches, so that
    every kind of connection is used.
    """

    async def ask() -> str:
        async with await connect(ConnectionSettings(kubeconfig)) as session:
            review = b'{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
            answer = await session.request(
                ApiRequest("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
            )
            assert answer.status == 201, answer.body
            watch = {"watch": "1", "timeoutSeconds": "1"}
            async with session.stream(ApiRequest("GET", "/api/v1/namespaces", watch)) as stream:
                assert stream.status in (200, 403)
                assert await anext(stream.chunks)
            name: str = orjson.loads(answer.body)["status"]["userInfo"]["username"]
            return name

    return asyncio.run(ask())


def test_a_proxy_of_the_kubeconfig_is_used_and_tls_is_verified_through_it(
    control_plane: ControlPlane, proxy: ConnectProxy, written: Callable[[Change], Path]
) -> None:
    assert who(written(cluster(proxy_url=proxy.url))) == "admin"

    assert set(proxy.requests) == {control_plane.url.removeprefix("https://")}
    with pytest.raises(TransportError, match="certificate verify failed"):
        who(written(lambda config: _distrust(config, proxy.url)))


def _distrust(config: dict[str, Any], proxy_url: str) -> None:
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    cluster(proxy_url=proxy_url)(config)


def test_a_proxy_of_the_environment_is_used_unless_no_proxy_names_the_server(
    control_plane: ControlPlane,
    proxy: ConnectProxy,
    written: Callable[[Change], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = control_plane.url.rpartition(":")[2]
    kubeconfig = written(cluster(server=f"https://{BEHIND}:{port}"))
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)

    assert who(kubeconfig) == "admin"
    assert set(proxy.requests) == {f"{BEHIND}:{port}"}

    proxy.requests.clear()
    monkeypatch.setenv("NO_PROXY", "other.example,.svc")
    with pytest.raises(TransportError, match=BEHIND):
        who(kubeconfig)
    assert proxy.requests == []


def test_a_proxy_of_the_environment_is_never_used_for_localhost(
    proxy: ConnectProxy, written: Callable[[Change], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)

    assert who(written(cluster())) == "admin"

    assert proxy.requests == []


def test_the_certificate_is_verified_by_the_name_that_the_kubeconfig_gives(
    proxy: ConnectProxy, written: Callable[[Change], Path]
) -> None:
    assert who(written(cluster(tls_server_name=BEHIND))) == "admin"
    assert who(written(cluster(tls_server_name=BEHIND, proxy_url=proxy.url))) == "admin"

    with pytest.raises(TransportError, match="certificate"):
        who(written(cluster(tls_server_name="somebody.else")))


def test_client_certificates_are_read_from_files_and_inline(
    control_plane: ControlPlane, written: Callable[[Change], Path]
) -> None:
    admin = control_plane.admin
    as_files = {"client-certificate": str(admin.certificate), "client-key": str(admin.key)}

    assert who(written(user(as_files))) == "admin"
    assert who(written(cluster())) == "admin"


@pytest.mark.parametrize("kind", ["token", "certificate"])
def test_an_exec_plugin_provides_a_token_or_a_certificate(
    kind: str, control_plane: ControlPlane, written: Callable[[Change], Path], tmp_path: Path
) -> None:
    admin = control_plane.admin
    status, name = {
        "token": ({"token": _token(control_plane)}, "system:serviceaccount:default:default"),
        "certificate": (
            {
                "clientCertificateData": admin.certificate.read_text(),
                "clientKeyData": admin.key.read_text(),
            },
            "admin",
        ),
    }[kind]
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    }
    answer, plugin = tmp_path / "answer", tmp_path / "plugin"
    answer.write_text(json.dumps(credential))
    plugin.write_text(f"#!/bin/sh\ncat {answer}\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    exec_ = {"apiVersion": credential["apiVersion"], "command": str(plugin), "interactiveMode": "Never"}

    assert who(written(user({"exec": exec_}))) == name


def _token(control_plane: ControlPlane) -> str:
    config = json.loads(control_plane.service_account_kubeconfig("default", "default").read_text())
    token: str = config["users"][0]["user"]["token"]
    return token


def test_the_whole_program_works_through_a_proxy(
    control_plane: ControlPlane, proxy: ConnectProxy, tmp_path: Path
) -> None:
    deployed = Deployed(control_plane, tmp_path)
    control_plane.add_node(ready_node("a"))
    deployed.put_policies(main=PLAIN)
    config = json.loads(deployed.kubeconfig.read_text())
    cluster(proxy_url=proxy.url)(config)
    kubeconfig = tmp_path / "through-a-proxy"
    kubeconfig.write_text(json.dumps(config))

    with deployed.running(kubeconfig=kubeconfig):
        deployed.create("web")
        assert deployed.bound("web") == "a"

    assert len(proxy.requests) > 1
