"""Annotations of 100,000 characters that totals over pods compare: they are forgotten with their pod, and count as written."""

import gc
import tracemalloc
from collections.abc import Iterable
from random import Random

import pytest

from policysched.evaluate import compile as compile_program
from policysched.evaluate import evaluation_cache
from policysched.evaluate.columns import pod_totals
from policysched.evaluate.columns.pod_parts import PodParts
from policysched.evaluate.columns.pod_query import PodTotalSpec, other_pod_context
from policysched.evaluate.columns.pod_totals import Domain, PodTotals
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.evaluate.scalar.leaves import attribute
from policysched.lang.ir.arithmetic import ExactNumber
from policysched.lang.ir.attributes import ATTRIBUTES
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.text.short_key import short_value
from tests.builders import node, pod
from tests.reference.checked import program
from tests.scheduler.rig import Rig

CHARACTERS, COUNT = 100_000, 60
HEAD = "policy test version 1\nfilter node_resources_fit\npreemption never\n"
CONDITIONS = {
    "another text": 'other.annotations["long"] != "y"',
    "the text of the pod": 'other.annotations["long"] != (pod.annotations["long"] else "y")',
    "a label of a pod with a long text": 'other.labels["app"] != "y"',
}


def counting(scope: str, condition: str, limit: int = 1_000) -> str:
    return HEAD + f"filter few require count({scope} where {condition}) < {limit}\n"


def churn(rig: Rig, numbers: range) -> None:
    """Pods that are no two equal are bound, and deleted when the next one is."""
    before = None
    for number in numbers:
        long = f"{number}" + "x" * CHARACTERS
        made = pod(f"p{number}", labels={"app": f"a{number}"}, annotations={"long": long})
        rig.observe(made)
        rig.settle()
        assert len(rig.of(c.Bind)) == 1
        rig.confirm_binds()
        if before is not None:
            rig.handle(e.PodDeleted(before.uid))
        before = made
        rig.settle()
        rig.commands.clear()


@pytest.mark.parametrize("scope", ["pods", "placed pods"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_pods_that_are_gone_leave_no_long_text(
    condition: str, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_totals, "_LONG_CHARACTERS_MAX", 5 * CHARACTERS, raising=False)
    monkeypatch.setattr(evaluation_cache, "_CACHE_BYTES_MAX", CHARACTERS)
    rig = Rig(counting(scope, CONDITIONS[condition]), node("n", cpu="100"))
    rig.observe(pod("stays", annotations={"long": "short"}, labels={"app": "stays"}))
    rig.settle()
    rig.confirm_binds()
    rig.commands.clear()
    churn(rig, range(3))
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()

    churn(rig, range(3, 3 + COUNT))

    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < COUNT * CHARACTERS / 3


LONG = "x" * CHARACTERS
TEXTS = {"a1": LONG + "a", "a2": LONG + "a", "b1": LONG + "b", "b2": LONG + "b", "digest": "digest"}
SAME, OTHER = (
    'other.annotations["long"] == pod.annotations["long"]',
    'other.annotations["long"] != pod.annotations["long"]',
)


@pytest.mark.parametrize(
    ("condition", "limit", "bound"),
    [
        (SAME, 1, {"a1", "b1", "digest"}),
        (OTHER, 1, {"a1", "a2"}),
        (OTHER, 3, {"a1", "a2", "b1", "b2"}),
        ('other.annotations["long"] == "' + LONG[:1_000] + 'a"', 1, set(TEXTS)),
    ],
)
def test_long_texts_that_differ_at_their_end_are_different(
    condition: str, limit: int, bound: set[str]
) -> None:
    rig = Rig(counting("placed pods", condition, limit), node("n", cpu="100"))

    for name, text in TEXTS.items():
        rig.observe(pod(name, annotations={"long": text}))
        rig.settle()

    assert {bind.name for bind in rig.of(c.Bind)} == bound


def totals_of(spec: PodTotalSpec, pods: Iterable[Pod], context: EvalContext) -> dict[Domain, ExactNumber]:
    totals = PodTotals(spec)
    for each in pods:
        totals.adjust(each, None, 1)
    return {domain: total for domain, total in totals.totals(context).by_domain.items() if total}


@pytest.mark.parametrize("budget", [0, 3 * CHARACTERS, 2**30])
def test_totals_are_right_whatever_changes_are_forgotten(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_totals, "_LONG_CHARACTERS_MAX", budget)
    checked = program(
        f"filter few require count(pods where {OTHER} and other.namespace == pod.namespace) < 9"
    )
    (spec, _) = compile_program(checked).pod_totals[0]
    texts = ["short", *(LONG + str(number) for number in range(4))]
    pods = [
        pod(f"p{number}", namespace=f"n{number % 2}", annotations={"long": texts[number // 2 % len(texts)]})
        for number in range(20)
    ]
    rng, totals, there = Random(1), PodTotals(spec), list[Pod]()

    for _ in range(400):
        changed = rng.choice(pods)
        delta = -1 if changed in there else 1
        (there.remove if delta < 0 else there.append)(changed)
        totals.adjust(changed, None, delta)
        context = EvalContext(rng.choice(pods), Namespace("", {}, {}))
        found = totals.totals(context).by_domain
        assert {domain: total for domain, total in found.items() if total} == totals_of(spec, there, context)


@pytest.mark.parametrize("path", [path for owner, path in ATTRIBUTES if owner == "other"], ids=".".join)
def test_a_part_of_a_pod_has_what_is_read_of_it(path: tuple[str, ...]) -> None:
    keys = {"labels": ["app", "none"], "annotations": ["long", "none"], "requests": ["cpu", "pods", "none"]}
    more = {
        "limits": {"cpu": "2"},
        "owner": ("apps/v1", "ReplicaSet", "web"),
        "tolerations": ["a=b:NoSchedule"],
    }
    whole = pod("p", cpu="1", labels={"app": "a"}, annotations={"long": LONG}, image=LONG, **more)
    on = node("n", labels={"app": "a"})

    for key in keys.get(path[-1], ["cpu", "none"]) if ATTRIBUTES["other", path].key_kind else [None]:
        full = path if key is None else (*path, key)
        read, part = attribute("other", full), PodParts([full]).of(whole)
        assert read(other_pod_context(part, on)) == read(other_pod_context(whole, on))


def test_equal_values_have_equal_short_values_and_no_others_do() -> None:
    items = tuple(str(number) for number in range(1_000))
    different = [LONG, LONG + "a", "a", 1, None, items, (*items, "a"), items[:3]]

    assert len({short_value(value) for value in different}) == len(different)
    assert short_value("".join(["x"] * CHARACTERS)) == short_value(LONG)
    assert short_value(str(short_value(LONG))) != short_value(LONG)
    assert isinstance(short_value(LONG), bytes)
