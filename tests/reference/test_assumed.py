"""The assumed load of pods that samples do not include yet."""

from policysched.cluster.metric_samples import MetricSamples, Sample, Samples
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.model.quantity import INT64_MAX
from tests.builders import node, pod, world
from tests.reference import evaluate, samples_after_placement
from tests.reference.checked import metric, program

NOW_NS = 1_000 * 10**9
TRAFFIC = 'input traffic: bandwidth = pod.annotations["net"] default 40Mbps invalid default'
COOL = "filter cool require rx <= 100Mbps missing reject"


def rx(**values: float) -> Samples:
    samples = {NodeName(name): Sample(value, NOW_NS) for name, value in values.items()}
    return {"rx": MetricSamples(samples, NOW_NS)}


def feasible(policy: Program, samples: Samples, *names: str) -> tuple[str, ...]:
    cache = world([node(name) for name in names])
    return evaluate(
        policy, pod("p"), cache, now_ns=NOW_NS, facts=QueuedPodInfo(0, 0), samples=samples
    ).feasible


def placed_on_a(policy: Program, samples: Samples, *pods: Pod) -> Samples:
    for placed_pod in pods:
        samples = samples_after_placement(
            policy, samples, placed_pod, NodeName("a"), Namespace("default", {}, {})
        )
    return samples


def test_each_placed_pod_adds_its_assumed_load() -> None:
    policy = program(TRAFFIC, metric("rx", "bandwidth", "bit/s", "assume = traffic"), COOL)
    light, heavy = pod("light"), pod("heavy", annotations={"net": "70Mbps"})

    after_light = placed_on_a(policy, rx(a=0.0, b=0.0), light)
    after_both = placed_on_a(policy, rx(a=0.0, b=0.0), light, heavy)

    assert after_light["rx"].assumed == {"a": 4e7}
    assert feasible(policy, after_light, "a", "b") == ("a", "b")
    assert feasible(policy, after_both, "a", "b") == ("b",)


def test_a_missing_sample_stays_missing_despite_assumed_load() -> None:
    policy = program(metric("rx", "bandwidth", "bit/s", "assume = 1Mbps"), COOL)

    samples = placed_on_a(policy, rx(b=0.0), pod("one"))

    assert samples["rx"].assumed == {"a": 1e6}
    assert feasible(policy, samples, "a", "b") == ("b",)


def test_a_metric_without_assumed_load_is_unchanged() -> None:
    policy = program(metric("rx", "bandwidth", "bit/s"), COOL)
    samples = rx(a=0.0)

    assert placed_on_a(policy, samples, pod("one")) == samples


def test_assumed_load_saturates_at_int64() -> None:
    policy = program(
        metric("rx", "int", "1", "assume = 9223372036854775807"),
        "filter cool require rx < 9223372036854775807 missing reject",
    )

    samples = placed_on_a(policy, rx(a=5.0), pod("one"), pod("two"))

    assert samples["rx"].assumed == {"a": INT64_MAX}
    assert feasible(policy, samples, "a") == ()
