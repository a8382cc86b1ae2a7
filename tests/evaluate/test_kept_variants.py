"""Layers by labels have as many sets as a tenant makes pods with other labels: only what was used last is kept of them."""

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import evaluation_cache
from policysched.evaluate.plan import kept_variants
from policysched.evaluate.plan import plan as plans
from policysched.evaluate.plan.lowering import Variant
from policysched.evaluate.plan.plan import compile_lazily
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import node, pod, world
from tests.evaluate.test_hostile import calls_of
from tests.evaluate.test_pod_affinity import Harness
from tests.reference.checked import program

LAYERS, FILTERS, SETS, BYTES = 8, 40, 60, 2**20
POLICY = "".join(
    f"filter f{number} require node.pods < {number + 100}\n" for number in range(FILTERS)
) + "".join(
    f'layer l{number} when (pod.labels["l{number}"] else "") == "1" {{\n'
    f"  score s{number} weight 1 lower node.pods * {number + 2} normalize minmax\n}}\n"
    for number in range(LAYERS)
)


def cluster() -> ClusterCache:
    return world([node(f"n{index}", cpu="64") for index in range(4)])


def pod_of_set(number: int) -> Pod:
    """Each number below 2^LAYERS has another set of layers."""
    labels = {f"l{layer}": "1" for layer in range(LAYERS) if number >> layer & 1}
    return pod(f"p{number}", labels=labels)


def kept_bytes(use: Callable[[Pod], object]) -> int:
    """What stays allocated after this use of pods with many sets of layers."""
    use(pod_of_set(0))
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1, SETS):
            use(pod_of_set(number))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def bytes_of_decisions(monkeypatch: pytest.MonkeyPatch, *, on_overlay: bool) -> int:
    monkeypatch.setattr(kept_variants, "VARIANT_BYTES_MAX", BYTES)
    monkeypatch.setattr(evaluation_cache, "_CACHE_BYTES_MAX", BYTES)
    monkeypatch.setattr(evaluation_cache, "_OVERLAY_VARIANT_BYTES_MAX", BYTES)
    harness = Harness(cluster(), POLICY)
    overlay = harness.evaluator.overlay() if on_overlay else None
    return kept_bytes(
        lambda made: harness.evaluator.evaluate(
            harness.plan, made, now_ns=0, facts=QueuedPodInfo(0, 0), samples={}, overlay=overlay
        )
    )


@pytest.mark.parametrize("on_overlay", [False, True])
def test_decisions_keep_few_sets_of_layers(on_overlay: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bytes_of_decisions(monkeypatch, on_overlay=on_overlay) < 4 * BYTES


def test_evaluations_whose_variants_are_not_weighed_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variant, "size_bytes", 0)

    assert bytes_of_decisions(monkeypatch, on_overlay=False) > 8 * BYTES


def test_what_sets_of_layers_read_is_kept_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_READ_SETS_MAX", 8)
    plan = compile_lazily(program("include kube_default", POLICY))

    def read(made: Pod) -> None:
        active = tuple(layer for layer in range(LAYERS) if f"l{layer}" in made.labels)
        plan.read_key(made, None)
        plan.totals_read(active)

    assert kept_bytes(read) < 24 * 8 * 1024


def test_the_rules_without_layers_and_those_used_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_variants, "VARIANT_BYTES_MAX", 0)
    plan = Harness(cluster(), POLICY).plan
    first = plan.variant((0,))

    for layer in range(1, LAYERS):
        plan.variant((layer,))
        assert plan.variant((0,)) is first

    assert [plan.is_lowered(active) for active in ((), (0,), (LAYERS - 1,), (1,))] == [
        True,
        True,
        True,
        False,
    ]


def test_a_set_of_layers_that_is_lowered_again_decides_as_the_cluster_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_variants, "VARIANT_BYTES_MAX", 0)
    cache = cluster()
    harness = Harness(cache, POLICY)
    labels = [dict(pod_of_set(number).labels) for number in range(SETS)]
    names = [harness.selected(f"a{number}", labels=labels[number]) for number in range(SETS)]
    cache.assume(pod("placed", cpu="32"), names[1])

    again = [harness.selected(f"b{number}", labels=labels[number]) for number in range(SETS)]

    monkeypatch.undo()
    fresh = Harness(cache, POLICY)
    assert again == [fresh.selected(f"b{number}", labels=labels[number]) for number in range(SETS)]
    assert again != names


def calls_for_a_new_set(static: int, dynamic: int) -> int:
    """Of the key of a pod, after one of another set."""
    text = "".join(
        f'layer s{n} when (pod.labels["s{n}"] else "") == "1" {{\n  filter s{n} require node.pods < {n + 9}\n}}\n'
        for n in range(static)
    ) + "".join(
        f"layer d{n} when now > pod.created + {n + 1}h {{\n  filter d{n} require node.pods < {n + 9}\n}}\n"
        for n in range(dynamic)
    )
    plan = compile_lazily(program("include kube_default", text))
    labels = {f"s{n}": "1" for n in range(static)}
    plan.read_key(pod("first", labels=labels), None)
    del labels["s0"]
    return calls_of(lambda: plan.read_key(pod("second", labels=labels), None))


def test_the_key_of_a_pod_with_a_new_set_of_layers_takes_no_time_for_each_pair_of_layers() -> None:
    """It took 30 to 300 ms of the main loop when such a pod arrived: all layers that depend on the clock were tried with it."""
    base = calls_for_a_new_set(1, 0)

    assert calls_for_a_new_set(30, 30) - base < 2 * (
        calls_for_a_new_set(30, 1) + calls_for_a_new_set(1, 30) - 2 * base
    )


def test_a_rule_that_only_a_layer_on_the_clock_brings_and_another_changes_is_read() -> None:
    plan = compile_lazily(
        program(
            "include kube_default",
            """
layer later when now > pod.created + 1h {
  filter brought require node.pods < 9
}
layer changed when (pod.labels["changed"] else "") == "1" {
  amend brought when has pod.labels["read"]
}
""",
        )
    )
    labels = {"changed": "1"}

    one, other = pod("one", labels=labels), pod("other", labels={**labels, "read": "yes"})
    assert plan.read_key(one, None) != plan.read_key(other, None)
