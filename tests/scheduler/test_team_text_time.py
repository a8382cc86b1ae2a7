"""What a text of a team takes to get ready is at the expense of its namespace."""

from collections.abc import Callable

import pytest

from policysched.lang.check.bundle import PolicyBundle
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.canaries import Canaries
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.policy_permissions import AllowedPolicy, PolicyPermissions
from policysched.scheduler.policy_reload import PolicyReload
from tests.builders import namespace, node, pending, placed, pod
from tests.scheduler.rig import FIT, Rig, bundle

MS = 10**6
PODS = 100
SLICE_MS = 15
LISTS = " and ".join(f"count(cards where card.memory > {number}) >= 0" for number in range(5))
HEAD = """\
policy {name} version 1
record card {{ memory: int }}
input cards: list<card> = pod.annotations["cards"] default [] invalid default
filter node_resources_fit
preemption never
"""
QUEUE = HEAD + "queue by (if {lists} then {number} else 0)\n"
CANARY = HEAD + (
    "canary strict 50% by pod.name when {lists} guard pending < 99% for 6{number}s else rollback {{\n"
    '  filter none reject node.pods < 0 says "no"\n}}\n'
)
OWNED = PolicyPermissions((AllowedPolicy("*"), AllowedPolicy("ml-*", owner="ml")))
OPERATOR = FIT.replace("policy test", "policy plain")


class TeamRig(Rig):
    """Slices for the team take 15 ms, other calls 1 ms; a pod of another namespace arrives every 50 ms. `slice_ends_ns`: of all
    slices. `waits_ns`: of those pods."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str, on: str | None) -> None:
        self.slice_ends_ns, self.waits_ns = list[int](), list[int]()
        self._arrived: dict[str, int] = {}
        self._is_slice = False
        large = node("a", cpu="1000", pods="5000") if on else node("a", cpu="1")
        large_for_others = node("b", cpu="1000", pods="5000")
        super().__init__(None, namespace("ml"), namespace("friendly"), large, permissions=OWNED, synced=False)
        self.offer(text, OPERATOR)
        pods = [pod(f"p{number}", cpu="2", scheduler="ml-a", namespace="ml") for number in range(PODS)]
        self.observe(*([placed(each, on) for each in pods] if on else pods))
        self.handle(e.Synced())
        self.settle()
        self.observe(large_for_others) if on else None
        for owner, name in ((PolicyReload, "_prepare"), (Canaries, "sort_slice")):
            self._watch(monkeypatch, owner, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        called: Callable[..., object] = getattr(owner, name)

        def watched(this: object, first: object, *more: object, **named: object) -> object:
            policy = first.program.name if name == "_prepare" else first.spec and "ml-a"  # type: ignore[attr-defined]
            self._is_slice |= policy == "ml-a"
            return called(this, first, *more, **named)

        monkeypatch.setattr(owner, name, watched)

    def offer(self, team: str, operator: str) -> None:
        self._version += 1
        texts = {"main.policy": FIT, "plain.policy": operator, "ml/a.policy": team}
        self.handle(e.PoliciesUpdated(PolicyBundle(bundle(texts).sources), str(self._version)))

    def runs(self, policy: str, text: str) -> bool:
        program = bundle({"main.policy": text}).sources["main.policy"].program
        return program is not None and self.scheduler.programs()[policy].sha256 == program.sha256

    def run(self, seconds: float) -> None:
        ends_ns, next_ns = self.now_ns + round(seconds * SECOND_NS), self.now_ns
        while self.now_ns < ends_ns:
            if self.now_ns >= next_ns:
                name = f"friend-{self.now_ns}"
                self._arrived[name] = next_ns
                next_ns += 50 * MS
                self.handle(e.PodUpdated(pending(pod(name, cpu="1m", namespace="friendly"))))
            if not self.scheduler.ready(self.now_ns):
                self.now_ns += MS
                continue
            self._is_slice = False
            commands = self.scheduler.decide(self.now_ns)
            elapsed_ns = SLICE_MS * MS if self._is_slice else MS
            self.now_ns += elapsed_ns
            if self._is_slice:
                self.slice_ends_ns.append(self.now_ns)
            self.scheduler.account_time(elapsed_ns)
            for command in commands:
                if isinstance(command, c.Bind) and command.namespace == "friendly":
                    self.waits_ns.append(self.now_ns - self._arrived.pop(command.name))
                    self.handle(e.BindConfirmed(command.uid, command.node))


@pytest.mark.parametrize(("clause", "on"), [(QUEUE, None), (CANARY, "a")])
def test_an_edited_text_takes_the_share_of_its_namespace(
    monkeypatch: pytest.MonkeyPatch, clause: str, on: str | None
) -> None:
    texts = [clause.format(name="ml-a", lists=LISTS, number=number) for number in range(3)]
    rig = TeamRig(monkeypatch, texts[0], on)
    rig.run(1)
    began_ns = rig.now_ns
    rig.slice_ends_ns.clear()

    for text in texts[1:]:
        rig.offer(text, OPERATOR)
        rig.run(2)

    taken_ns = len(rig.slice_ends_ns) * SLICE_MS * MS
    assert 0.5 * SECOND_NS < taken_ns < 0.7 * SECOND_NS + 0.05 * (rig.now_ns - began_ns)
    assert max(rig.waits_ns) <= 2 * (SLICE_MS + 1) * MS
    rig.run(40)
    assert rig.runs("ml-a", texts[2]), "it takes over once its time is paid"


def test_a_text_of_the_operator_does_not_wait_for_that_of_a_team_whose_namespace_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = (QUEUE.format(name="ml-a", lists=LISTS, number=number) for number in range(2))
    rig = TeamRig(monkeypatch, first, None)
    rig.run(1)
    rig.offer(second, OPERATOR)
    rig.run(1)
    edited = OPERATOR + 'filter none reject node.pods < 0 says "no"\n'

    rig.offer(second, edited)
    rig.run(0.2)

    assert rig.runs("plain", edited)
    assert rig.runs("ml-a", first)
