"""The whole program on the sandbox over HTTP, used with stock kubectl."""

import contextlib
import json
import signal
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from policysched.schemas import findings
from tests.cli.builders import run
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.e2e.sandbox import BROKEN, NOT_ON_NODE_1, PLAIN, POLICIES, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    made.start()
    yield made
    made.stop()


def test_pods_are_bound_and_unschedulable_pods_get_a_reason(cluster: Cluster) -> None:
    cluster.put_policies(main=PLAIN)
    with cluster.scheduler() as scheduler:
        cluster.run_pod("web")
        cluster.run_pod("huge", cpu="1000")
        cluster.run_pod("foreign", scheduler="somebody-else")

        node = cluster.bound("web")
        reason = wait_for(lambda: cluster.events("huge", "FailedScheduling"), "the reason")
        cluster.kubectl("wait", "--for=condition=Ready", "pod/web", f"--timeout={PATIENCE_S:g}s")

        message = wait_for(lambda: _condition(cluster, "huge"), "the condition")
        assert reason == [message] == ["0/2 nodes are available: 2 Insufficient cpu."]
        assert wait_for(lambda: cluster.events("web", "Scheduled"), "the event") == [
            f"Successfully assigned default/web to {node}"
        ]
        assert cluster.node_of("foreign") == ""
        assert cluster.events("foreign", "FailedScheduling") == []
        assert scheduler.get("/livez") == "ok"
        scheduler.wait_until_ready()
        assert 'scheduler_schedule_attempts_total{result="scheduled",profile="test"} 1' in scheduler.get(
            "/metrics"
        )


def _condition(cluster: Cluster, pod: str) -> str:
    status = cluster.get(f"/api/v1/namespaces/default/pods/{pod}")["status"]
    scheduled = [
        condition for condition in status.get("conditions", []) if condition["type"] == "PodScheduled"
    ]
    return scheduled[0]["message"] if scheduled else ""


def test_a_pod_of_higher_priority_preempts_a_lower_one(cluster: Cluster) -> None:
    cluster.put_policies(main="policy test version 1\ninclude kube_default\npreemption { victims = own }\n")
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({**urgent, "metadata": {"name": "urgent"}}))
    cores = cluster.get("/api/v1/nodes/node-1")["status"]["allocatable"]["cpu"]
    with cluster.scheduler() as scheduler:
        for name in ("low-1", "low-2"):
            cluster.run_pod(name, cpu=str(int(cores) - 1))
            cluster.bound(name)
        before = {name: cluster.node_of(name) for name in ("low-1", "low-2")}
        cluster.run_pod("urgent", cpu="2", priority_class="urgent")

        node = cluster.bound("urgent")
        left = [item["metadata"]["name"] for item in cluster.get("/api/v1/namespaces/default/pods")["items"]]
        (victim,) = set(before) - set(left)
        uid = cluster.get("/api/v1/namespaces/default/pods/urgent")["metadata"]["uid"]

        assert node == before[victim]
        assert wait_for(lambda: cluster.events(victim, "Preempted"), "the event") == [
            f"Preempted by pod {uid} on node {node}"
        ]
        assert "scheduler_preemption_victims_count 1" in scheduler.get("/metrics")
        evicted = 'policysched_evictions_total{outcome="evicted"} 1'
        wait_for(lambda: evicted in scheduler.get("/metrics"), "the eviction to be answered and counted")


def test_status_outputs_match_their_schemas(cluster: Cluster) -> None:
    cluster.put_policies(main=PLAIN, broken="policy other version 1\nfilter x require y\n")
    with cluster.scheduler() as scheduler:
        cluster.run_pod("web")
        cluster.bound("web")

        policies, decisions = scheduler.json("/policy"), scheduler.json("/decisions?limit=5&pod=default/web")

        assert findings("policy", policies) == []
        assert findings("decisions", decisions) == []
        assert [policy["state"] for policy in policies["policies"]] == ["active", "rejected"]
        assert policies["policies"][1]["diagnostics"][0]["line"] == 2
        (decision,) = decisions["decisions"]
        assert decision["result"]["node"] == cluster.node_of("web")
        assert decision["policy"]["sha256"] == policies["policies"][0]["sha256"]
        assert scheduler.json("/configz")["policysched"]["policies"] == "kube-system/policies"
        with pytest.raises(urllib.error.HTTPError, match="400"):
            scheduler.get("/decisions?limit=many")


def test_an_edit_changes_the_next_decision_and_a_rejected_edit_does_not(cluster: Cluster) -> None:
    cluster.put_policies(main=NOT_ON_NODE_1)
    with cluster.scheduler() as scheduler:
        cluster.run_pod("first")
        assert cluster.bound("first") == "node-2"

        cluster.put_policies(main=NOT_ON_NODE_1.replace("node-1", "node-2"))
        wait_for(lambda: 'reload_total{result="ok"} 2' in scheduler.get("/metrics"), "the edit to be active")
        cluster.run_pod("second")
        assert cluster.bound("second") == "node-1"

        cluster.put_policies(main=BROKEN)
        (rejected,) = wait_for(lambda: cluster.events("policies", "PolicyRejected"), "the refusal")
        assert rejected.startswith("main.policy:3:26 PS")
        assert "still running sha" in rejected
        assert scheduler.state_of("test") == "last_known_good"
        cluster.run_pod("third")
        assert cluster.bound("third") == "node-1"

        cluster.put_policies(main=NOT_ON_NODE_1.replace("node-1", "node-2"))
        wait_for(lambda: cluster.events("policies", "PolicyRecovered"), "the recovery")
        assert scheduler.state_of("test") == "active"


