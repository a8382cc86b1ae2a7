"""Run a scheduler while pods, nodes and containers change over time."""

from collections.abc import Mapping
from typing import Any

from policysched.cluster.metric_samples import ALL_NODES
from policysched.from_files.state_values import parse_state_entries
from policysched.kube.decode import core_objects
from policysched.kube.decode.pods import decode_pod
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.policies.extender_capabilities import ExtendersByName
from policysched.scheduler.policies.policy_states import state_text
from policysched.scheduler.scheduler import Scheduler
from tests.conformance.seed_systems.worlds import START_NS, node_with, pod_with

Json = dict[str, Any]

_HOUR_NS = 3600 * 10**9
_ATTEMPTS_MAX = 3


class SchedulerRun:
    """A scheduler that receives events one by one. `bound` and `refused` are the outcomes of pods,
    `said` the messages, `events` the events of bound pods; `attempts` counts binds, including
    failed ones.
    """

    def __init__(
        self,
        program: Program,
        state: Mapping[str, Any] | None = None,
        *,
        extenders: ExtendersByName | None = None,
        bind_fails: bool = False,
    ) -> None:
        self._program, self._now_ns, self._bind_fails = program, START_NS, bind_fails
        self._scheduler = Scheduler(extenders=extenders)
        self.bound: dict[str, str] = {}
        self.refused: list[str] = []
        self.said: list[str] = []
        self.events: list[str] = []
        self.attempts = 0
        if state is not None:
            tables = {
                name: parse_state_entries(program.states[name], values) for name, values in state.items()
            }
            self.tell(e.SavedPolicyStatesLoaded({program.name: state_text(0, tables)}))
        bundle = PolicyBundle({"p": CheckedSource("p", is_library=False, program=program, diagnostics=())})
        self.tell(e.PoliciesUpdated(bundle, resource_version=""))
        self.tell(e.Synced())

    def tell(self, event: e.Event) -> None:
        self._carry_out(self._scheduler.handle(event, self._now_ns))

    def show(self, pod: Json) -> None:
        """Deliver a pod of the policy as the API server sends it."""
        spec = {**pod["spec"], "schedulerName": self._program.name}
        self.tell(e.PodUpdated(decode_pod({"kind": "Pod", **pod, "spec": spec})))

    def add_pod(self, name: str) -> None:
        self.tell(e.PodUpdated(decode_pod(pod_with(name, scheduler=self._program.name))))

    def add_node(self, name: str, **more: Any) -> None:
        self.tell(e.NodeUpdated(core_objects.decode_node(node_with(name, **more))))

    def tell_gone(self, uid: str) -> None:
        self.tell(e.PodDeleted(PodUid(uid)))

    def decide(self) -> None:
        """Decide everything that is pending, until backoff is over."""
        for _ in range(_ATTEMPTS_MAX):
            self._now_ns += _HOUR_NS
            self._decide_what_is_ready()

    def _decide_what_is_ready(self) -> None:
        while self._scheduler.ready(self._now_ns):
            self._carry_out(self._scheduler.decide(self._now_ns))

    def explain(self, uid: str) -> PlacementExplanation:
        explanation = self._scheduler.explain(PodUid(uid), self._now_ns)
        assert explanation is not None, f"{uid} cannot be explained: it is not pending"
        return explanation

    def value(self, state: str, key: str, node: str | None) -> float:
        """The value of a policy state for a key on a node; without a node, on all nodes."""
        row = self._scheduler.samples(self._program.name)[state].state_rows.get(key)
        at = ALL_NODES if node is None else NodeName(node)
        start = self._program.states[state].start
        return start if row is None else row.values.get(at, start)

    def _carry_out(self, commands: list[c.Command]) -> None:
        for command in commands:
            match command:
                case c.Bind(uid=uid) if self._bind_fails:
                    self.attempts += 1
                    if self.attempts < _ATTEMPTS_MAX:
                        self._carry_out(self._scheduler.handle(e.BindRefused(uid, "no"), self._now_ns))
                case c.Bind(uid=uid, name=name, node=node):
                    self.bound[name] = node
                    self._carry_out(self._scheduler.handle(e.BindConfirmed(uid, node), self._now_ns))
                case c.ReportPending(name=name, message=message):
                    self.refused.append(name)
                    self.said.append(message)
                case c.ReportScheduled(namespace=namespace, name=name, node=node):
                    self.events.append(f"Successfully assigned {namespace}/{name} to {node}")
                case c.CallExtenders() as consult:
                    self._carry_out(self._scheduler.handle(self.consulted(consult), self._now_ns))

    def consulted(self, command: c.CallExtenders) -> e.ExtendersAnswered:
        raise AssertionError(f"nobody is there to be asked: {command}")
