"""Gang members placed near the peers they have traffic with, at 5,000 nodes; no two share an evaluation."""

from collections.abc import Iterable
from pathlib import Path

from policysched.cluster.metric_samples import MetricSamples, PairEndpoint
from policysched.evaluate import Evaluator
from policysched.evaluate import compile as compile_program
from policysched.lang.check import check_text
from tests.bench.clusters import FACTS, NOW_NS, cluster
from tests.bench.measuring import Row, median_s, shown
from tests.builders import pod

_PODS, _MEMBERS, _PEERS = 10_000, 1_000, 10
_POLICY = Path(__file__).parents[2] / "policies" / "near-peers.policy"


def measure() -> Iterable[Row]:
    cache, program = cluster(pods=_PODS), check_text(_POLICY.read_text()).program
    assert program is not None, _POLICY
    plan, evaluator = compile_program(program), Evaluator(cache)
    evaluator.build_columns(plan)
    samples = {"talk": MetricSamples({}, NOW_NS, pairs=_pairs())}
    numbers = iter(range(_MEMBERS))

    def decide() -> None:
        name = f"m-{next(numbers)}"
        member = pod(name, cpu="10m", labels={"example.com/group": "g"}, scheduler="near-peers")
        verdict = evaluator.evaluate(plan, member, now_ns=NOW_NS, facts=FACTS, samples=samples)
        assert verdict.selected is not None, f"{name} found no node"
        cache.assume(member, verdict.selected)

    seconds = median_s(decide, _MEMBERS)
    yield Row(
        f"decision by the traffic of the node and of the rack, {_MEMBERS:,} members, 5,000 nodes",
        shown(seconds),
    )


def _pairs() -> dict[PairEndpoint, dict[PairEndpoint, float | None]]:
    """Each member has traffic with its neighbours."""
    pairs: dict[PairEndpoint, dict[PairEndpoint, float | None]] = {}
    for member in range(_MEMBERS):
        for step in range(1, _PEERS + 1):
            a, b = ("default", f"m-{member}"), ("default", f"m-{(member + step) % _MEMBERS}")
            pairs.setdefault(a, {})[b] = pairs.setdefault(b, {})[a] = 1e7
    return pairs
