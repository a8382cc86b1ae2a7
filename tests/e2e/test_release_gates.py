"""What `docs/builtins.md` says of a release's feature gates is so in that release.

A kube-scheduler emulates each of them (`--emulated-version`) and says in its metrics which gates are on.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import pytest

from policysched.builtins.registry import KUBE_DEFAULT_VERSION, KUBE_SCHEDULER_RELEASES, KubeSchedulerRelease
from policysched.builtins.unsupported import UNSUPPORTED_FEATURES
from tests.controlplane.api import Api
from tests.controlplane.cluster import HOST, ControlPlane
from tests.controlplane.process import free_ports
from tests.controlplane.waiting import wait_for

DEVICE_GATES = (
    "DRADeviceTaints",
    "DRADeviceBindingConditions",
    "DRAPartitionableDevices",
    "DRAConsumableCapacity",
)
"""Those of which the page says that they are off by default before 1.36."""

Claim = Callable[[str, KubeSchedulerRelease], bool]
CLAIMS: Mapping[str, Claim] = {
    "VolumeLimitScaling": lambda _, release: (
        release.filter_parameter_values.get("node_volume_limits", {}).get("missing_drivers") != "ignore"
    ),
    "StorageCapacityScoring": lambda _, release: "volume_binding" not in release.builtins_without_score,
    "DRAExtendedResource": lambda _, release: (
        release.filter_parameter_values.get("dynamic_resources", {}).get("extended_resources") != "no"
    ),
    "NodeDeclaredFeatures": lambda _, release: "node_declared_features" not in release.missing_builtins,
    "DRADeviceTaintRules": lambda number, _: number >= "1.37",
    **dict.fromkeys(DEVICE_GATES, lambda number, _: number >= "1.36"),
}
"""Whether the gate is on by default in a release, as the defaults of `include kube_default` and the page have it."""


def differences(
    number: str,
    release: KubeSchedulerRelease,
    gates: Mapping[str, bool],
    claims: Mapping[str, Claim] = CLAIMS,
) -> Iterator[str]:
    """The gates that are not as is said."""
    for gate, claim in claims.items():
        if gates.get(gate, False) != claim(number, release):
            yield f"{gate} is {'on' if gates.get(gate) else 'off'} in {number}"


def gates_of(control_plane: ControlPlane, number: str) -> Mapping[str, bool]:
    """The gates of a kube-scheduler that emulates the release."""
    (port,) = free_ports(1)
    process = control_plane.start_program(
        "kube-scheduler",
        [
            *control_plane.programs["kube-scheduler"].argv,
            f"--emulated-version={number}",
            f"--kubeconfig={control_plane.kubeconfig_path}",
            "--leader-elect=false",
            "--authorization-always-allow-paths=/metrics",
            f"--bind-address={HOST}",
            f"--secure-port={port}",
            f"--tls-cert-file={control_plane.serving.certificate}",
            f"--tls-private-key-file={control_plane.serving.key}",
        ],
    )
    with closing(Api.verified(HOST, port, control_plane.authority_path, None)) as api:

        def enabled() -> list[tuple[str, str]]:
            try:
                text = api.get("/metrics")["text"]
            except OSError:  # it does not listen yet
                return []
            return re.findall(r'^kubernetes_feature_enabled\{name="(\w+)".*\} ([01])$', text, re.MULTILINE)

        found = wait_for(enabled, "kube-scheduler's metrics")
    process.kill()
    return {name: on == "1" for name, on in found}


@pytest.mark.parametrize("number", KUBE_SCHEDULER_RELEASES)
def test_the_gates_of_a_release_are_as_documented(whole_control_plane: ControlPlane, number: str) -> None:
    if number > version_of(whole_control_plane):
        pytest.skip(f"this control plane is older than {number}")

    gates = gates_of(whole_control_plane, number)

    assert len(gates) > 50
    assert list(differences(number, KUBE_SCHEDULER_RELEASES[number], gates)) == []
    if number == KUBE_DEFAULT_VERSION:
        named = {gate for feature in UNSUPPORTED_FEATURES for gate in named_gates(feature.description)}
        assert named
        assert {gate for gate in named if gates.get(gate)} == set(), "on by default, and not covered"
    assert gates.get("GenericWorkload", False) is False


def version_of(control_plane: ControlPlane) -> str:
    answer = control_plane.api.get("/version")
    return f"{answer['major']}.{answer['minor'].rstrip('+')}"


def named_gates(description: str) -> list[str]:
    """The feature gates in a description of what is not covered."""
    (*_, after) = ("", *re.split(r"feature gates? ", description)[1:])
    return re.findall(r"[A-Z]\w+", after.partition(")")[0])


def test_the_gates_in_a_description_are_found() -> None:
    assert named_gates("slices with x (feature gates DRAOne and DRATwo): The pod") == ["DRAOne", "DRATwo"]
    assert named_gates("a label: The pod waits") == []


def test_planted_wrong_release_is_reported() -> None:
    gates = {gate: claim("1.36", KUBE_SCHEDULER_RELEASES["1.36"]) for gate, claim in CLAIMS.items()}

    assert list(differences("1.36", KUBE_SCHEDULER_RELEASES["1.36"], gates)) == []
    assert "DRAExtendedResource is on in 1.35" in differences("1.35", KUBE_SCHEDULER_RELEASES["1.35"], gates)
    assert "VolumeLimitScaling is off in 1.37" in differences("1.37", KUBE_SCHEDULER_RELEASES["1.37"], gates)
