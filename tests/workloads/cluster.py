"""policysched beside Kubernetes' controllers, for tests of workload APIs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.controlplane.api import ApiError, Json
from tests.controlplane.certificates import openssl_missing
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.programs import PROGRAM_NAMES, Programs
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PODS, Deployed
from tests.missing_programs import leave_out


def policy(name: str, clauses: str) -> str:
    return f"policy {name} version 1\ninclude kube_default\n{clauses}"


class Workloads(Deployed):
    """policysched with Kubernetes' controllers, and what tests create and wait for. Pods are `selected` by parameters of a list."""

    def submit(self, path: str, manifest: Json) -> None:
        """As soon as the webhooks of this kind answer."""

        def accepted() -> bool:
            try:
                self.api.post(path, manifest)
            except ApiError as error:
                if error.status != 500:
                    raise
                return False
            return True

        wait_for(accepted, f"{path} to accept an object")

    def placed(self, **selected: str) -> int:
        return sum("nodeName" in pod["spec"] for pod in self.pods(**selected))

    def wait_for_placed(self, count: int, **selected: str) -> None:
        wait_for(lambda: self.placed(**selected) == count, f"{count} pods to be placed")

    def wait_for_message(self, words: str, **selected: str) -> None:
        """Of a pod that is not placed."""

        def messages() -> list[str]:
            return [
                condition.get("message", "")
                for pod in self.pods(**selected)
                for condition in pod["status"].get("conditions", ())
                if condition["type"] == "PodScheduled"
            ]

        try:
            wait_for(lambda: any(words in message for message in messages()), f"a pod to say `{words}`")
        except AssertionError as error:
            raise AssertionError(f"{error}; they say {messages()}") from None

    def end_pods(self, **selected: str) -> None:
        """As a kubelet says it of pods whose containers have ended."""
        for ended in self.pods(**selected):
            path = f"{PODS}/{ended['metadata']['name']}/status"
            self.api.patch(path, {"status": {"phase": "Succeeded"}})

    def wait_for_condition(self, path: str, kind: str) -> None:
        def conditions() -> list[Json]:
            listed: list[Json] = self.api.get(path).get("status", {}).get("conditions", [])
            return listed

        wait_for(
            lambda: any((each["type"], each["status"]) == (kind, "True") for each in conditions()),
            f"{path} to be {kind}",
        )


@contextmanager
def cluster(programs: Programs, folder: Path, **policies: str) -> Iterator[Workloads]:
    """A control plane with Kubernetes' controllers and policysched, which decides by these policies."""
    missing = openssl_missing() or programs.missing(*PROGRAM_NAMES)
    if missing:
        leave_out("control-plane", missing)
    with ControlPlane(programs) as control_plane:
        control_plane.start_controller_manager()
        deployed = Workloads(control_plane, folder)
        deployed.put_policies(**{name: policy(name, clauses) for name, clauses in policies.items()})
        with deployed.running():
            yield deployed
