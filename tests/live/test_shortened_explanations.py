"""An explanation of very many rejections lists some nodes, and counts all of them exactly."""

import io
from collections import Counter, defaultdict
from random import Random
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from policysched.cli.explain_view import print_explanation
from policysched.evaluate import placement_explanation
from policysched.explanations import live, record
from policysched.model.identifiers import NodeName
from policysched.runtime.live_endpoints import LiveEndpoints
from policysched.scheduler.events import NodeDeleted
from policysched.schemas import schema
from tests.builders import node, pod
from tests.live.rendered import rendered
from tests.page.served_page import document
from tests.scheduler.rig import Rig

RULES = 5
POLICY = (
    "policy test version 1\nfilter node_affinity\nfilter node_resources_fit\n"
    + "".join(
        f'input v{n}: int = node.annotations["v{n}"] default 0 invalid reject "no number"\n'
        f'filter f{n} require v{n} < 1 says "has {{v{n}}} of f{n}"\n'
        for n in range(RULES)
    )
    + "preemption never\n"
)
EXACT = ("message", "filters", "feasible", "totals", "nodes")
NAMED = {"key": "metadata.name", "operator": "In", "values": ["n003", "n007", "n017"]}
BY_NAME = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [NAMED]}]}
}


def scene(seed: int, *, node_count: int = 40) -> Rig:
    """Each node is rejected by some of the rules, in about a dozen different sets."""
    random = Random(seed)
    sets = [random.sample(range(RULES), random.randint(1, RULES)) for _ in range(12)]
    nodes = []
    for number in range(node_count):
        rules = random.choice(sets)
        values = {f"v{n}": str(random.randint(1, 9) if n in rules else 0) for n in range(RULES)}
        nodes.append(node(f"n{number:03}", cpu=random.choice(["1", "8"]), annotations=values))
    spec = {"affinity": {"nodeAffinity": BY_NAME}} if seed % 3 == 0 else {}
    rig = Rig(
        POLICY, pod("p", cpu="2", resources={"example.com/gpu": "1"} if seed % 2 else {}, spec=spec), *nodes
    )
    rig.settle()
    return rig


def explain(rig: Rig, monkeypatch: pytest.MonkeyPatch, reasons_max: int) -> dict[str, Any]:
    monkeypatch.setattr(live, "_REASONS_MAX", reasons_max)
    page = rendered(LiveEndpoints(rig.scheduler, lambda: None, lambda: rig.now_ns).explain({"pod": "p"}))
    jsonschema.validate(page, schema("explain"))
    return page


def nodes_by_cause(rejected: dict[str, Any]) -> dict[tuple[str, ...], list[str]]:
    nodes = defaultdict[tuple[str, ...], list[str]](list)
    for name, rejections in sorted(rejected.items()):
        nodes[tuple(dict.fromkeys(each["rule"] for each in rejections))].append(name)
    return nodes


