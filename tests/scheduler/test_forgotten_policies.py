"""Removed policies leave nothing behind, whatever they had, and tell their pods as long as there are any."""

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType

import pytest

from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.lang.ir.program import removed_program
from policysched.model.identifiers import NodeName
from policysched.scheduler import events as e
from policysched.scheduler.policy_permissions import AllowedPolicy, PolicyPermissions
from policysched.scheduler.policy_reload import REMOVED_KEPT_MAX
from policysched.scheduler.policy_text_events import PolicyTextEvents
from tests.builders import namespace, node, pod
from tests.scheduler.rig import FIT, Rig, bundle

OWNED = PolicyPermissions(
    (AllowedPolicy("*"), AllowedPolicy("ml-*", owner="ml"), AllowedPolicy("web-*", owner="web"))
)
RICH = """\
policy {name} version 1
input group: string = pod.labels["group"] optional
metric load: ratio {{
  query = "load"
  unit = "1"
  join = node
  every = 15s
  stale = 90s
}}
outage {{ above = 50% then = disable }}
gang by group {{ min = 1 timeout = 5m on_timeout = requeue }}
filter node_resources_fit
filter busy reject load > 0.9 recover 0.5 for 60s missing pass
shadow filter never reject node.pods > 1000
score calm weight 1 lower load normalize range(0, 1) missing worst
preemption {{ victims = own }}
"""


class World(Rig):
    """The operator's policy, and what the feed delivers of teams."""

    def __init__(self) -> None:
        super().__init__(
            FIT,
            namespace("ml"),
            namespace("web"),
            node("a"),
            permissions=OWNED,
        )
        self.settle()

    def offer(self, texts: dict[str, str] | None = None, removed: tuple[str, ...] = ()) -> None:
        """`removed`: the names that the feed drops with this update."""
        self._version += 1
        fallbacks = {name: removed_program(name, f"policy {name} is removed") for name in removed}
        sources = bundle({"main.policy": FIT, **(texts or {})})
        self.handle(e.PoliciesUpdated(sources, str(self._version), fallbacks=fallbacks))
        self.settle()

    def run_and_remove(self, name: str, team: str = "ml", text: str = "policy {name} version 1\n") -> None:
        self.offer({f"{team}/{name}.policy": text.format(name=name)})
        self.offer(removed=(name,))

    @property
    def names(self) -> list[str]:
        return [name for name in self.scheduler.core.policies.running if name != "test"]


def strings_in(root: object) -> Iterator[str]:
    """All strings that can be reached, without those in code."""
    seen, left = set[int](), [root]
    while left:
        found = left.pop()
        if id(found) in seen or isinstance(found, type | ModuleType | FunctionType):
            continue
        seen.add(id(found))
        if isinstance(found, str):
            yield found
        left += gc.get_referents(found)


def test_a_team_that_has_other_policies_with_each_edit_leaves_a_few_of_the_last_ones() -> None:
    world = World()
    world.run_and_remove("web-a", team="web")
    for number in range(40):
        world.run_and_remove(f"ml-{number:02}")
    world.offer()

    last = [f"ml-{number}" for number in range(40 - REMOVED_KEPT_MAX, 40)]
    assert world.names == ["web-a", *last], "what one team removes is no reason to forget another's"
    assert [status.name for status in world.scheduler.policies()] == [*last, "test", "web-a"]