def test_an_edit_requeues_the_pods_that_it_may_make_schedulable(cluster: Cluster) -> None:
    cluster.put_policies(main=PLAIN + 'filter closed reject node.name != "" says "closed for today"\n')
    with cluster.scheduler():
        cluster.run_pod("patient")
        wait_for(lambda: cluster.events("patient", "FailedScheduling"), "the refusal")

        cluster.put_policies(main=PLAIN)

        assert cluster.bound("patient")
        assert cluster.events("patient", "FailedScheduling") == [
            "0/2 nodes are available: 2 closed for today."
        ]


def _config_maps(cluster: Cluster) -> list[str]:
    return [
        item["metadata"]["name"] for item in cluster.get("/api/v1/namespaces/kube-system/configmaps")["items"]
    ]


def test_a_restart_with_a_broken_policy_runs_the_last_known_good_one(cluster: Cluster) -> None:
    cluster.put_policies(main=NOT_ON_NODE_1)
    with cluster.scheduler() as before:
        wait_for(lambda: before.state_of("test") == "active", "the policy")
        wait_for(
            lambda: (
                "node-1 is kept free"
                in cluster.kubectl("get", "cm", "-A", "-o=json").replace(NOT_ON_NODE_1, "")
            ),
            "it to be kept",
        )
    cluster.put_policies(main=BROKEN)

    with cluster.scheduler() as after:
        cluster.run_pod("web")

        assert cluster.bound("web") == "node-2"
        assert after.state_of("test") == "last_known_good"


