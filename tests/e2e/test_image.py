"""The image's own files run as in a container: read-only, without a volume for temporary files, without root and capabilities,
the scheduler as process 1.

bubblewrap stands for the container runtime. What it does not show: the limits of memory and CPU, the seccomp profile, and the network of
a pod. The image of another processor runs in QEMU where `qemu-aarch64-static` is installed (Debian: qemu-user-static), except for the
time that it takes to lead.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from deploy.image.__main__ import build
from deploy.image.debian import USER
from deploy.image.layers import PLATFORMS, ImageError, Platform, native, unpack
from deploy.image.oci import Image, config_of
from policysched.kube.client import service_account
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.process import free_ports
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import NAMESPACE, PLAIN, Deployed, manifests
from tests.e2e.program import Running
from tests.missing_programs import leave_out
from tests.release.image import ELF_MACHINES, image_problems

LEADING_WITHIN_S = 2.0
PATIENCE_S = 900.0
"""Long enough for an emulated processor on a busy machine."""
PROGRAMS = ("apt-get", "dpkg-deb", "bwrap", "setpriv")


REGISTER = r"""
mount -t binfmt_misc binfmt_misc "$0"
printf '%s' ':MACHINE:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00CODE\x00:'\
'\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:EMULATOR:F' > "$0/register"
exec "$@"
"""
"""For `sh -eu` in a user namespace of its own: the kernel (since 6.7) starts the programs of another processor in QEMU, in this
namespace alone. The first argument is a folder to mount on, the others are the command."""


@pytest.fixture(scope="module", params=list(PLATFORMS))
def image(request: pytest.FixtureRequest) -> Image:
    """The image of this checkout. The layers below the application are cached for the user."""
    platform = PLATFORMS[request.param]
    requirement = "image" if platform == native() else "foreign-image"
    if (reason := cannot_run(platform)) is not None:
        leave_out(requirement, reason)
    try:
        (made,) = build([platform.name], locked=False)
    except ImageError as error:
        leave_out(requirement, f"no image: {error}")
    return made


def emulator(platform: Platform) -> str | None:
    """The program that runs those of another processor."""
    return None if platform == native() else f"qemu-{platform.machine}-static"


def cannot_run(platform: Platform) -> str | None:
    """Why no image for this processor can be built and run here."""
    emulated_by = emulator(platform)
    needed = (*PROGRAMS, *((emulated_by,) if emulated_by else ()))
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        command = [*as_user(), *emulated(platform, Path(folder)), *ISOLATED, "--ro-bind", "/", "/", "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        return f"this machine does not let users make namespaces: {done.stderr.strip()}"
    return None


def emulated(platform: Platform, folder: Path) -> Sequence[str]:
    """What precedes a command of another processor; `folder` is empty."""
    emulated_by = emulator(platform)
    if emulated_by is None:
        return ()
    code = rf"\x{ELF_MACHINES[platform.name]:02x}"
    script = REGISTER.replace("MACHINE", platform.machine).replace("CODE", code)
    script = script.replace("EMULATOR", str(shutil.which(emulated_by)))
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-euc", script, str(folder))


ISOLATED = (
    *("bwrap", "--unshare-user", "--uid", str(USER), "--gid", str(USER)),
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts"),
    *("--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--clearenv"),
)


def as_user() -> Sequence[str]:
    if os.getuid() != 0:
        return ()
    return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")


class Container:
    """The unpacked image and a folder that is mounted into it, both readable by its user."""

    def __init__(self, image: Image, folder: Path) -> None:
        self._config, self._platform = config_of(image, {}, 0)["config"], image.platform
        self.root, self.mounted, self.account = folder / "root", folder / "mounted", folder / "account"
        self._registered = folder / "binfmt"
        for path in (self.root, self.mounted, self.account, self._registered):
            path.mkdir()
        for layer in image.layers:
            unpack(layer, self.root)
        # A container runtime makes the mount points that the image lacks.
        (self.root / service_account.FOLDER.relative_to("/")).mkdir(parents=True)
        folder.chmod(0o755)

    @property
    def native(self) -> bool:
        return self._platform == native()

    def command(
        self, *arguments: str, program: str | None = None, server: str = "", network: bool = True
    ) -> list[str]:
        """`server` is the HOST:PORT of the cluster's API server, as a pod finds it in its environment."""
        given = [*self._config["Env"]]
        if server:
            host, _, port = server.partition(":")
            given += [f"KUBERNETES_SERVICE_HOST={host}", f"KUBERNETES_SERVICE_PORT={port}"]
        environment = [word for text in given for word in ("--setenv", *text.split("=", 1))]
        return [
            *as_user(),
            *emulated(self._platform, self._registered),
            *ISOLATED,
            *(() if network else ("--unshare-net",)),
            *("--ro-bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev"),
            *("--ro-bind", str(self.mounted), "/run"),
            *("--ro-bind", str(self.account), str(service_account.FOLDER), *environment),
            *((program,) if program else self._config["Entrypoint"]),
            *arguments,
        ]

    def mount(self, name: str, content: str) -> str:
        write_for_all(self.mounted / name, content)
        return f"/run/{name}"

    def mount_service_account(self, token: str, authority: str) -> None:
        """As the kubelet does."""
        write_for_all(self.account / "token", token)
        write_for_all(self.account / "ca.crt", authority)

    def python(self, code: str) -> object:
        command = self.command("-c", code, program="/opt/policysched/bin/python")
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def write_for_all(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o644)


