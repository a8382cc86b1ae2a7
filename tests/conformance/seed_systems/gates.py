"""The group gates of riya and of the lab: which pods pass, and in which order pods are tried."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.seed_systems.worlds import Policy, play, roomy_node, without_filters, world

Json = dict[str, Any]


def verdicts(
    policy: Policy,
    pods: Sequence[Json],
    *,
    scheduler: str | None,
    attempt: str | None = None,
    nodes: Sequence[Json] | None = None,
) -> tuple[dict[str, str], Mapping[str, str]]:
    """The verdict for each pod, and its message. `AttemptSuccess` for a pod that passes the gate
    and so is placed (on a node with room for everything, if no other `nodes` are given),
    `Unschedulable` for one that waits. Pods of other schedulers have no verdict. `attempt` is the
    only pod that is decided.
    """
    program = policy.program()
    result = play(
        program,
        world(program, nodes=[roomy_node()] if nodes is None else nodes, pods=pods, scheduler=scheduler),
    )
    judged = {**dict.fromkeys(result.node, "Success"), **dict.fromkeys(result.pending, "Unschedulable")}
    return {pod: word for pod, word in judged.items() if attempt in (None, pod)}, result.pending


def order(
    policy: Policy, pods: Sequence[Json], *, scheduler: str | None, node: Json | None = None
) -> list[str]:
    """The order in which pods are tried, if all are queued before the first attempt and the node
    has room for all of them.
    """
    program = without_filters(policy.program())
    scenario = world(program, nodes=[node or roomy_node()], pods=pods, scheduler=scheduler)
    return play(program, scenario).decision_order


def in_tiers(order: Sequence[str], tiers: Sequence[Sequence[str]]) -> list[list[str]]:
    """The order cut into tiers of the expected sizes. A tier with the expected members lists them
    in the expected order.
    """
    pieces, at = [], 0
    for tier in tiers:
        piece = list(order[at : at + len(tier)])
        at += len(tier)
        pieces.append(list(tier) if sorted(piece) == sorted(tier) else piece)
    rest = list(order[at:])
    return [*pieces, rest] if rest else pieces
