"""What is kept for the next leader on a real control plane: many policies with a library, and removals."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.e2e.deployed import CONFIG_MAPS, NAMESPACE, PLAIN, Deployed
from tests.e2e.program import Running

NAMES = tuple(f"team-{number}" for number in range(60))
LIBRARY = "library base version 1\n" + "".join(
    f'filter rule_{number} reject node.name == "reserved-{number}" says "{"this node is reserved; " * 40}"\n'
    for number in range(20)
)
"""20 KB: expanded in sixty policies it exceeds 1 MiB, the limit of a ConfigMap."""


@pytest.fixture
def deployed(control_plane: ControlPlane, tmp_path: Path) -> Deployed:
    return Deployed(control_plane, tmp_path)


def active(scheduler: Running) -> set[str]:
    """The policies with an active text; empty while the process does not answer."""
    try:
        listed = scheduler.json("/policy")["policies"]
    except OSError:
        return set()
    return {policy["name"] for policy in listed if policy["sha256"]}


def saved(scheduler: Running) -> bool:
    return "[+]last-good ok" in scheduler.get("/readyz?verbose") and not scheduler.metric(
        "policysched_last_good_unsaved"
    )


def test_sixty_policies_with_a_library_are_kept_for_a_restart_with_broken_texts(deployed: Deployed) -> None:
    texts = {name: f'policy {name} version 1\ninclude "base.policy"\n' for name in NAMES}
    deployed.put_policies(base=LIBRARY, **texts)
    with deployed.running() as before:
        wait_for(lambda: active(before) == set(NAMES), "the policies")
        wait_for(lambda: "last-good.json.xz" in binary_keys(deployed) and saved(before), "them to be kept")
        before_sha = {policy["name"]: policy["sha256"] for policy in before.json("/policy")["policies"]}
    assert deployed.events("policies", "LastGoodNotSaved") == []

    deployed.put_policies(**{name: f"{text}filter {{\n" for name, text in texts.items()})

    with deployed.running() as after:
        wait_for(lambda: active(after) == set(NAMES), "the kept policies")
        listed = after.json("/policy")["policies"]
        assert {policy["name"]: policy["sha256"] for policy in listed} == before_sha
        assert {policy["state"] for policy in listed} == {"last_known_good"}


def binary_keys(deployed: Deployed) -> set[str]:
    return set(deployed.api.get(f"{CONFIG_MAPS}/policies-last-good").get("binaryData") or {})


def test_a_refused_save_is_reported_and_repeated(deployed: Deployed) -> None:
    deployed.put_policies(main=PLAIN)
    with deployed.running() as scheduler:
        wait_for(lambda: "test.policy" in deployed.last_good(), "it to be kept")

        deployed.kubectl(
            "patch", "configmap", "policies-last-good", "-n", NAMESPACE, "-p", '{"immutable":true}'
        )
        deployed.put_policies(main=f'{PLAIN}filter away reject node.name == "b" says "b is kept free"\n')

        refused = deployed.event("policies", "LastGoodNotSaved")
        assert (
            refused["type"] == "Warning"
            and "(422)" in refused["note"]
            and "not saved: test;" in refused["note"]
        )
        lines = scheduler.get("/readyz?verbose").splitlines()
        assert [line for line in lines if line.startswith("[!]last-good warning: cannot save")]
        assert scheduler.get("/readyz") == "ok"
        assert scheduler.metric('policysched_last_good_unsaved{policy="test"}') == 1.0
        deployed.kubectl("delete", "configmap", "policies-last-good", "-n", NAMESPACE)
        deployed.kubectl("create", "configmap", "policies-last-good", "-n", NAMESPACE)
        deployed.event("policies", "LastGoodSaved")
        assert saved(scheduler) and "b is kept free" in deployed.last_good()["test.policy"]


def test_a_removed_policy_stays_removed_for_the_next_process_and_another_leader(deployed: Deployed) -> None:
    """Its text is deleted from both ConfigMaps by the removal, and another policy is edited."""
    deployed.control_plane.add_node(ready_node("a"))
    other = PLAIN.replace("policy test", "policy other")
    deployed.put_policies(main=PLAIN, other=other)
    with deployed.running(elect=True) as first:
        wait_for(lambda: deployed.last_good().keys() == {"test.policy", "other.policy"}, "both to be kept")
        with deployed.running(elect=True) as second:
            second.wait_until_ready()

            remove(deployed, "test")
            deployed.event("policies", "PolicyRemoved")
            deployed.kubectl(
                *("patch", "configmap", "policies", "-n", NAMESPACE, "--type=json"),
                *("-p", '[{"op": "remove", "path": "/data/main.policy"}]'),
            )
            wait_for(lambda: deployed.last_good().keys() == {"other.policy"}, "it to be forgotten")
            edited = f'{other}filter away reject node.name == "b" says "b is kept free"\n'
            deployed.put_policies(other=edited)
            wait_for(lambda: "b is kept free" in deployed.last_good()["other.policy"], "the edit to be kept")
            assert deployed.last_good().keys() == {"other.policy"}

            assert first.terminate() == 0
            wait_for(lambda: active(second) == {"other"}, "the second to lead")
            deployed.create("late")
            assert deployed.condition("late")["message"].startswith("policy test is removed")
            deployed.create("another", scheduler="other")
            assert deployed.bound("another") == "a"

    deployed.kubectl(
        *("patch", "configmap", "policies", "-n", NAMESPACE, "--type=json"),
        *("-p", '[{"op": "remove", "path": "/data/test.removed"}]'),
    )
    with deployed.running() as third:
        wait_for(lambda: active(third) == {"other"}, "the third")
        assert third.state_of("test") is None
        deployed.put_policies(main=PLAIN, other=other)
        assert deployed.bound("late") == "a", "a text readmits it"


def remove(deployed: Deployed, name: str) -> None:
    command = [
        sys.executable,
        "-m",
        "policysched",
        "policies",
        "remove",
        name,
        "--policies",
        f"{NAMESPACE}/policies",
    ]
    done = subprocess.run(
        [*command, "--kubeconfig", deployed.control_plane.kubeconfig_path],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (0, f"policy {name} is removed\n"), done.stderr
