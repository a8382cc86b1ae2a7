"""kubeRL, by `policies/kube-rl.policy`. The scheduler receives container statuses as a kubelet
writes them, and the policy's states learn from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conformance.seed_systems.scheduler_run import SchedulerRun
from tests.conformance.seed_systems.worlds import Policy, node_with, play, raw, value_of, world

Json = dict[str, Any]

_SCHEDULER = "rl-scheduler"
_START = datetime(2026, 1, 1, tzinfo=UTC)
_PROBE = """
state seconds_down: float {
  key = pod_type
  on = terminated
  value = (container.down else 0s) / 1s else 0
  keep = 0%
  start = 0.0
}
"""


def answer(case: Json) -> Json:
    given = case["input"]
    if isinstance(given.get("rewards"), dict):
        return {"scores": _scores(given)}
    if "rewards" in given:
        return _averaged(given)
    if "containerStatus" in given and "reward" in case["expected"]:
        return {"reward": _reward({"containerStatuses": [{"name": "c", **given["containerStatus"]}]})}
    if "containerStatus" in given:
        return {"recommended": _of_one_end(given)}
    for key in ("statuses", "rows", "events"):
        if key in given:
            return {"rewards": [_reward(state) for state in given[key]]}
    if "status" in given or "phase" in given:
        return {"reward": _reward(given.get("status", given))}
    if "event" in given:
        return _after_an_event(given, case["expected"])
    if "failure_period_s" in given:
        return _demo(given)
    if "pods" in given:
        return {"podtype": _types(given["pods"])}
    return {}


# ── scores ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _scores(given: Json) -> Json:
    program = Policy("kube-rl").program()
    rewards: Mapping[str, Mapping[str, float]] = given["rewards"]
    scenario = world(
        program,
        nodes=given["nodes"],
        pods=[given["pod"]],
        state={"reward": rewards, "rewarded": {type_: dict.fromkeys(of, 1) for type_, of in rewards.items()}},
        scheduler=_SCHEDULER,
    )
    return raw(play(program, scenario).explanations[given["pod"]["metadata"]["name"]], "rl_priority")


def _types(pods: Sequence[Json]) -> dict[str, str]:
    """A node for each possible type; the selected node is the policy's `pod_type`."""
    words = sorted(
        {pod["metadata"]["name"] for pod in pods}
        | {word for pod in pods for word in pod["metadata"].get("labels", {}).values()}
    )
    nodes = [node_with(f"n{index}", labels={"word": word}) for index, word in enumerate(words)]
    labels = value_of(
        Policy("kube-rl"),
        'if pod_type == (node.labels["word"] else "") then 1 else 0',
        nodes=nodes,
        pods=pods,
        scheduler=_SCHEDULER,
    )
    return {
        pod: words[[bool(values[f"n{index}"]) for index in range(len(words))].index(True)]
        for pod, values in labels.items()
    }


# ── learning ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _averaged(given: Json) -> Json:
    """For each reward, a pod to which exactly the rewarded event happens, and then the score of a
    new pod on that node.
    """
    scheduler = SchedulerRun(Policy("kube-rl").program(), {"reward": {"D": {"n1": given["start"]}}})
    scheduler.add_node("n1")
    values, scores = [], []
    for index, reward in enumerate(given["rewards"]):
        scheduler.show(_pod(f"p{index}", "D", "n1", _STATUS_FOR[reward]))
        values.append(scheduler.value("reward", "D", "n1"))
        asked = _pod(f"asked-{index}", "D", None, {"phase": "Pending"})
        scheduler.show(asked)
        scores.append(scheduler.explain(asked["metadata"]["uid"]).scores["rl_priority"]["n1"].raw)
        scheduler.tell_gone(asked["metadata"]["uid"])
    return {"values": values, "score": scores}


def _after_an_event(given: Json, expected: Json) -> Json:
    """Values after one update. `before` has the values by the seed system's keys, or `pod_vals` by
    type; the answer has the keys that the case expects.
    """
    event = given["event"]
    before = {
        f"/pods/{type_}/{node}": value
        for type_, of in given.get("pod_vals", {}).items()
        for node, value in of.items()
    } | given.get("before", {})
    state: dict[str, Any] = {"reward": {}, "node_reward": {}, "type_reward": {}}
    for key, value in before.items():
        match key.strip("/").split("/"):
            case ["nodes", node]:
                state["node_reward"][node] = value
            case ["pods", type_, "all"]:
                state["type_reward"][type_] = value
            case ["pods", type_, node]:
                state["reward"].setdefault(type_, {})[node] = value
    scheduler = SchedulerRun(Policy("kube-rl").program(), state)
    scheduler.add_node(event["node"])
    status = _STATUS_OF_PHASE["Pending" if event["phase"] == "DELETED" else event["phase"]]
    scheduler.show(_pod("p", event["podtype"], event["node"], status))
    if event["phase"] == "DELETED":
        scheduler.tell_gone("uid-p")

    def value(key: str) -> str:
        match key.strip("/").split("/"):
            case ["nodes", node]:
                reward = scheduler.value("node_reward", "", node)
            case ["pods", type_, "all"]:
                reward = scheduler.value("type_reward", type_, None)
            case ["pods", type_, node]:
                reward = scheduler.value("reward", type_, node)
            case _:
                raise LookupError(f"no state keeps {key}")
        return f"{reward:f}"

    return {
        name: {key: value(key) for key in expected[name]}
        for name in ("after", "recommended")
        if isinstance(expected.get(name), dict)
    }