class ContainerProcess:
    """Process 1 of a container. bubblewrap itself is its parent and has its exit code; signals are for process 1."""

    def __init__(
        self,
        container: Container,
        arguments: Sequence[str],
        log: IO[str],
        *,
        server: str,
        network: bool = True,
    ) -> None:
        read, write = os.pipe()
        command = container.command(*arguments, server=server, network=network)
        command[command.index("bwrap") + 1 : 0] = ["--info-fd", str(write)]
        self._parent = subprocess.Popen(command, stdout=log, stderr=log, pass_fds=(write,))
        os.close(write)
        with open(read) as file:  # noqa: PTH123
            self.pid: int = json.loads(file.read())["child-pid"]

    def poll(self) -> int | None:
        return self._parent.poll()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        return self._parent.wait(timeout)

    def processor_s(self) -> tuple[float, float]:
        """Seconds on a processor, and seconds for which a process of the container waited for one."""
        namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
        used_ns = waited_ns = 0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "ns/pid").readlink() == namespace:
                    used, waited, _ = (process / "schedstat").read_text().split()
                    used_ns, waited_ns = used_ns + int(used), waited_ns + int(waited)
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue  # it ended, or belongs to somebody else
        return used_ns / 1e9, waited_ns / 1e9


@pytest.fixture(scope="module")
def container(image: Image) -> Iterator[Container]:
    with tempfile.TemporaryDirectory() as folder:  # pytest's folders are the user's alone
        yield Container(image, Path(folder))


def test_the_image_is_small_and_has_no_shell(image: Image, container: Container) -> None:
    programs = {path.name for path in (container.root / "usr/bin").iterdir()}

    assert image_problems(image) == []
    assert not programs & {"sh", "dash", "bash", "apt", "dpkg", "perl"}


def test_everything_that_the_program_may_need_is_in_it(container: Container) -> None:
    output = container.python(
        "import bz2, ctypes, json, lzma, os, sqlite3, ssl, uuid, zoneinfo\n"
        "import aiohttp, cryptography, kubernetes, numpy, orjson, uvloop, yaml\n"
        "zoneinfo.ZoneInfo('Asia/Shanghai')\n"
        "try:\n"
        "    open('/tmp/file', 'w')\n"
        "    writable = True\n"
        "except OSError:\n"
        "    writable = False\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print(json.dumps({\n"
        "    'user': os.getuid(), 'writable': writable, 'capabilities': int(status['CapEff'], 16),\n"
        "    'authorities': ssl.create_default_context().cert_store_stats()['x509_ca'] > 100,\n"
        "    'compiled': all(os.path.exists(module.__cached__) for module in (aiohttp, json, numpy)),\n"
        "}))\n"
    )

    assert output == {
        "user": USER,
        "writable": False,
        "capabilities": 0,
        "authorities": True,
        "compiled": True,
    }


def run_with_the_shipped_settings(container: Container) -> list[str]:
    shipped = next(m for m in manifests() if m["metadata"]["name"].startswith("settings"))
    settings = shipped["data"]["settings.yaml"]
    if not container.native:  # an emulated check takes longer than the default limits
        settings += "\ncheck_timeout_s: 120\npolicy_check_timeout_s: 120\n"
    return ["run", "--config", container.mount("settings.yaml", settings)]


def test_the_image_leads_within_two_seconds_and_binds_a_pod(
    control_plane: ControlPlane, container: Container, tmp_path: Path
) -> None:
    deployed = Deployed(control_plane, tmp_path)
    deployed.put_policies(test=PLAIN)
    control_plane.add_node(ready_node("a"))
    deployed.create("web")
    token = control_plane.service_account_token(NAMESPACE, "policysched")
    container.mount_service_account(token, control_plane.authority_path.read_text())
    port = free_ports(1)[0]
    arguments = [*run_with_the_shipped_settings(container), "--http", f"127.0.0.1:{port}"]

    began_s = time.monotonic()
    with (tmp_path / "log").open("w") as log:
        server = control_plane.url.removeprefix("https://")
        process = ContainerProcess(container, arguments, log, server=server)
    running = Running(arguments, tmp_path / "log", port, control_plane.admin, process=process)
    try:
        wait_for(lambda: running.logged("leading"), "the image to lead", within_s=PATIENCE_S)
        took_s, (used_s, waited_s) = time.monotonic() - began_s, process.processor_s()
        bound_to = wait_for(lambda: deployed.node_of("web"), "the pod to be bound", within_s=PATIENCE_S)
        assert bound_to == "a"
        assert running.terminate() == 0, running.log()
    finally:
        running.kill()

    print(
        f"leading after {took_s:.2f} s, of these {used_s:.2f} s on a processor, {waited_s:.2f} s without a free one"
    )
    if container.native:
        assert took_s - waited_s < LEADING_WITHIN_S, running.log()


def test_without_a_network_one_line_says_what_cannot_be_reached(
    control_plane: ControlPlane, container: Container, tmp_path: Path
) -> None:
    container.mount_service_account("token", control_plane.authority_path.read_text())
    with (tmp_path / "log").open("w") as log:
        process = ContainerProcess(
            container, run_with_the_shipped_settings(container), log, server="127.0.0.1:443", network=False
        )
    running = Running([], tmp_path / "log", 0, process=process)
    try:
        words = "cannot read or acquire the lease; retrying"
        line = wait_for(lambda: running.logged(words), f"the log to contain {words}", within_s=PATIENCE_S)[0]
        assert running.terminate() == 0, running.log()
    finally:
        running.kill()

    assert "cannot connect to 127.0.0.1:443" in line["error"]
    assert len(running.logged("lease")) == 1