def _policies(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    """The exit code of `policysched policies`, and what it prints."""
    done = run("policies", *arguments, "--policies", POLICIES, "--kubeconfig", str(cluster.kubeconfig))
    return done.code, done.out + done.err


def test_policies_are_listed_removed_and_restored_by_the_command(cluster: Cluster) -> None:
    cluster.put_policies(main=PLAIN, other=PLAIN.replace("policy test", "policy other"))
    with cluster.scheduler() as scheduler:
        wait_for(lambda: scheduler.state_of("other") == "active", "the policies")

        assert _policies(cluster, "remove", "tset")[0] == 2
        assert _policies(cluster, "list", "test")[0] == 2
        assert _policies(cluster, "remove", "test", "--dry-run")[0] == 0
        assert _policies(cluster, "remove", "test", "--reason", "use other") == (
            0,
            "policy test is removed\n",
        )
        wait_for(lambda: scheduler.state_of("test") == "removed", "the removal")
        cluster.run_pod("late")
        (message,) = wait_for(lambda: cluster.events("late", "FailedScheduling"), "the reason")
        assert message.startswith("policy test is removed (use other)")
        listed = json.loads(_policies(cluster, "list", "--output-format", "json")[1])["policies"]
        assert {policy["name"]: policy["removal"] for policy in listed} == {
            "other": None,
            "test": "use other",
        }

        assert _policies(cluster, "restore", "test")[0] == 0
        assert cluster.bound("late")


def test_without_a_policy_the_process_exits_with_a_message(cluster: Cluster) -> None:
    cluster.put_policies(main=BROKEN)

    with cluster.scheduler() as scheduler:
        assert scheduler.process.wait(timeout=PATIENCE_S) == 3

        assert scheduler.logged("no policy to run")


def test_a_signal_during_shutdown_keeps_the_exit_code(cluster: Cluster) -> None:
    cluster.put_policies(main=BROKEN)

    with cluster.scheduler() as scheduler:
        wait_for(lambda: scheduler.logged("no policy to run"), "the end")
        while scheduler.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended after the poll
                scheduler.process.send_signal(signal.SIGTERM)

        assert scheduler.process.returncode == 3


def test_a_hangup_shuts_the_process_down_gracefully(cluster: Cluster) -> None:
    cluster.put_policies(main=PLAIN)

    with cluster.scheduler() as scheduler:
        wait_for(lambda: scheduler.state_of("test") == "active", "the policy")
        scheduler.process.send_signal(signal.SIGHUP)

        assert scheduler.process.wait(timeout=40) == 0
        assert [line["signal"] for line in scheduler.logged("stopping")] == ["SIGHUP"]


def test_a_deleted_configmap_leaves_the_active_policy_running(cluster: Cluster) -> None:
    cluster.put_policies(main=PLAIN)
    with cluster.scheduler() as scheduler:
        wait_for(lambda: scheduler.state_of("test") == "active", "the policy")

        cluster.kubectl("delete", "configmap", "policies", "-n", "kube-system")

        (missing,) = wait_for(lambda: cluster.events("policies", "PolicyMissing"), "the warning")
        assert "no longer exists; the last known good text" in missing
        cluster.run_pod("web")
        assert cluster.bound("web")


def test_the_process_survives_an_api_server_that_restarts_without_its_state(cluster: Cluster) -> None:
    cluster.put_policies(main=PLAIN)
    with cluster.scheduler() as scheduler:
        for number in range(20):
            cluster.run_pod(f"before{number}")
        cluster.bound("before19")

        cluster.stop()
        wait_for(lambda: scheduler.logged("is unreachable or does not answer"), "it to be said")
        cluster.start()
        cluster.run_pod("after")

        assert cluster.bound("after")
        wait_for(lambda: scheduler.logged("answers again"), "it to be said")
        assert len(scheduler.logged("is unreachable or does not answer")) == 1


def test_when_the_leader_stops_the_standby_takes_over(cluster: Cluster) -> None:
    cluster.put_policies(main=PLAIN)
    with cluster.scheduler(elect=True) as leader:
        wait_for(lambda: leader.logged("acquired the lease; leading"), "the first to lead")
        with cluster.scheduler(elect=True) as two:
            (standing_by,) = wait_for(
                lambda: two.logged("not leading: the lease is held by another process"),
                "the second to say so",
            )
            cluster.run_pod("first")
            cluster.bound("first")
            assert not two.logged("acquired the lease; leading")
            two.wait_until_ready()
            assert standing_by["holder"] and not leader.logged(
                "not leading: the lease is held by another process"
            )

            assert leader.terminate() == 0

            cluster.run_pod("second")
            assert cluster.bound("second")
            assert two.logged("acquired the lease; leading")[0]["first_decision_in_s"] == 0.0


def test_samples_from_a_file_are_used_and_a_metric_without_a_source_is_reported(
    cluster: Cluster, tmp_path: Path
) -> None:
    metric = 'metric {name}: ratio {{ query = "x"\n unit = "1"\n join = node\n every = 1s\n stale = 60s }}\n'
    cluster.put_policies(
        main="policy test version 1\n"
        + metric.format(name="load")
        + metric.format(name="spare")
        + "include kube_default\n"
        + "filter calm require load < 50% missing reject\n"
        + "filter rest require spare < 50% missing pass\n"
    )
    samples = tmp_path / "samples.yaml"
    samples.write_text('load: {node-1: "90%", node-2: 0.1}\n')
    with cluster.scheduler("--metrics", str(samples)) as scheduler:
        cluster.run_pod("first")
        assert cluster.bound("first") == "node-2"

        samples.write_text("load: {node-1: 0.1, node-2: 0.9}\n")
        (lacking,) = wait_for(
            lambda: scheduler.logged("metric `spare` has no value on any node"), "the warning"
        )
        assert lacking["reason"] == "MetricWithoutSource"
        wait_for(lambda: _lands_on(cluster, "node-1"), "the new samples to decide")


def _lands_on(cluster: Cluster, node: str) -> bool:
    """Whether a new pod is bound to the node with the current samples."""
    cluster.run_pod("probe")
    bound_to = cluster.bound("probe")
    cluster.kubectl("delete", "pod", "probe")
    return bound_to == node


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--frobnicate"], "--frobnicate"),
        (["run"], "no policies are configured"),
        (["run", "--policies", "here"], "flags: policies: is `here`, expected NAMESPACE/NAME"),
        (["run", "--policies", "a/b", "--kubeconfig", "/nowhere"], "/nowhere: no such kubeconfig file"),
        (["run", "--policies", "a/b", "--kubeconfig", "{folder}/empty"], "{folder}/empty: "),
        (["run", "--policies", "a/b", "--kubeconfig", "{folder}/torn"], "{folder}/torn: "),
        (["run", "--config", "/nowhere"], "/nowhere: no such file"),
        (["run", "--config", "{folder}/bad"], "{folder}/bad: line 3: reporting.concurrent_writes_max: "),
        (["run", "--policies", "a/b", "--http", "here"], "flags: http: is `here`, expected HOST:PORT"),
        (["sandbox", "--nodes", "/nowhere"], "/nowhere: "),
        (["sandbox", "--nodes", "many"], "many: "),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "torn").write_text("clusters: [\n")
    (tmp_path / "bad").write_text("policies: a/b\nreporting:\n  concurrent_writes_max: none\n")

    done = run(*(argument.format(folder=tmp_path) for argument in arguments))

    assert done.code == 2, done.err
    assert words.format(folder=tmp_path) in done.err
    assert len(done.err.splitlines()) == 1


def test_an_address_in_use_is_reported_in_one_line(cluster: Cluster) -> None:
    with cluster.scheduler("--http", f"127.0.0.1:{cluster.port}") as scheduler:
        assert scheduler.process.wait(timeout=PATIENCE_S) == 2

        assert scheduler.log().splitlines()[-1].startswith(f"policysched: --http 127.0.0.1:{cluster.port}: ")


def test_ctrl_c_ends_the_sandbox(cluster: Cluster) -> None:
    assert cluster._process is not None

    cluster._process.send_signal(signal.SIGINT)

    assert cluster._process.wait(timeout=PATIENCE_S) == 0
