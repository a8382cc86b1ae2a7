"""The order in which extenders are asked, about whom, and what becomes of those that give no answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from policysched.daemon.extender_caller import ExtenderCaller
from policysched.kube.extender.client import ExtenderCallFailed, ExtenderEndpoint, ExtenderFilterResult
from policysched.kube.watch.resources import NODES
from policysched.lang.ir.extender_results import ExtenderRejection
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.commands import CallExtenders
from policysched.scheduler.events import ExtendersAnswered
from tests.builders import node_manifest
from tests.kube.world import World, on_virtual_time, running, until


class Fake:
    """Refuses these nodes; answers nothing at all where `broken`. Notes what it is asked."""

    def __init__(
        self,
        name: str,
        log: list[tuple[str, str, tuple[str, ...]]],
        *,
        refuses: Sequence[str] = (),
        broken: bool = False,
        **peer: Any,
    ) -> None:
        self.endpoint = ExtenderEndpoint(name, "http://x", filter="f", prioritize="p", **peer)
        self._log, self._refuses, self._broken = log, refuses, broken

    async def filter(
        self, pod: Mapping[str, Any], nodes: Sequence[str], whole: Mapping[str, Any]
    ) -> ExtenderFilterResult:
        self._note("filter", pod, nodes, whole)
        refused = {node: ExtenderRejection("no", resolvable=True) for node in nodes if node in self._refuses}
        return ExtenderFilterResult(tuple(node for node in nodes if node not in refused), refused)

    async def prioritize(
        self, pod: Mapping[str, Any], nodes: Sequence[str], whole: Mapping[str, Any]
    ) -> dict[str, int]:
        self._note("prioritize", pod, nodes, whole)
        return dict.fromkeys(nodes, 7)

    def _note(
        self, verb: str, pod: Mapping[str, Any], nodes: Sequence[str], whole: Mapping[str, Any]
    ) -> None:
        assert pod["kind"] == "Pod" and pod["metadata"]["name"] == "web"
        assert not self.endpoint.send_node_objects or set(nodes) <= set(whole)
        self._log.append((self.endpoint.name, verb, tuple(nodes)))
        if self._broken:
            raise ExtenderCallFailed(f"extender {self.endpoint.name}: {verb} is broken")


def consulted(
    *fakes: Fake,
    nodes: Sequence[str] = ("a", "b", "c"),
    scoring: bool = True,
    name: str = "web",
    uid: str | None = None,
) -> ExtendersAnswered:
    answers: list[ExtendersAnswered] = []
    consultants: list[ExtenderCaller] = []

    async def scenario() -> None:
        world = World()
        web_uid = world.add_pod("web")["metadata"]["uid"]
        clients: Any = {fake.endpoint.name: fake for fake in fakes}
        consultant = ExtenderCaller(clients, world.api(), answers.append)
        consultants.append(consultant)
        for node in nodes:
            consultant.node_resource.updated_event({**node_manifest(node)})
        consultant.submit(
            CallExtenders(
                7,
                PodUid(web_uid if uid is None else uid),
                "default",
                name,
                tuple(map(NodeName, nodes)),
                tuple((client, scoring) for client in clients),
            )
        )
        async with running(consultant.run()):
            await until(lambda: answers, "an answer")

    on_virtual_time(scenario)
    (answer,) = answers
    assert answer.call_id == 7
    asked = sum(consultants[0].calls.values())
    assert asked == sum(len(log) for log in {id(fake._log): fake._log for fake in fakes}.values())
    return answer


def test_extenders_are_called_in_turn_with_the_remaining_nodes_ignorable_ones_last() -> None:
    log: list[tuple[str, str, tuple[str, ...]]] = []

    answered = consulted(
        Fake("loose", log, ignorable=True, refuses=["b"]),
        Fake("strict", log, refuses=["a"], send_node_objects=True),
    )

    assert log[:2] == [("strict", "filter", ("a", "b", "c")), ("loose", "filter", ("b", "c"))]
    assert set(answered.answers["strict"].rejections) == {"a"}
    assert set(answered.answers["loose"].rejections) == {"b"}
    assert len(log) == 2  # one node is left: there is nothing to score


def test_extenders_with_a_weight_score_the_remaining_nodes() -> None:
    log: list[tuple[str, str, tuple[str, ...]]] = []

    with_weight = consulted(Fake("x", log, refuses=["a"]))
    without = consulted(Fake("x", [], refuses=["a"]), scoring=False)

    assert log[1] == ("x", "prioritize", ("b", "c"))
    assert with_weight.answers["x"].scores == {"b": 7, "c": 7}
    assert without.answers["x"].scores == {}


def test_without_remaining_nodes_no_further_extender_is_called() -> None:
    log: list[tuple[str, str, tuple[str, ...]]] = []

    answered = consulted(Fake("x", log, refuses=["a"]), Fake("y", log), nodes=["a"])

    assert log == [("x", "filter", ("a",))]
    assert answered.failure is None


def test_no_answer_of_one_that_must_not_be_left_out_is_the_answer() -> None:
    answered = consulted(Fake("x", [], broken=True))

    assert (answered.answers, answered.failure) == ({}, "extender x: filter is broken")


def test_an_ignorable_extender_that_fails_rejects_and_scores_no_node() -> None:
    answered = consulted(Fake("x", [], broken=True, ignorable=True))

    assert answered.failure is None
    assert (answered.answers["x"].rejections, answered.answers["x"].scores) == ({}, {})


def test_a_pod_that_cannot_be_read_is_reported() -> None:
    answered = consulted(Fake("x", []), name="gone")

    assert answered.failure is not None and answered.failure.startswith(
        "cannot read the pod for its extenders"
    )


def test_no_answer_about_a_later_pod_of_the_name_is_taken() -> None:
    log: list[tuple[str, str, tuple[str, ...]]] = []

    answered = consulted(Fake("x", log), uid="of-a-deleted-pod")

    assert answered.failure == (
        "cannot read the pod for its extenders: it was deleted, and another pod has its name"
    )
    assert log == []


def test_complete_nodes_are_kept_only_if_an_extender_needs_them() -> None:
    clients: Any = {"x": Fake("x", [])}

    assert ExtenderCaller(clients, None, lambda _: None).node_resource is NODES  # type: ignore[arg-type]


def test_a_node_that_left_is_not_kept() -> None:
    clients: Any = {"x": Fake("x", [], send_node_objects=True)}
    consultant = ExtenderCaller(clients, None, lambda _: None)  # type: ignore[arg-type]
    resource = consultant.node_resource

    resource.updated_event(node_manifest("a"))
    before = set(consultant._node_objects())
    resource.deleted_event("a")

    assert (before, set(consultant._node_objects())) == ({"a"}, set())
