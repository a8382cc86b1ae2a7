"""What the group gates of riya and of the lab are asked: who may go on to the nodes, and in which order pods are tried."""

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
    """`AttemptSuccess` for who passes the gate and so, on a roomy node (where no other `nodes` are given), is placed; `Unschedulable` for who waits; and in which
    words. Pods of other schedulers are nobody's to judge; `attempt` is the one pod that is asked about."""
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
    """All pods queued before the first is tried, on a node (a roomy one) that no filter refuses."""
    program = without_filters(policy.program())
    scenario = world(program, nodes=[node or roomy_node()], pods=pods, scheduler=scheduler)
    return play(program, scenario).decision_order


def in_tiers(order: Sequence[str], tiers: Sequence[Sequence[str]]) -> list[list[str]]:
    """The order cut into pieces as long as the tiers, each in the order in which the tier names its members where it has
    the same ones."""
    pieces, at = [], 0
    for tier in tiers:
        piece = list(order[at : at + len(tier)])
        at += len(tier)
        pieces.append(list(tier) if sorted(piece) == sorted(tier) else piece)
    rest = list(order[at:])
    return [*pieces, rest] if rest else pieces
