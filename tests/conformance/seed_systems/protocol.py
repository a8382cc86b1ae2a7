"""The extender protocol from both ends: policysched as an extender, and as a scheduler that calls
extenders.
"""

import asyncio
import json
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from policysched.daemon.extender_caller import extender_capabilities
from policysched.daemon.extender_chain import call_extenders
from policysched.kube.extender.client import ExtenderCallFailed, ExtenderClient, ExtenderEndpoint
from policysched.scheduler.commands import CallExtenders
from policysched.scheduler.events import ExtendersAnswered
from policysched.scheduler.policies.extender_capabilities import unusable_extenders
from policysched.serve.health import Health
from policysched.serve.server import HttpThread, ListenAddress
from policysched.serve.status_routes import StatusEndpoints
from tests.conformance.seed_systems.scheduler_run import SchedulerRun
from tests.conformance.seed_systems.worlds import POLICIES, Policy, node_with, pod_with, policy_of_text
from tests.extender.test_extender_app import extender
from tests.kube.world import on_virtual_time

Json = dict[str, Any]

# ── policysched as an extender ─────────────────────────────────────────────────────────────────────────────────────

_OVERLOAD_ALONE = "\n".join(
    f"drop score {rule.name}"
    for rule in Policy("safe").program().rules.scores
    if rule.name != "safe_overload"
)


def asked(expected: Json) -> Json:
    """The answers of `policysched extender` with `policies/safe.policy`, in the wording of the
    case.
    """
    answers: Json = {}

    async def scenario() -> None:
        text = (POLICIES / "safe.policy").read_text(encoding="utf-8") + _OVERLOAD_ALONE + "\n"
        async with extender(text) as server:

            async def ask(verb: str, body: object) -> Any:
                return await server.ask(verb, body, policy="safe")

            busy = _node("busy", mean=100, deviation=50)
            arguments = {
                "Pod": _pod(),
                "Nodes": {"items": [_node("master-node", mean=900, deviation=200), busy]},
            }
            filtered = (await ask("filter", arguments)).value
            scored = await ask(
                "prioritize", {**arguments, "Nodes": {"items": arguments["Nodes"]["items"][:1]}}
            )
            named = await ask("filter", {"Pod": _pod(), "Nodes": None, "NodeNames": ["a"]})
            cut, unreadable = await ask("filter", b"{"), await ask("prioritize", b"{")
            bound = await ask(
                "bind", {"PodName": "none", "PodNamespace": "default", "PodUID": "u", "Node": "a"}
            )
            preempted = await ask("preempt", {"Pod": _pod(), "NodeNameToMetaVictims": {}})
            answers.update(
                {
                    "filter_response_keys": [
                        key for key in expected["filter_response_keys"] if key in filtered
                    ],
                    "rejected_node_in_FailedNodes": "busy" in filtered["FailedNodes"],
                    "prioritize_response": scored.value,
                    "bind": {"status": bound.status, "Error": bound.value["Error"]},
                    "preemption_status": preempted.status,
                    "bad_json_filter": {
                        "status": cut.status,
                        "Error": expected["bad_json_filter"]["Error"] if cut.value["Error"] else "",
                    },
                    "bad_json_prioritize": f"status {unreadable.status}",
                    "nodes_null (nodeCacheCapable=true)": f"NodeNames {named.value['NodeNames']}",
                }
            )

    on_virtual_time(scenario)
    return answers | {"version_status": _version()}


def _version() -> int:
    def status() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/version", timeout=10) as answer:
            return int(answer.status)

    pages = StatusEndpoints(metrics=lambda: "", policy=dict, decisions=None, configz=dict)
    server = HttpThread(
        ListenAddress("127.0.0.1", 0), Health(live={}, ready={}), pages, asyncio.new_event_loop()
    )
    port = server.start()
    try:
        return status()
    finally:
        server.stop()


def _pod() -> Json:
    return pod_with("test-pod", scheduler="my-scheduler", cpu="200m", memory="200Mi")


def _node(name: str, *, mean: int, deviation: int) -> Json:
    annotations = {"mean-free-cpu": str(mean), "std-free-cpu": str(deviation)}
    return node_with(name, cpu="2", memory="1396Mi", annotations=annotations)


# ── policysched calls an extender ──────────────────────────────────────────────────────────────────────────────────

_POLICY = """policy case version 1
score flat weight 1 prefer node.name == "b"
extender beside weight 1 missing worst
"""
_GOOD: Json = {
    "filter": {"NodeNames": ["a"], "FailedNodes": {"b": "no"}},
    "prioritize": [{"Host": "a", "Score": 10}],
}
_BROKEN: Json = {**_GOOD, "filter": {"Error": "out of order"}}


def became(case: str) -> str:
    """The outcome for a pod whose extender behaves as the case describes. Raises KeyError for an
    unknown case.
    """
    return _CASES[case]()


