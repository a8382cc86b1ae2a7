"""The pages of a running scheduler agree with its state, and the commands print them."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
import orjson
import pytest

from policysched.explanations import pending_causes
from policysched.explanations.pending_causes import CausesOfPods
from policysched.lang.check import check_text
from policysched.metric_sources.samples_export import export_samples
from policysched.runtime import live_endpoints
from policysched.runtime.live_endpoints import LiveEndpoints
from policysched.scheduler.pending_summary import PendingCause
from policysched.scheduler.queue.entries import PendingPod
from policysched.schemas import schema
from policysched.serve.main_loop_reader import NoSuchEndpoint
from tests.builders import node, placed, pod
from tests.cli.builders import on_a_terminal, run
from tests.hostile import hostile_pod
from tests.live.rendered import rendered
from tests.page.served_page import document
from tests.scheduler.rig import FIT, Rig
from tests.serve.served import PAGES, served


def pages(rig: Rig) -> LiveEndpoints:
    return LiveEndpoints(rig.scheduler, lambda: None, lambda: rig.now_ns)


@pytest.fixture
def rig() -> Rig:
    gangless = [pod("fine", cpu="1"), pod("huge", cpu="64", memory="1Gi"), pod("huge-2", cpu="64")]
    rig = Rig(FIT, node("a", cpu="4"), node("b", cpu="500m", unschedulable=True), *gangless)
    rig.settle()
    rig.confirm_binds()
    return rig


def test_a_pending_pod_is_explained_on_the_state_that_decides(rig: Rig) -> None:
    page = rendered(pages(rig).explain({"pod": "huge"}))

    jsonschema.validate(page, schema("explain"))
    assert page["message"] == rig.pending_message("huge")
    assert page["waiting"]["queue"] == "unschedulable"
    assert page["placed_on"] is None
    assert page["closest"]["node"] == "a"


def test_a_placed_pod_is_explained_as_if_its_own_room_were_free(rig: Rig) -> None:
    page = rendered(pages(rig).explain({"pod": "default/fine"}))

    assert page["placed_on"] == "a"
    assert page["selected"] == "a"
    assert page["message"].startswith("default/fine is on a, with a total of ")
    assert page["waiting"] is None and page["would_fit"] == []


@pytest.mark.parametrize(
    ("name", "words"), [("nobody", "no pod named nobody"), ("default/nobody", "does not exist")]
)
def test_a_pod_that_is_not_there_is_reported(rig: Rig, name: str, words: str) -> None:
    with pytest.raises(NoSuchEndpoint, match=words):
        rendered(pages(rig).explain({"pod": name}))


GANG = """\
policy test version 1
input group: string = pod.labels["group"] optional
gang by group { min = 3 }
filter node_resources_fit
preemption never
"""


@pytest.mark.parametrize("large", ["1", "9"])
def test_no_member_of_a_blocked_gang_is_explained_as_placed(large: str) -> None:
    cpus = {"w0": "1", "w1": "1", "w2": large}
    members = [pod(name, cpu=cpu, labels={"group": "g"}) for name, cpu in cpus.items()]
    rig = Rig(GANG, node("a", cpu="2"), *members)
    rig.settle()

    for name in cpus:
        page = rendered(pages(rig).explain({"pod": name}))
        jsonschema.validate(page, schema("explain"))
        assert page["message"] == rig.pending_message(name)
        assert page["message"].startswith("gang default/g: ")
        assert page["gang"]["blocked"]
        assert page["selected"] is None


def test_a_member_of_a_running_gang_is_explained_by_itself() -> None:
    members = [pod(f"w{index}", cpu="1", labels={"group": "g"}) for index in range(4)]
    rig = Rig(GANG, node("a", cpu="3"), *members)
    rig.settle()
    rig.confirm_binds()
    (name,) = {member.name for member in members} - set(rig.placements())

    page = rendered(pages(rig).explain({"pod": name}))

    assert not page["gang"]["blocked"]
    assert page["closest"]["node"] == "a"


def test_explaining_changes_nothing(rig: Rig) -> None:
    before = rig.scheduler.core.cache.ledger.check(), len(rig.scheduler.decisions), rig.counts()

    for name in ("huge", "fine", "huge-2"):
        rendered(pages(rig).explain({"pod": name}))

    assert (rig.scheduler.core.cache.ledger.check(), len(rig.scheduler.decisions), rig.counts()) == before
    rig.check_invariants()
    assert rig.pass_time(1) == []


def test_pending_pods_are_counted_by_cause_with_what_they_request(rig: Rig) -> None:
    page = rendered(pages(rig).pending({}))

    jsonschema.validate(page, schema("pending"))
    assert page["pods"] == 2
    assert sum(cause["pods"] for cause in page["causes"]) == 2
    assert page["causes"][0]["requests"]["cpu"] == "128"
    assert sorted(page["causes"][0]["examples"]) == ["default/huge", "default/huge-2"]


def test_the_queue_and_the_nodes_are_listed(rig: Rig) -> None:
    queue, nodes = rendered(pages(rig).queue({"limit": "1"})), rendered(pages(rig).nodes({}))

    assert len(queue["pods"]) == 1 and queue["omitted"] == 1
    by_name = {each["node"]: each for each in nodes["nodes"]}
    assert by_name["a"]["requested"]["cpu"] == 1000 and by_name["a"]["pods"] == 1
    assert by_name["b"]["unschedulable"] is True


def test_nodes_are_listed_whatever_their_pods_request() -> None:
    """Pods that name their node themselves; JSON of the endpoints has integers of 64 bits."""
    most = [placed(pod(f"most-{number}", memory=str(2**63 - 1)), "a") for number in range(3)]
    rig = Rig(FIT, node("a"), *most)

    (listed,) = [step for step in pages(rig).nodes({}) if step is not None]
    of_page = document(rig, "/page/nodes", {"by": "memory"})

    assert isinstance(listed, dict)
    assert orjson.loads(orjson.dumps(listed))["nodes"][0]["requested"]["memory"] == 2**62 - 1
    assert str(2**62 - 1) in orjson.dumps(of_page).decode()


def test_a_long_queue_is_sorted_in_steps(rig: Rig) -> None:
    compared = 0

    @dataclass(frozen=True)
    class Key:
        rank: int

        def __lt__(self, other: "Key") -> bool:
            nonlocal compared
            compared += 1
            return self.rank < other.rank

    rig.observe(*(pod(f"huge-{number}", cpu="64") for number in range(3, 400)))
    rig.settle()
    for number, pending in enumerate(rig.scheduler.core.pods.values()):
        pending.order_key = (Key(number * 7919 % 399),)
    page, in_step = None, list[int]()
    for step in pages(rig).queue({"limit": "300"}):
        page = step
        in_step.append(compared)
        compared = 0

    assert isinstance(page, dict)
    ranks = [rig.scheduler.core.pods[record["uid"]].order_key[0].rank for record in page["pods"]]
    assert ranks == sorted(ranks) and (len(ranks), page["omitted"]) == (300, 99)
    assert sum(in_step) > 2_000 and max(in_step) < 1_500


def test_no_document_lists_more_than_a_thousand_pods_or_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_endpoints, "QUEUE_ROWS_MAX", 20)
    monkeypatch.setattr(pending_causes, "CAUSES_MAX", 20)
    rig = Rig(FIT, node("a", cpu="4"), *(pod(f"p{number}", cpu=f"{64 + number}") for number in range(30)))
    for number, pending in enumerate(rig.scheduler.core.pods.values()):
        pending.pending_message = f"message {number}"

    queue = rendered(pages(rig).queue({"limit": "20"}))
    with pytest.raises(NoSuchEndpoint, match="limit is 20 at most"):
        rendered(pages(rig).queue({"limit": "21"}))
    causes = rendered(pages(rig).pending({}))

    assert (len(queue["pods"]), queue["omitted"]) == (20, 10)
    jsonschema.validate(causes, schema("pending"))
    assert (len(causes["causes"]), causes["omitted_causes"], causes["pods"]) == (20, 10, 30)


def test_samples_are_exported_beside_the_main_loop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a metric between pods can be tens of thousands."""
    threads = []

    def export(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return export_samples(*arguments)

    monkeypatch.setattr(live_endpoints, "export_samples", export)
    rendered(pages(rig).samples({}))

    assert threads and threading.main_thread() not in threads


def test_the_samples_page_is_an_export_that_can_be_read_back(rig: Rig) -> None:
    page = rendered(pages(rig).samples({}))

    jsonschema.validate(page, schema("samples-export"))
    assert list(page["policies"]) == ["test"]
    assert check_text(FIT).program is not None


def test_a_replica_that_does_not_lead_reports_it(rig: Rig) -> None:
    follower = LiveEndpoints(rig.scheduler, lambda: "this replica does not lead", lambda: rig.now_ns)

    with pytest.raises(NoSuchEndpoint, match="does not lead"):
        rendered(follower.explain({"pod": "huge"}))
    assert rendered(follower.pending({}))["note"] == "this replica does not lead"


def work_of_steps(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most causes, messages and amounts that a step of `/pending` reads or writes, where each pod has its own cause."""
    work, cause_of_pod = [0], CausesOfPods.of

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            work[-1] += 1
            return function(*args)

        return call

    def own_cause(causes: CausesOfPods, pod: PendingPod) -> PendingCause:
        return replace(cause_of_pod(causes, pod), text=f"cause of {pod.pod.name}")

    for name in ("pending_status", "format_value"):
        monkeypatch.setattr(pending_causes, name, counted(getattr(pending_causes, name)))
    monkeypatch.setattr(CausesOfPods, "of", counted(own_cause))
    steps = pages(rig).pending({})
    while next(steps, "the end") is None:
        work.append(0)
    return max(work)


def many_causes() -> Rig:
    """Three hundred pods, and one that requests thousands of resources."""
    pods = [pod(f"p{number}", cpu=f"{64_000 + number}m", memory="1Gi") for number in range(300)]
    rig = Rig(FIT, node("a", cpu="4"), *pods, hostile_pod("resources", scheduler="test"))
    rig.settle()
    return rig


def test_a_step_of_the_pending_pods_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work_of_steps(many_causes(), monkeypatch) <= 220


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (pending_causes, "_CAUSES_PER_STEP"),
        (pending_causes, "REQUESTS_MAX"),
        (live_endpoints, "_PODS_PER_STEP"),
    ],
)
def test_a_long_step_is_found(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    monkeypatch.setattr(owner, name, 10_000)

    assert work_of_steps(many_causes(), monkeypatch) > 500


@pytest.mark.parametrize("named", ["default/hidden", "hidden"])
def test_a_scheduler_name_of_a_tenant_cannot_write_to_the_terminal(named: str) -> None:
    """The API server takes any text; a terminal would take it as the title, or as the content of the clipboard."""
    hidden = pod("hidden", scheduler="\x1b]52;c;b3duZWQ=\x07\u202e")
    endpoints = replace(PAGES, live_endpoints=pages(Rig(FIT, node("a"), hidden)).by_path())

    async def scenario(port: int) -> None:
        result = await asyncio.to_thread(run, "explain", named, "--url", f"http://127.0.0.1:{port}")
        assert "its schedulerName is `\\x1b]52;c;b3duZWQ=\\x07\\u202e`" in result.err
        assert [char for char in result.err if not char.isprintable()] == ["\n"]

    served(scenario, pages=endpoints)


def test_a_replica_that_does_not_lead_does_not_say_that_no_pod_is_pending() -> None:
    note = "this replica does not lead and has no policies, pods or decisions; the leader is other"
    rig = Rig(FIT, node("a"))
    following = LiveEndpoints(rig.scheduler, lambda: note, lambda: rig.now_ns)

    async def scenario(port: int) -> None:
        url = ("pending", "--url", f"http://127.0.0.1:{port}")
        shown = await asyncio.to_thread(on_a_terminal, *url)
        told = await asyncio.to_thread(run, *url)
        assert "No pod is pending" not in shown
        assert told.err == f"note: {note}\n"

    served(scenario, pages=replace(PAGES, live_endpoints=following.by_path()))

    async def leading(port: int) -> None:
        shown = await asyncio.to_thread(on_a_terminal, "pending", "--url", f"http://127.0.0.1:{port}")
        assert shown == "No pod is pending.\n"

    served(leading, pages=replace(PAGES, live_endpoints=pages(rig).by_path()))
