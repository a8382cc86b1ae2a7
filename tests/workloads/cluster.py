"""policysched beside Kubernetes' controllers, and what a test of a workload API creates and waits for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.controlplane.api import Json
from tests.controlplane.certificates import openssl_missing
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod
from tests.controlplane.programs import PROGRAM_NAMES, Programs
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PODS, Deployed
from tests.missing_programs import leave_out


def policy(name: str, clauses: str) -> str:
    return f"policy {name} version 1\ninclude kube_default\n{clauses}"


@contextmanager
def cluster(programs: Programs, folder: Path, **policies: str) -> Iterator[Deployed]:
    """A control plane with Kubernetes' controllers and policysched, which decides by these policies."""
    missing = openssl_missing() or programs.missing(*PROGRAM_NAMES)
    if missing:
        leave_out("control-plane", missing)
    with ControlPlane(programs) as control_plane:
        control_plane.start_controller_manager()
        deployed = Deployed(control_plane, folder)
        deployed.put_policies(**{name: policy(name, clauses) for name, clauses in policies.items()})
        with deployed.running():
            yield deployed


def template(scheduler: str, *, labels: Mapping[str, str] = {}, annotations: Mapping[str, str] = {}) -> Json:
    """Of pods with one CPU."""
    spec = pod("x", cpu="1", schedulerName=scheduler)["spec"]
    return {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}, "spec": spec}


def job_spec(pods: int, template: Json) -> Json:
    template["spec"]["restartPolicy"] = "Never"
    return {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template}


def placed(pods: list[Json]) -> int:
    return sum("nodeName" in pod["spec"] for pod in pods)


def one_waits_with(deployed: Deployed, words: str, **selected: str) -> None:
    def messages() -> list[str]:
        return [
            condition.get("message", "")
            for pod in deployed.pods(**selected)
            for condition in pod["status"].get("conditions", ())
            if condition["type"] == "PodScheduled"
        ]

    try:
        wait_for(lambda: any(words in message for message in messages()), f"a pod to say `{words}`")
    except AssertionError as error:
        raise AssertionError(f"{error}; they say {messages()}") from None


def wait_for_placed(deployed: Deployed, count: int, **selected: str) -> None:
    wait_for(lambda: placed(deployed.pods(**selected)) == count, f"{count} pods to be placed")


def end_pods(deployed: Deployed, **selected: str) -> None:
    """As a kubelet says it of pods whose containers have ended."""
    for ended in deployed.pods(**selected):
        deployed.api.patch(f"{PODS}/{ended['metadata']['name']}/status", {"status": {"phase": "Succeeded"}})


def condition_of(deployed: Deployed, path: str, kind: str) -> str | None:
    conditions = deployed.api.get(path).get("status", {}).get("conditions", ())
    return next((condition["status"] for condition in conditions if condition["type"] == kind), None)
