"""The break-glass procedure: a stock kube-scheduler with the shipped configuration replaces a dead
policysched, and back.
"""

from pathlib import Path

import yaml

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.e2e.deployed import DEPLOY, LEASE, NAMESPACE, Deployed, example_policies, manifests
from tests.e2e.permissions import Permission, granted, wait_until_allowed

OURS = "kube-default"
"""The policy of `deploy/example-policies.yaml`."""

SOON_EXPIRED = {
    "leader_election": {
        "enabled": True,
        "lease": f"{NAMESPACE}/policysched",
        "lease_duration_s": 10,
        "renew_deadline_s": 8,
        "retry_period_s": 0.5,
    }
}


def test_kube_scheduler_takes_over_from_a_dead_policysched_and_back(
    whole_control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(whole_control_plane, tmp_path)
    whole_control_plane.add_node(ready_node("a"))
    shipped = {manifest["kind"]: manifest for manifest in manifests(DEPLOY / "break-glass")}
    asleep = [manifest for manifest in manifests(DEPLOY / "break-glass") if manifest["kind"] != "Deployment"]
    deployed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(asleep))
    binding = Permission("", "pods/binding", "create")  # granted by kube-scheduler's own role
    wait_until_allowed(deployed.api, f"{NAMESPACE}:break-glass", {binding, *granted(asleep)})
    with deployed.running(elect=True, settings=SOON_EXPIRED) as dead:
        deployed.create("before", scheduler=OURS)
        deployed.bound("before")
        dead.kill()
        deployed.create("stranded", scheduler=OURS)

    stock = whole_control_plane.start_scheduler(
        shipped["ConfigMap"]["data"]["config.yaml"],
        kubeconfig_path=whole_control_plane.service_account_kubeconfig(NAMESPACE, "break-glass"),
    )
    deployed.bound("stranded")
    deployed.create("meanwhile", scheduler=OURS)
    deployed.bound("meanwhile")
    with deployed.running(elect=True, settings=SOON_EXPIRED) as back:
        back.wait_for_log("listening")
        holder = whole_control_plane.api.get(LEASE)["spec"]["holderIdentity"]
        assert not back.logged("acquired the lease; leading")

        stock.stop()

        back.wait_for_log("acquired the lease; leading")
        deployed.create("afterwards", scheduler=OURS)
        deployed.bound("afterwards")
        assert whole_control_plane.api.get(LEASE)["spec"]["holderIdentity"] != holder
        assert (
            deployed.event("afterwards", "Scheduled")["reportingInstance"]
            == (whole_control_plane.api.get(LEASE)["spec"]["holderIdentity"])
        )
    assert "forbidden" not in stock.log_path.read_text()


def test_the_stock_scheduler_is_a_standby_for_every_shipped_policy() -> None:
    shipped = {manifest["kind"]: manifest for manifest in manifests(DEPLOY / "break-glass")}
    config = yaml.safe_load(shipped["ConfigMap"]["data"]["config.yaml"])
    policies = example_policies()

    names = [profile["schedulerName"] for profile in config["profiles"]]

    assert shipped["Deployment"]["spec"]["replicas"] == 0
    assert [f"{name}.policy" for name in names] == list(policies["data"])
    lease = config["leaderElection"]
    assert LEASE.endswith(f"/namespaces/{lease['resourceNamespace']}/leases/{lease['resourceName']}")
