"""Small random clusters with a gang that may be too large for them."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from policysched.explanations.proposals import Proposal, request_step, with_requests
from policysched.explanations.record import ExplainResult
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.simulate import simulate
from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from policysched.offline.pod_explanation import explain_pod
from tests.builders import node, pending, placed, pod
from tests.scheduler.rig import START_NS

INPUTS = (
    'input group: string = pod.labels["group"] optional',
    'input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"',
)
RULES = ("filter node_resources_fit", "filter taint_toleration", "filter node_unschedulable")
TEXTS = [
    "\n".join(("policy test version 1", *INPUTS, gang, *others, *RULES, "preemption never", ""))
    for gang in (
        "gang by group { min = least }",
        'gang by group { min = least  topology = "zone" }',
        'gang by group { min = least  topology = ["zone" required, "rack" required] }',
    )
    for others in ((), ('quota team by group else "none" { "g" { pods = 4 } others unlimited }',))
]


def program(text: str) -> Program:
    checked = check_text(text).program
    assert checked is not None
    return checked


PROGRAMS = [program(text) for text in TEXTS]


def with_nodes_like(like: str | None, count: int, files: ClusterFiles) -> ClusterFiles:
    added = [
        replace(each, name=NodeName(f"new-{number}"), uid=f"new-{number}")
        for each in files.nodes
        if each.name == like
        for number in range(count)
    ]
    return replace(files, nodes=[*files.nodes, *added])


def applied(proposal: Proposal, files: ClusterFiles) -> ClusterFiles:
    """The cluster after somebody did what the proposal says."""
    if proposal.kind == "node":
        return with_nodes_like(proposal.like, proposal.count, files)
    if proposal.kind == "move":
        assert proposal.moved is not None
        member, target = proposal.moved
        pods = [replace(each, node=target) if each.pod.uid == member.uid else each for each in files.pods]
        return replace(files, pods=pods)
    nodes = [
        replace(each, unschedulable=False) if each.name == proposal.uncordoned else each
        for each in files.nodes
    ]
    return replace(files, nodes=nodes)


class Scene:
    """A small cluster and a gang that may be too large for it. A label of each member says the minimum, so that a lower
    one is applied by the members, not by the policy."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.text, self.program = TEXTS[seed % len(TEXTS)], PROGRAMS[seed % len(PROGRAMS)]
        self.nodes = [
            node(
                f"n{index}",
                cpu=str(rng.randint(1, 5)),
                labels={"zone": f"z{index % 2}", "rack": f"r{index % 3}"},
                taints=rng.choice(((), ("team=ml:NoSchedule",))),
                unschedulable=rng.random() < 0.3,
            )
            for index in range(rng.randint(1, 4))
        ]
        self.others = [
            placed(pod(f"old-{each.name}-{number}", cpu="1", scheduler="test"), each.name)
            for each in self.nodes
            for number in range(rng.randint(0, min(2, each.allocatable["cpu"] // 1000)))
        ]
        count = rng.randint(2, rng.choice((3, 8)))
        self.minimum = rng.randint(2, count + 1)
        self.placed_count = rng.choice((0, 0, 1))
        small = rng.choice((1, 1, 2))
        large = rng.choice((small, small, 3, 6))
        if rng.random() < 0.15:  # there is room for one, and pieces of room for another
            self.nodes = [
                node(f"n{i}", cpu="3", labels={"zone": f"z{i % 2}", "rack": "r0"}) for i in range(3)
            ]
            self.others = [
                placed(pod(f"old-{number}", cpu="1", scheduler="test"), f"n{(number + 1) // 2}")
                for number in range(5)
            ]
            small = large = count = self.minimum = 2
        self.members = [
            pod(f"p{index}", cpu=str(large if index == count - 1 else small), scheduler="test")
            for index in range(count)
        ]
        self.asked = self.members[rng.choice((-1, self.placed_count))]

    def files(self, minimum: int, asked: Pod) -> ClusterFiles:
        labels = {"group": "g", "least": str(minimum)}
        members = [
            replace(asked if member.uid == asked.uid else member, labels=labels) for member in self.members
        ]
        seated = [
            placed(member, self.nodes[0].name) if index < self.placed_count else pending(member)
            for index, member in enumerate(members)
        ]
        return ClusterFiles(nodes=self.nodes, pods=[*self.others, *seated])

    def explained(self) -> ExplainResult:
        files = self.files(self.minimum, self.asked)
        return explain_pod(self.program, files, self.asked.full_name, samples={}, now_ns=START_NS)

    def nodes_of_started(
        self, minimum: int, asked: Pod, change: Callable[[ClusterFiles], ClusterFiles] = lambda files: files
    ) -> dict[str, str]:
        """The nodes of the pods that start on the changed cluster; none if the gang does not."""
        files = change(self.files(minimum, asked))
        result = simulate(self.program, files, samples={}, scope="named", now_ns=START_NS)
        assert not result.placements or len(result.placements) + self.placed_count >= minimum
        return {placement.pod: placement.node for placement in result.placements}

    def without_and_with(self, proposal: Proposal) -> tuple[list[dict[str, str]], dict[str, str]]:
        """What starts with one step less, and with the proposal."""
        if proposal.kind == "minimum":
            minimum = int(proposal.text.split()[1])
            less = self.nodes_of_started(minimum + 1, self.asked)
            return [less], self.nodes_of_started(minimum, self.asked)
        if proposal.kind in ("uncordon", "move", "node"):
            count = 0 if proposal.kind != "node" else proposal.count - 1
            less = self.nodes_of_started(
                self.minimum, self.asked, partial(with_nodes_like, proposal.like, count)
            )
            return [less], self.nodes_of_started(self.minimum, self.asked, partial(applied, proposal))
        assert proposal.pod is not None
        lowered = {
            name: amount
            for name, amount in proposal.pod.requests.items()
            if amount < self.asked.requests[name]
        }
        less_lowered = [
            with_requests(self.asked, {**lowered, name: amount + request_step(name)})
            for name, amount in lowered.items()
        ]
        steps_less = [self.nodes_of_started(self.minimum, asked) for asked in less_lowered or [self.asked]]
        return steps_less, self.nodes_of_started(self.minimum, proposal.pod)