@pytest.mark.parametrize("seed", range(12))
def test_the_nodes_that_are_not_listed_are_counted(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = scene(seed)
    full = explain(rig, monkeypatch, 10_000)
    reasons = sum(map(len, full["rejected"].values()))
    shortened = explain(rig, monkeypatch, reasons - 1)
    short = explain(rig, monkeypatch, reasons // 2)

    assert full["rejected_omitted"] is None and reasons > 60
    for page in (shortened, short):
        listed, omitted = page["rejected"], page["rejected_omitted"]
        assert {name: page[name] for name in EXACT} == {name: full[name] for name in EXACT}
        assert len(page["closest"]["rejections"]) == len(full["closest"]["rejections"])
        assert listed.items() <= full["rejected"].items()
        assert len(listed) + omitted["nodes"] == len(full["rejected"])
        counted = Counter({tuple(cause["rules"]): cause["nodes"] for cause in omitted["causes"]})
        by_cause, all_by_cause = nodes_by_cause(listed), nodes_by_cause(full["rejected"])
        counted.update({cause: len(nodes) for cause, nodes in by_cause.items()})
        assert counted == {cause: len(nodes) for cause, nodes in all_by_cause.items()}
    assert (shortened["closest"], shortened["would_fit"]) == (full["closest"], full["would_fit"])
    assert reasons // 3 < sum(map(len, short["rejected"].values())) <= reasons // 2


def test_the_first_nodes_of_each_cause_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cause of many nodes leaves room for others."""
    rare = [node(f"rare-{n}", annotations={"v0": "1", "v1": "1", "v2": "1"}) for n in range(5)]
    near = [node(f"near-{n}", annotations={"v3": str(9 - n)}) for n in range(5)]
    many = [node(f"many-{n:02}", annotations={"v0": "1", "v1": "2"}) for n in range(60)]
    rig = Rig(POLICY, pod("p"), *many, *near, *rare)
    rig.settle()

    page = explain(rig, monkeypatch, 29)

    assert page["rejected_omitted"] == {
        "nodes": 56,
        "causes": [{"rules": ["f0", "f1"], "nodes": 55}, {"rules": ["f0", "f1", "f2"], "nodes": 1}],
    }
    assert list(page["rejected"]) == [
        *(f"many-{n:02}" for n in range(5)),
        *(f"near-{n}" for n in range(5)),
        *(f"rare-{n}" for n in range(4)),
    ]
    assert page["closest"]["node"] == "near-4"


def test_long_texts_and_many_resources_count_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod may request 1,800 resources that no node has, and a message may quote 100 annotations."""
    quoting = 'input note: string = pod.annotations["note"] default ""\n'
    quoting += f'filter never require node.pods < 0 says "{"{note}" * 20} on {{node.name}}"\n'
    policy = POLICY.replace("preemption", quoting + "preemption")
    requested = {f"example.com/r{number}": "1" for number in range(30)}
    nodes = [node(f"n{number}") for number in range(20)]
    rig = Rig(policy, pod("p", resources=requested, annotations={"note": "x" * 2560}), *nodes)
    rig.settle()

    page, smaller = explain(rig, monkeypatch, 3 * (30 + 17)), explain(rig, monkeypatch, 40)

    assert len(page["rejected"]) == 3 and page["rejected_omitted"]["nodes"] == 17
    assert smaller["rejected"] == {} and smaller["filters"] == page["filters"]


def test_the_command_and_the_page_say_how_many_nodes_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = scene(1, node_count=100)
    page = explain(rig, monkeypatch, 100)
    omitted, output = page["rejected_omitted"], io.StringIO()

    print_explanation(Console(file=output, width=200), page)
    (explained,) = document(rig, "/page/pod", {"pod": "default/p"})["explained"]

    assert f"and {omitted['nodes']} more nodes, which are counted and not listed" in output.getvalue()
    assert f"{omitted['causes'][0]['nodes']}\t{', '.join(omitted['causes'][0]['rules'])}" in output.getvalue()
    assert explained["filters"] == explain(rig, monkeypatch, 10_000)["filters"]


def test_rejections_are_listed_in_steps_in_which_nodes_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 of them kept the main loop busy for half a second, and its share for readers allows no more than a third."""
    rig = scene(4)
    before = explain(rig, monkeypatch, 10_000)
    monkeypatch.setattr(placement_explanation, "_REASONS_PER_STEP", 5)
    monkeypatch.setattr(record, "_REASONS_PER_STEP", 5)

    steps = LiveEndpoints(rig.scheduler, lambda: None, lambda: rig.now_ns).explain({"pod": "p"})
    for _ in range(3):
        assert next(steps) is None
    for number in range(0, 40, 2):
        rig.handle(NodeDeleted(NodeName(f"n{number:03}")))
        rig.observe(node(f"n{number + 1:03}", cpu="9"), node(f"new-{number}"))
    *pauses, page = steps

    assert isinstance(page, dict) and len(pauses) > 30
    assert page["rejected"] == before["rejected"]
    assert page["filters"] == before["filters"]
