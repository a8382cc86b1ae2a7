"""Runs one test: the scheduler on the scenario, with every bind confirmed at once, in virtual time.

The scheduler gets watch events at the scenario's times and decides until nothing is left. Then the clock advances to the
next arrival, the next poll, or the scheduler's own timer.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from policysched.daemon.extender_caller import extender_capabilities
from policysched.from_files.simulate import pending_message
from policysched.from_files.simulated_prebind import simulate_prebind, simulate_unreserve
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.ir.extender_results import ExtenderResults, nodes_passing_extenders
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pod_status import ObservedPod
from policysched.policytest.scenario import Scenario
from policysched.policytest.stub_extenders import apply_extender_answers, call_stub_extenders
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME, PolicyPermissions
from policysched.scheduler.scheduler import Scheduler

_DECISIONS_KEPT_MAX = 10**6
_STEPS_MAX = 1_000_000


class StepLimitExceeded(Exception):
    """The scheduler was busy for more steps than any test needs."""


@dataclass(frozen=True, slots=True)
class DecisionRound:
    """The scheduler before a round of decisions, for coverage."""

    scheduler: Scheduler
    pending: tuple[ObservedPod, ...]
    now_ns: int


@dataclass(slots=True)
class ScenarioResult:
    """Keyed by `namespace/name`. `decision_order` is the order of first decisions, `node` the node of each placed pod,
    `pending` the message of the others; `explanations` are those of the last decision, for the requested pods."""

    decision_order: list[str] = field(default_factory=list)
    node: dict[str, str] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)
    explanations: dict[str, PlacementExplanation] = field(default_factory=dict)


class ScenarioRunner:
    """`rounds` runs the scenario and yields before each round of decisions; `result` is filled meanwhile."""

    def __init__(
        self,
        program: Program,
        scenario: Scenario,
        pods_to_explain: Collection[str],
        permissions: PolicyPermissions = ANY_POLICY_NAME,
    ) -> None:
        called = tuple(extender for extender in program.extenders if extender.name in scenario.extenders)
        self._program, self._scenario, self._pods_to_explain = (
            replace(program, extenders=called),
            scenario,
            frozenset(pods_to_explain),
        )
        limits = SchedulerLimits(binds_in_flight_max=2**31, decision_records_max=_DECISIONS_KEPT_MAX)
        terms = extender_capabilities({name: stub.endpoint for name, stub in scenario.extenders.items()})
        self._scheduler = Scheduler(limits, terms, permissions=permissions)
        self._extender_answers: dict[PodUid, tuple[tuple[NodeName, ...], ExtenderResults]] = {}
        self._pending: dict[PodUid, ObservedPod] = {}
        self._names: dict[PodUid, str] = {}
        self._decisions_read = 0
        self._wake_at_ns: int | None = None
        self._now_ns = scenario.start_ns
        self.result = ScenarioResult()

    def rounds(self) -> Iterator[DecisionRound]:
        """Raises StepLimitExceeded."""
        for event in self._initial_events():
            self._handle(event)
        events = self._timed_events()
        following = next(events, None)
        for _ in range(_STEPS_MAX):
            while following is not None and following[0] <= self._now_ns:
                self._handle(following[1])
                self._now_ns += 1  # events of the same time get distinct times
                following = next(events, None)
            if self._scheduler.ready(self._now_ns):
                yield DecisionRound(self._scheduler, tuple(self._pending.values()), self._now_ns)
                self._decide_all()
            next_ns = min(
                (
                    at_ns
                    for at_ns in (following[0] if following else None, self._wake_at_ns)
                    if at_ns is not None and at_ns > self._now_ns
                ),
                default=None,
            )
            if next_ns is None or next_ns > self._scenario.until_ns:
                self._collect_result()
                return
            self._now_ns = next_ns
        raise StepLimitExceeded

    def _initial_events(self) -> Iterator[e.Event]:
        scenario, key = self._scenario, f"{self._program.name}.policy"
        bundle = PolicyBundle(
            {key: CheckedSource(key, is_library=False, program=self._program, diagnostics=())}
        )
        named = {space.name for space in scenario.namespaces}
        implied = sorted({arrival.pod.pod.namespace for arrival in scenario.pods} - named)
        yield from (e.NamespaceUpdated(space) for space in scenario.namespaces)
        yield from (e.NamespaceUpdated(Namespace(name, {}, {})) for name in implied)
        yield from (e.NodeUpdated(node) for node in scenario.nodes)
        yield from scenario.cluster_events
        yield from (
            e.PodUpdated(arrival.pod) for arrival in scenario.pods if arrival.at_ns < scenario.start_ns
        )
        if scenario.state_values is not None:
            yield e.SavedPolicyStatesLoaded({self._program.name: scenario.state_values})
        yield e.PoliciesUpdated(bundle, resource_version="")
        yield from (
            e.PodUpdated(arrival.pod)
            for arrival in scenario.pods
            if arrival.at_ns == scenario.start_ns and arrival.pod.node is not None
        )
        yield e.Synced()

    def _timed_events(self) -> Iterator[tuple[int, e.Event]]:
        """Ordered by time; samples come before the pods of the same time."""
        scenario, policy = self._scenario, self._program.name
        polls: list[tuple[int, int, e.Event]] = [
            (poll.at_ns, 0, e.SamplesArrived(policy, poll.metric, poll.samples)) for poll in scenario.polls
        ]
        pods: list[tuple[int, int, e.Event]] = [
            (arrival.at_ns, 1, e.PodUpdated(arrival.pod))
            for arrival in scenario.pods
            if not (arrival.at_ns <= scenario.start_ns and arrival.pod.node is not None)
        ]
        yield from (
            (at_ns, event) for at_ns, _, event in sorted([*polls, *pods], key=lambda timed: timed[:2])
        )

    def _handle(self, event: e.Event) -> None:
        if isinstance(event, e.PodUpdated):
            observed = event.pod
            self._names[observed.pod.uid] = observed.pod.full_name
            if (
                observed.node is None
                and not observed.finished
                and observed.pod.scheduler == self._program.name
            ):
                self._pending[observed.pod.uid] = observed
        self._dispatch(self._scheduler.handle(event, self._now_ns))

    def _decide_all(self) -> None:
        for _ in range(_STEPS_MAX):
            if not self._scheduler.ready(self._now_ns):
                return
            explanations = {
                observed.pod.uid: explanation
                for observed in self._pending.values()
                if observed.pod.full_name in self._pods_to_explain
                and (explanation := self._explain(observed.pod.uid)) is not None
            }
            self._dispatch(self._scheduler.decide(self._now_ns))
            decisions = self._scheduler.decisions
            for decision in decisions[self._decisions_read :]:
                if decision.pod not in self.result.decision_order:
                    self.result.decision_order.append(decision.pod)
                if decision.uid in explanations:
                    self.result.explanations[decision.pod] = explanations[decision.uid]
            self._decisions_read = len(decisions)
        raise StepLimitExceeded

    def _dispatch(self, commands: list[c.Command]) -> None:
        queue = list(commands)
        while queue:
            match queue.pop(0):
                case c.Bind(uid=uid, node=node):
                    observed = self._pending.pop(uid)
                    self.result.node[observed.pod.full_name] = node
                    queue += self._scheduler.handle(e.BindConfirmed(uid, node), self._now_ns)
                    observed = replace(observed, node=node)  # as the API server now reports it
                    queue += self._scheduler.handle(e.PodUpdated(observed), self._now_ns)
                case c.CallExtenders(uid=uid, nodes=nodes) as call:
                    answer = call_stub_extenders(call, self._scenario.extenders)
                    self._extender_answers[uid] = nodes, answer.answers
                    queue += self._scheduler.handle(answer, self._now_ns)
                case c.Prebind() as prebind:
                    for event in simulate_prebind(prebind, self._scheduler.cache):
                        queue += self._scheduler.handle(event, self._now_ns)
                case c.Unreserve() | c.Deallocate() | c.DeleteExtendedClaim() as command:
                    for event in simulate_unreserve(command, self._scheduler.cache):
                        queue += self._scheduler.handle(event, self._now_ns)
                case c.Evict(uid=uid, victims=victims):
                    victim_uids = tuple(victim.uid for victim in victims)
                    for victim_uid in victim_uids:
                        self.result.evicted.append(self._names[victim_uid])
                        self.result.node.pop(self._names[victim_uid], None)
                        queue += self._scheduler.handle(e.PodDeleted(victim_uid), self._now_ns)
                    queue += self._scheduler.handle(e.Evicted(uid, victim_uids), self._now_ns)
                case c.SetTimer(at_ns=at_ns):
                    self._wake_at_ns = at_ns
                case _:
                    pass

    def _explain(self, uid: PodUid) -> PlacementExplanation | None:
        """Explains by the rules and the last responses of extenders."""
        explanation = self._scheduler.explain(uid, self._now_ns)
        if explanation is None or uid not in self._extender_answers:
            return explanation
        nodes, answers = self._extender_answers[uid]
        remaining = [NodeName(node) for node in nodes_passing_extenders(nodes, answers)]
        among = self._scheduler.explain(uid, self._now_ns, node_names=remaining)
        assert among is not None, f"{uid} is not pending"
        return apply_extender_answers(explanation, among, self._program.extenders, answers)

    def _collect_result(self) -> None:
        for observed in self._pending.values():
            name, uid = observed.pod.full_name, observed.pod.uid
            reported = self._scheduler.core.reports.latest_report(uid)
            messages = {} if reported is None else {uid: reported[1]}
            self.result.pending[name] = pending_message(self._scheduler, observed, messages)
            if name in self._pods_to_explain and name not in self.result.explanations:
                explanation = self._explain(observed.pod.uid)
                if explanation is not None:
                    self.result.explanations[name] = explanation