def _of_one_end(given: Json) -> Json:
    """A container that was idle for this long, and the reward at its end."""
    policy = Policy("kube-rl", {"mean_time_to_failure": f"{given.get('MTTF', 600)}s"}).with_more(_PROBE)
    scheduler = SchedulerRun(policy.program())
    scheduler.add_node("n")
    ends = {"name": "c", "restartCount": 1, **given["containerStatus"]}
    # The earlier watch event, in which the last termination is still the current state.
    first = {"name": "c", "restartCount": 0, "state": ends.get("lastState", {})}
    start = scheduler.value("reward", "D", "n")
    if first["state"]:
        scheduler.show(_pod("p", "D", "n", {"phase": "Running", "containerStatuses": [first]}))
        start = scheduler.value("reward", "D", "n")
    scheduler.show(_pod("p", "D", "n", {"phase": "Running", "containerStatuses": [ends]}))
    fed = (scheduler.value("reward", "D", "n") - 0.9 * start) / 0.1
    return {"difference": round(scheduler.value("seconds_down", "D", "n")), "reward": round(fed, 6)}


_FED = """
state fed: float { key = pod_type  on = any  when = is_rewarded  value = reward_value  keep = 50%  start = 10.0 }
"""


def _reward(state: Json) -> float | None:
    """The reward for one status of a pod, or None. The earlier watch event is delivered first."""
    status = state.get("status", state)
    scheduler = SchedulerRun(Policy("kube-rl").with_more(_FED).program())
    scheduler.add_node("n")
    earlier = [
        {**container, "state": container["lastState"], "lastState": {}}
        for container in status.get("containerStatuses", ())
        if container.get("lastState")
    ]
    if earlier:
        scheduler.show(_pod("p", "D", "n", {"phase": "Running", "containerStatuses": earlier}))
    before = scheduler.value("fed", "D", "n")
    scheduler.show(_pod("p", "D", "n", {"phase": "Running", **status}))
    after = scheduler.value("fed", "D", "n")
    return None if after == before else round(2 * after - before, 9)


def _demo(given: Json) -> Json:
    """Ten minutes in which the container on each node terminates periodically and restarts at once;
    then the next pod of the type is scored on nodes that differ only in what was learned.
    """
    type_ = given["deployment"]["labels"]["podtype"]
    periods: Mapping[str, float | None] = given["failure_period_s"]
    scheduler = SchedulerRun(Policy("kube-rl").program())
    for node in periods:
        scheduler.add_node(node)
    shown = sorted(
        (at_s, node, status) for node, period in periods.items() for at_s, status in _restarts(period)
    )
    for _, node, status in shown:
        scheduler.show(_pod(f"demo-{node}", type_, node, status))
    scheduler.show(_pod("test-pod", type_, None, {"phase": "Pending"}))
    scheduler.decide()
    return {
        "reward_order": sorted(periods, key=lambda node: (-scheduler.value("reward", type_, node), node)),
        "binding_node": scheduler.bound.get("test-pod"),
    }


def _restarts(period_s: float | None) -> Iterator[tuple[float, Json]]:
    """Each status that a kubelet would write, with its time in seconds."""
    last: Json = {}
    runs = 1 if period_s is None else max(1, int(600 / period_s))
    for run in range(runs):
        began_s = run * (period_s or 0)
        status = {"name": "c", "restartCount": run, "lastState": last}
        running = {"state": {"running": {"startedAt": _time(began_s)}}, "containerID": f"run-{run}"}
        yield began_s, {"phase": "Running", "containerStatuses": [status | running]}
        if period_s is not None:
            ended_s = began_s + period_s
            ended = {
                "startedAt": _time(began_s),
                "finishedAt": _time(ended_s),
                "exitCode": 1,
                "containerID": f"run-{run}",
            }
            yield (
                ended_s - 0.5,
                {"phase": "Running", "containerStatuses": [status | {"state": {"terminated": ended}}]},
            )
            last = {"terminated": ended}


# ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pod(name: str, type_: str, node: str | None, status: Json) -> Json:
    spec: Json = {"containers": [{"name": "c"}]} | ({"nodeName": node} if node else {})
    meta = {"name": name, "uid": f"uid-{name}", "namespace": "default", "labels": {"podtype": type_}}
    return {"metadata": {**meta, "creationTimestamp": _time(0)}, "spec": spec, "status": status}


def _time(after_s: float) -> str:
    return (_START + timedelta(seconds=int(after_s))).strftime("%Y-%m-%dT%H:%M:%SZ")


_RUNS: Json = {"state": {"running": {"startedAt": _time(0)}}, "containerID": "run-0"}
_ENDED: Json = {
    "state": {
        "terminated": {"startedAt": _time(0), "finishedAt": _time(1), "exitCode": 1, "containerID": "run-0"}
    }
}
_STATUS_OF_PHASE: Mapping[str, Json] = {
    "Running": {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 0, **_RUNS}]},
    "Failed": {"phase": "Failed", "containerStatuses": [{"name": "c", "restartCount": 0, **_ENDED}]},
    "Unknown": {"phase": "Unknown"},
    "Succeeded": {"phase": "Succeeded"},
    "Pending": {"phase": "Pending"},
}
_STATUS_FOR: Mapping[float, Json] = {
    1: _STATUS_OF_PHASE["Running"],
    0.5: {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 0, **_ENDED}]},
    0: _STATUS_OF_PHASE["Failed"],
}