def forgotten(number_of_others: int = REMOVED_KEPT_MAX) -> tuple[World, list[str]]:
    """A policy with everything that is kept by name: it schedules and rejects, is removed, and its pods are deleted. Returns
    also the strings that are left of it."""
    world = World()
    world.offer({"ml/rich.policy": RICH.format(name="ml-rich")})
    samples = MetricSamples({NodeName("a"): Sample(0.95, world.now_ns)}, world.now_ns)
    world.handle(e.SamplesArrived("ml-rich", "load", samples))
    world.observe(pod("hot", scheduler="ml-rich", namespace="ml", labels={"group": "g"}))
    world.pass_time(10)
    samples = MetricSamples({NodeName("a"): Sample(0.1, world.now_ns)}, world.now_ns)
    world.handle(e.SamplesArrived("ml-rich", "load", samples))
    world.observe(pod("cool", scheduler="ml-rich", namespace="ml"))
    world.pass_time(100)
    world.confirm_binds()
    world.scheduler.counters.drain_confirmed_binds()
    world.offer(removed=("ml-rich",))
    world.observe(pod("late", scheduler="ml-rich", namespace="ml"))
    world.settle()
    for name in ("hot", "cool", "late"):
        world.handle(e.PodDeleted(pod(name, namespace="ml").uid))
    for number in range(number_of_others):
        world.run_and_remove(f"ml-{number:02}")
    world.offer()
    world.offer()  # whose key had the name is known until the next update
    world.observe(pod("last"))  # the latest pod is known
    world.settle()
    world.scheduler.core.records.decisions.clear()  # the latest ones
    world.handle(e.SamplesFailed("test", "any"))  # outages are looked at with each poll
    left = [text for text in strings_in(world.scheduler) if "ml-rich" in text]
    return world, left


def test_nothing_is_left_of_a_policy_that_had_everything() -> None:
    world, left = forgotten()

    assert len(world.placements()) >= 2
    assert left == []
    assert forgotten(REMOVED_KEPT_MAX - 1)[1] != [], "the search finds what is kept"


@pytest.mark.parametrize("forgetful", ["drop of its queues", "counters"])
def test_a_part_that_is_not_forgotten_is_caught(forgetful: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method = {
        "drop of its queues": (PolicyTextEvents, "forget"),
        "counters": (type(World().scheduler.counters), "forget"),
    }[forgetful]
    monkeypatch.setattr(owner, method, lambda *_: None)

    with pytest.raises(AssertionError):
        test_nothing_is_left_of_a_policy_that_had_everything()


def test_pods_are_told_as_long_as_there_are_any_also_pods_whose_bind_is_not_answered() -> None:
    world = World()
    world.offer({"ml/a.policy": "policy ml-old version 1\n", "ml/b.policy": "policy ml-bound version 1\n"})
    world.observe(pod("bound", scheduler="ml-bound", namespace="ml"))
    world.settle()
    world.handle(e.PodDeleted(pod("bound", namespace="ml").uid))
    world.offer(removed=("ml-old", "ml-bound"))
    world.observe(pod("waiting", scheduler="ml-old", namespace="ml"))
    for number in range(REMOVED_KEPT_MAX):
        world.run_and_remove(f"ml-{number:02}")
    world.offer()
    world.pass_time(60)

    assert {"ml-old", "ml-bound"} < set(world.names)
    assert world.pending_message("waiting") == (
        "policy ml-old is removed, and the ConfigMap of namespace ml has no text of it; add one, or give the pod another "
        "schedulerName"
    )

    (bind,) = world.in_flight_binds()
    world.handle(e.BindLost(bind.uid, "gone"), e.PodDeleted(pod("waiting", namespace="ml").uid))
    world.offer()
    assert not {"ml-old", "ml-bound"} & set(world.names)


def test_a_forgotten_policy_comes_back_with_its_text() -> None:
    world, _ = forgotten()

    world.offer({"ml/rich.policy": "policy ml-rich version 1\n"})
    world.observe(pod("again", scheduler="ml-rich", namespace="ml"))
    world.settle()

    assert world.placements()["again"] == "a"


def test_the_last_removed_policy_is_kept_since_a_process_without_any_ends() -> None:
    rig = Rig({"test.removed": ""}, node("a"))
    for _ in range(3):
        rig.apply_policies({})
        rig.settle()

    assert rig.scheduler.startup_error is None
    assert [status.phase for status in rig.scheduler.policies()] == ["removed"]
