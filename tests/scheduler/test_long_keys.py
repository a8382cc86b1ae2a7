"""Annotations of 100,000 characters that a policy uses as keys: they are forgotten with their pod, and no message has them."""

import gc
import tracemalloc

import pytest

from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.text.short_key import KEY_CHARACTERS_MAX, short_key
from tests.builders import node, pod
from tests.scheduler.rig import Rig

CHARACTERS, COUNT = 100_000, 30
MESSAGE_MAX = 1_000
HEAD = "policy test version 1\nfilter node_resources_fit\npreemption never\n"
KEY = 'input key: string = pod.annotations["key"] default "none"\n'
POLICIES = {
    "quota": HEAD + KEY + 'quota team by key { "a" { cpu = 10 } others { cpu = 2 } }\n',
    "gang": HEAD + KEY + "gang by key { min = 2 timeout = 1m }\n",
    "order": HEAD + KEY + "queue by key, pod.created\n",
}


def churn(rig: Rig, numbers: range) -> None:
    """Two pods with each key are bound and deleted."""
    for number in numbers:
        text = f"{number}" + "x" * CHARACTERS
        pods = [pod(f"{member}-{number}", cpu="1", annotations={"key": text}) for member in "ab"]
        rig.observe(*pods)
        rig.settle()
        assert len(rig.of(c.Bind)) == 2
        rig.confirm_binds()
        rig.handle(*[e.PodDeleted(gone.uid) for gone in pods])
        rig.settle()
        rig.commands.clear()


@pytest.mark.parametrize("what", list(POLICIES))
def test_long_keys_are_forgotten_with_their_pod(what: str) -> None:
    rig = Rig(POLICIES[what], node("n", cpu="100"))
    churn(rig, range(3))
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()

    churn(rig, range(3, 3 + COUNT))

    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < COUNT * CHARACTERS / 5


@pytest.mark.parametrize("what", list(POLICIES))
def test_a_pending_pod_has_no_message_with_the_whole_key(what: str) -> None:
    rig = Rig(POLICIES[what], node("n", cpu="100"))

    rig.observe(pod("big", cpu="1000", annotations={"key": "x" * CHARACTERS}))
    rig.settle()
    rig.pass_time(60)

    reports = [report.message for report in rig.of(c.ReportPending)]
    assert reports, "it is pending"
    assert all(len(message) < MESSAGE_MAX for message in (*reports, rig.pending_message("big") or ""))


def test_different_long_keys_are_different_entities_and_rows_may_name_them() -> None:
    first, second = "x" * CHARACTERS, "x" * CHARACTERS + "y"
    quota = f'quota team by key {{ "{first[:300]}" {{ cpu = 3 }} others {{ cpu = 1 }} }}\n'
    rig = Rig(HEAD + KEY + quota, node("n", cpu="100"))

    pods = {"row": first[:300], "first": first, "second": second}
    for name, key in pods.items():
        rig.observe(*[pod(f"{name}-{index}", cpu="1", annotations={"key": key}) for index in range(5)])
    rig.settle()

    bound = [bind.name.partition("-")[0] for bind in rig.of(c.Bind)]
    assert {name: bound.count(name) for name in pods} == {"row": 3, "first": 1, "second": 1}


def test_a_key_as_long_as_a_name_is_kept_whole() -> None:
    assert short_key("n" * KEY_CHARACTERS_MAX) == "n" * KEY_CHARACTERS_MAX
    assert len(short_key("n" * (KEY_CHARACTERS_MAX + 1))) < KEY_CHARACTERS_MAX
