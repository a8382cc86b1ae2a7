"""`explain` says the same of a running scheduler and of the files of its cluster: verdict, message and proposals."""

import asyncio
import io
import json
import pickle
from collections import Counter
from typing import Any

import pytest

from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.cluster_snapshot import ClusterParts
from policysched.offline.explain_worker import explained
from policysched.offline.pod_explanation import explain_pod
from policysched.runtime import live_gang_proposals
from policysched.runtime.live_endpoints import LiveEndpoints
from policysched.runtime.worker_process import WorkerProcessFailed
from tests.builders import namespace, node, pending, placed, pod
from tests.explanations.gang_scenes import Scene as GangScene
from tests.explanations.test_proposals import POLICY, Scene, program
from tests.live.rendered import rendered
from tests.scheduler.rig import Rig

SAME = ("message", "selected", "feasible", "rejected", "totals", "filters", "closest", "gang", "would_fit")


async def in_this_process(_module: str, job: Any, cluster: ClusterParts, *, wall_max_s: float) -> Any:
    parts = [pickle.dumps(part) for part in (*cluster.items(), None)]
    return explained(pickle.loads(pickle.dumps(job)), io.BytesIO(b"".join(parts)))


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_gang_proposals, "run_worker", in_this_process)


def live(rig: Rig, name: str) -> dict[str, Any]:
    return rendered(LiveEndpoints(rig.scheduler, lambda: None, lambda: rig.now_ns).explain({"pod": name}))


def differing(of_live: dict[str, Any], offline: dict[str, Any]) -> dict[str, Any]:
    """The parts that differ, live and offline."""
    plain = json.loads(json.dumps(offline))
    return {name: (of_live[name], plain[name]) for name in SAME if of_live[name] != plain[name]}


def check_gang(seed: int) -> set[str]:
    """The kinds of the proposals for a gang that does not start."""
    scene = GangScene(seed)
    files = scene.files(scene.minimum, scene.asked)
    rig = Rig({"test.policy": scene.text}, *files.nodes, *files.pods)
    rig.settle()
    if scene.asked.name in rig.placements():
        return set()

    of_live, offline = live(rig, scene.asked.full_name), scene.explained().record()

    if not of_live["gang"]["blocked"]:
        return set()
    assert differing(of_live, offline) == {}, seed
    return {proposal["kind"] for proposal in of_live["would_fit"]}


def test_a_gang_gets_the_proposals_that_its_files_give(no_process: None) -> None:
    kinds = Counter(kind for seed in range(80) for kind in check_gang(seed))

    assert {"minimum", "node", "uncordon", "move"} <= set(kinds), kinds


def test_a_pod_gets_the_proposals_that_its_files_give() -> None:
    compared = 0
    for seed in range(60):
        scene = Scene(seed, program(POLICY))
        pods = [*(placed(each, place) for each, place in scene.placed), pending(scene.pod)]
        rig = Rig({"test.policy": POLICY}, namespace(), *scene.nodes, *pods)
        rig.settle()
        if "new" in rig.placements():
            continue
        files = ClusterFiles(nodes=scene.nodes, pods=pods, namespaces=[namespace()])
        offline = explain_pod(scene.program, files, "default/new", samples={}, now_ns=rig.now_ns).record()

        of_live = live(rig, "default/new")

        assert differing(of_live, offline) == {}, seed
        compared += 1
    assert compared > 10


def blocked() -> Rig:
    text = GangScene(0).text
    members = [pod(f"w{i}", cpu="2", scheduler="test", labels={"group": "g", "least": "2"}) for i in range(2)]
    rig = Rig(text, node("a", cpu="2"), *members)
    rig.settle()
    return rig


def test_a_process_of_its_own_finds_the_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_gang_proposals, "WALL_MAX_S", 300.0)
    monkeypatch.setattr(live_gang_proposals, "WAIT_MAX_S", 300.0)

    page = live(blocked(), "default/w0")

    assert {proposal["text"] for proposal in page["would_fit"]} == {
        "min 1 instead of 2",
        "add a node like a (2 cpu, 8Gi of memory)",
    }


def test_without_an_answer_a_note_is_shown_beside_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any, **__: Any) -> Any:
        raise WorkerProcessFailed("no answer within 10 s")

    monkeypatch.setattr(live_gang_proposals, "run_worker", fails)

    page = live(blocked(), "default/w0")

    assert page["would_fit"] is None
    assert any("could not be computed: no answer within 10 s" in note for note in page["notes"])
    assert page["message"].startswith("gang default/g: 1 of 2 members fit now")


def test_what_there_was_no_time_for_is_named(no_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_gang_proposals, "_SEARCH_MAX_S", 0.0)
    rig = blocked()

    pages = [live(rig, "default/w0") for _ in range(2)]

    for page in pages:
        assert page["would_fit"] == []
        assert any(
            "lower min (no time left)" in note and "has no time limit" in note for note in page["notes"]
        )


def test_a_later_request_gets_what_an_earlier_one_did_not_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = blocked()
    endpoints = LiveEndpoints(rig.scheduler, lambda: None, lambda: rig.now_ns)
    calls: list[Any] = []

    async def scenario() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        is_finished = asyncio.Event()

        async def slow(*arguments: Any, **named: Any) -> Any:
            calls.append(arguments)
            await is_finished.wait()
            return await in_this_process(*arguments, **named)

        monkeypatch.setattr(live_gang_proposals, "run_worker", slow)
        monkeypatch.setattr(live_gang_proposals, "WAIT_MAX_S", 0.01)
        first, second = await explained_in_loop(endpoints), await explained_in_loop(endpoints)
        monkeypatch.setattr(live_gang_proposals, "WAIT_MAX_S", 300.0)
        is_finished.set()
        return first, second, await explained_in_loop(endpoints)

    first, second, third = asyncio.run(scenario())

    for page in (first, second):
        assert page["would_fit"] is None
        assert any("still computing the proposals for this gang" in note for note in page["notes"])
    assert third["would_fit"]
    assert len(calls) == 1


async def explained_in_loop(endpoints: LiveEndpoints) -> dict[str, Any]:
    page: dict[str, Any] = {}
    for step in endpoints.explain({"pod": "default/w0"}):
        if callable(step):
            await step()
        elif step is not None:
            page = dict(step)
    return page


def test_an_answer_is_kept_while_the_gang_waits_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    async def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return await in_this_process(*arguments, **named)

    monkeypatch.setattr(live_gang_proposals, "run_worker", counted)
    rig = blocked()
    endpoints = LiveEndpoints(rig.scheduler, lambda: None, lambda: rig.now_ns)

    first = rendered(endpoints.explain({"pod": "default/w0"}))
    second = rendered(endpoints.explain({"pod": "default/w0"}))

    assert first["would_fit"] == second["would_fit"]
    assert len(calls) == 1
