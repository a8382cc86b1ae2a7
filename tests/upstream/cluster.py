"""A control plane with hollow nodes, and one scheduler that decides for `default-scheduler`.

A hollow node is kubemark's: the kubelet's own code above a runtime that pretends to run containers. It admits pods,
reports phases and refuses what it has no room for; containers print nothing and never end.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.controlplane.cluster import ControlPlane, Features
from tests.controlplane.process import Process, free_ports
from tests.controlplane.programs import Programs
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import Deployed
from tests.e2e.preloaded import no_change

ROOT = Path(__file__).parents[2]
NODES = 5
ZONES = 2
FEATURES = Features(
    {"GenericWorkload": True, "DRAWorkloadResourceClaims": True},
    ("scheduling.k8s.io/v1beta1",),
)
"""Beta features that are off by default, and of which a test asks for the decisions of the scheduler."""

LEFT_BEHIND = re.compile(r"Using (\S+) as root dir for hollow-kubelet|unix://(/tmp/kubelet_remote_\d+\.sock)")
"""In a kubelet's log, the paths of its folder and of its runtime's socket. Both are always in /tmp."""

POLICY = ROOT / "policies" / "kube-default.policy"
ALLOWED = {"policy_permissions": {"policies_allowed": [{"name": "default-scheduler"}]}}


def policy_text() -> str:
    """`policies/kube-default.policy` under the name of the default scheduler, which also schedules PodGroups."""
    text = POLICY.read_text().replace("policy kube-default version 1", "policy default-scheduler version 1")
    return text.replace('include kube_default "1.37"', 'include kube_default "1.37"\ninclude pod_groups')


@contextmanager
def hollow_cluster(programs: Programs, upstream: Path, nodes: int = NODES) -> Iterator[ControlPlane]:
    """The controllers and so many ready nodes in `ZONES` zones, and no scheduler."""
    with ControlPlane(programs, features=FEATURES) as control_plane:
        control_plane.start_controller_manager()
        kubelets = [
            start_hollow_node(control_plane, upstream, f"hollow-{number}", f"zone-{number % ZONES}")
            for number in range(nodes)
        ]
        try:
            wait_for(lambda: len(_ready(control_plane)) == nodes, "the hollow nodes to be ready")
            yield control_plane
        finally:
            for kubelet in kubelets:
                kubelet.kill()
                remove_left_behind(kubelet.log_path.read_text(errors="replace"))


def remove_left_behind(log: str) -> None:
    """Remove what a killed kubelet leaves in /tmp."""
    for folder, socket in set(LEFT_BEHIND.findall(log)):
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            Path(socket).unlink(missing_ok=True)


def start_hollow_node(control_plane: ControlPlane, upstream: Path, name: str, zone: str) -> Process:
    port, read_only_port = free_ports(2)
    return control_plane.start_program(
        f"kubelet-{name}",
        [
            *(str(upstream), "hollow-node", "--morph=kubelet", f"--name={name}"),
            "--vmodule=remote_runtime=3",  # logs the path of its socket
            f"--kubeconfig={control_plane.user_kubeconfig(f'system:node:{name}', 'system:nodes')}",
            f"--kubelet-port={port}",
            f"--kubelet-read-only-port={read_only_port}",
            "--use-host-image-service=false",
            "--extended-resources=ephemeral-storage=100Gi",  # its machine has no disk
            "--kube-api-qps=100",
            "--kube-api-burst=200",
            f"--node-labels=topology.kubernetes.io/zone={zone}",
        ],
    )


def _ready(control_plane: ControlPlane) -> list[str]:
    """The nodes that take pods: the controllers have removed the taints of a new node."""
    return [
        node["metadata"]["name"]
        for node in control_plane.api.items("/api/v1/nodes")
        if not node["spec"].get("taints")
        and any(
            (condition["type"], condition["status"]) == ("Ready", "True")
            for condition in node["status"].get("conditions", ())
        )
    ]


@contextmanager
def kube_scheduler(control_plane: ControlPlane) -> Iterator[None]:
    process = control_plane.start_scheduler()
    try:
        yield
    finally:
        process.kill()


@contextmanager
def policysched(control_plane: ControlPlane, plant: Callable[[], None] = no_change) -> Iterator[None]:
    """With the objects and settings of `deploy/`, and the name `default-scheduler` allowed."""
    with tempfile.TemporaryDirectory(prefix="policysched-upstream-") as folder:
        deployed = Deployed(control_plane, Path(folder))
        deployed.put_policies(main=policy_text())
        with deployed.running(settings=ALLOWED, plant=plant) as program:
            program.wait_for_state("default-scheduler", "active")
            yield


SCHEDULERS: Mapping[str, Callable[[ControlPlane], AbstractContextManager[None]]] = {
    "kube-scheduler": kube_scheduler,
    "policysched": policysched,
}