def _filter_error(ignorable: bool) -> Callable[[], str]:
    def play() -> str:
        scheduler = _decided_with(_BROKEN, _peer(ignorable=ignorable))
        if "p" in scheduler.bound:
            return "extender skipped"
        return "pod fails this cycle" if scheduler.refused == ["p"] else f"bound {scheduler.bound}"

    return play


def _prioritize_error() -> str:
    """The node with the best score of the rules is selected, and the extender's filter is applied:
    by the extender's score it would be the other node.
    """
    everywhere = {**_GOOD, "filter": {"NodeNames": ["a", "b"]}}
    heavy = _POLICY.replace("weight 1 missing", "weight 2 missing")
    with_scores = _decided_with(everywhere, _peer(), text=heavy).bound
    without = _decided_with({**everywhere, "prioritize": 500}, _peer(), text=heavy).bound
    return "its score is left out" if (with_scores, without) == ({"p": "a"}, {"p": "b"}) else f"{without}"


def _bind_error() -> str:
    scheduler = _decided_with(_GOOD, _peer(), bind_fails=True)
    return (
        "bind fails, pod goes back"
        if scheduler.attempts > 1 and not scheduler.bound
        else f"bound {scheduler.bound}"
    )


def _bad_status() -> str:
    scheduler = _decided_with({**_GOOD, "filter": 503}, _peer())
    return (
        "error" if scheduler.refused == ["p"] and "503" in scheduler.said[0] else f"bound {scheduler.bound}"
    )


def _without_prioritize() -> str:
    """A policy cannot set this weight, so the extender's scores count 0."""
    weighty = unusable_extenders(
        policy_of_text(_POLICY), extender_capabilities({"beside": _peer(prioritize=None)})
    )
    answers = {"filter": {"NodeNames": ["a", "b"]}}
    plain = _decided_with(
        answers, _peer(prioritize=None), text=_POLICY.replace(" weight 1 missing worst", "")
    ).bound
    return "all 0, weight 0" if weighty and plain == {"p": "b"} else f"{weighty}; bound {plain}"


def _without_filter() -> str:
    scheduler = _decided_with(_GOOD, _peer(filter=None))
    everywhere = scheduler.asked and set(scheduler.asked[0].nodes) == {"a", "b"}
    return "all nodes pass" if everywhere and scheduler.bound else f"bound {scheduler.bound}"


def _timeout() -> str:
    return f"{ExtenderEndpoint('beside', 'http://x').timeout_s:g}s"


_CASES: Mapping[str, Callable[[], str]] = {
    "filter error, ignorable=false": _filter_error(ignorable=False),
    "filter error, ignorable=true": _filter_error(ignorable=True),
    "prioritize error": _prioritize_error,
    "bind error": _bind_error,
    "HTTP status != 200": _bad_status,
    "prioritize verb empty": _without_prioritize,
    "filter verb empty": _without_filter,
    "default timeout": _timeout,
}


def _peer(**more: Any) -> ExtenderEndpoint:
    return ExtenderEndpoint(
        "beside", **{"url": "http://localhost", "filter": "filter", "prioritize": "prioritize", **more}
    )


class _Asking(SchedulerRun):
    """Extenders are called over HTTP and answer at once."""

    def __init__(self, text: str, answers: Json, peer: ExtenderEndpoint, *, bind_fails: bool) -> None:
        self._answers, self._peer = answers, peer
        self.asked: list[CallExtenders] = []
        super().__init__(
            policy_of_text(text), extenders=extender_capabilities({"beside": peer}), bind_fails=bind_fails
        )

    def consulted(self, command: CallExtenders) -> ExtendersAnswered:
        self.asked.append(command)
        return asyncio.run(_ask(command, self._answers, self._peer))


async def _ask(command: CallExtenders, answers: Json, peer: ExtenderEndpoint) -> ExtendersAnswered:
    """A number as the answer is an HTTP status."""

    async def answer(request: web.Request) -> web.Response:
        scripted = answers[request.match_info["verb"]]
        if isinstance(scripted, int):
            return web.Response(status=scripted)
        return web.json_response(scripted)

    application = web.Application()
    application.router.add_post("/{verb}", answer)
    async with TestServer(application) as server, aiohttp.ClientSession() as session:
        client = ExtenderClient(replace(peer, url=str(server.make_url("")).rstrip("/")), session)
        wanted = [(client, scores) for _, scores in command.extenders]
        pod = json.loads(json.dumps(pod_with(command.name)))
        try:
            responses = await call_extenders(wanted, pod, command.nodes, node_objects={}, calls=Counter())
        except ExtenderCallFailed as error:
            return ExtendersAnswered(command.call_id, {}, str(error))
    return ExtendersAnswered(command.call_id, responses)


def _decided_with(
    answers: Json, peer: ExtenderEndpoint, *, text: str = _POLICY, bind_fails: bool = False
) -> _Asking:
    scheduler = _Asking(text, answers, peer, bind_fails=bind_fails)
    scheduler.add_node("a")
    scheduler.add_node("b")
    scheduler.add_pod("p")
    scheduler.decide()
    return scheduler
