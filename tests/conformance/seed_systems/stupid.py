"""The StupidScheduler tutorial, by `policies/stupid.policy`."""

import re
from typing import Any

from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler import events as e
from tests.conformance.seed_systems.scheduler_run import SchedulerRun
from tests.conformance.seed_systems.worlds import Policy, play, roomy_node, world

Json = dict[str, Any]

_SCHEDULER = "StupidScheduler"


def answer(case: Json) -> Json:
    given, expected = case["input"], case["expected"]
    program = Policy("stupid").program()
    if "events" in given:
        return {"recommended": _after(program, given["events"])}
    if given.get("nodes") == []:
        return {"recommended": _before_a_node_comes(program, given["pods"], expected.get("recommended"))}
    nodes = given.get("nodes") or [roomy_node()]
    whole = any("/" in name for key in ("binding", "bindings") for name in expected.get(key, ()))
    cluster = world(program, nodes=nodes, pods=_pods(given), scheduler=_SCHEDULER)
    result = play(program, cluster, whole_names=whole)
    names = expected.get("order_any_permutation_of")
    same = names is not None and sorted(result.decision_order) == sorted(names)
    return {
        "queue": result.decision_order,
        "log": _events(program, given),
        "binding": result.node,
        "bindings": result.node,
        "order_any_permutation_of": names if same else result.decision_order,
    } | _each_for_itself(program, given, expected)


def _pods(given: Json) -> list[Json]:
    """A pod without a scheduler name belongs to the default scheduler."""
    return [
        {**pod, "spec": {"schedulerName": "default-scheduler", **pod.get("spec", {})}}
        for pod in given["pods"]
    ]


def _each_for_itself(program: Program, given: Json, expected: Json) -> Json:
    """The expected text of the case if every pod that names the scheduler is bound, whatever it is
    called.
    """
    wanted = expected.get("recommended")
    if not isinstance(wanted, str):
        return {}
    result = play(
        program,
        world(program, nodes=[roomy_node()], pods=_pods(given), scheduler=_SCHEDULER),
        whole_names=True,
    )
    pods = {
        f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"
        for pod in given["pods"]
        if pod["spec"].get("schedulerName") == _SCHEDULER and "nodeName" not in pod["spec"]
    }
    return {"recommended": wanted if pods <= set(result.node) else f"bound {result.node}"}


def _events(program: Program, given: Json) -> list[str]:
    """The events of the pods that name the scheduler."""
    life = SchedulerRun(program)
    for pod in given["pods"]:
        if pod["spec"].get("schedulerName") == _SCHEDULER:
            meta = pod["metadata"]
            life.show({**pod, "metadata": {"uid": f"{meta.get('namespace')}/{meta['name']}", **meta}})
    for node in given.get("nodes", ()):
        life.add_node(node["metadata"]["name"])
    life.decide()
    return life.events


_EVENT = re.compile(r"(?P<verb>add|delete) (?P<kind>pod|node) (?P<name>\S+)(?P<earlier>.*known earlier.*)?")


def _after(program: Program, events: list[str]) -> str:
    """Apply the events of the case, then place another pod to see which nodes are still selected."""
    steps = [match_ for event in events if (match_ := _EVENT.match(event)) is not None]
    life = SchedulerRun(program)
    for step in steps:
        if step["earlier"]:
            life.add_node(step["name"])
    unbound = {
        kind: {step["name"] for step in steps if step["verb"] == "delete" and step["kind"] == kind}
        for kind in ("pod", "node")
    }
    for step in steps:
        match step["verb"], step["kind"]:
            case "add", "pod":
                life.add_pod(step["name"])
            case "delete", "pod":
                life.tell(e.PodDeleted(PodUid(f"default/{step['name']}")))
            case "add", "node":
                life.add_node(step["name"])
            case "delete", _:
                life.tell(e.NodeDeleted(NodeName(step["name"])))
    for number in range(10):
        life.add_pod(f"later-{number}")
    life.decide()
    tried = unbound["pod"] & {*life.bound, *life.refused}
    chosen = unbound["node"] & set(life.bound.values())
    return "drop on delete" if not tried and not chosen else f"tried {tried}, chosen {chosen}"


def _before_a_node_comes(program: Program, pods: list[Json], wanted: str | None) -> str:
    """The expected text of the case if every pod waits while there is no node, and is bound once a
    node is added.
    """
    life = SchedulerRun(program)
    names = [pod["metadata"]["name"] for pod in pods]
    for name in names:
        life.add_pod(name)
    life.decide()
    waited = not life.bound and set(names) <= set(life.refused)
    life.add_node("n")
    life.decide()
    return str(wanted) if waited and set(names) <= set(life.bound) else f"bound {life.bound}"
