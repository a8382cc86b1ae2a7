"""Dispatches the scheduler's commands to the writers that execute them."""

import logging
from collections.abc import Iterable
from typing import assert_never

from policysched.config.logs import write_log
from policysched.config.settings import NamespacedName
from policysched.daemon.extender_caller import ExtenderCaller
from policysched.daemon.last_good_store import LastGoodStore
from policysched.daemon.policy_feed import PolicyFeed
from policysched.daemon.team_policy_feed import TeamPolicyFeed
from policysched.kube.write.bind import Binder
from policysched.kube.write.claim_writes import PrebindWriter
from policysched.kube.write.events_and_conditions import Reporter
from policysched.kube.write.evict import Evictor
from policysched.kube.write.pod_group_status import PodGroupStatusWrite
from policysched.kube.write.report_content import EventContent, EventObject, PodScheduledCondition
from policysched.scheduler import commands as c

log = logging.getLogger("policysched.scheduler")

EVENT_COMPONENT = "policysched"
"""The reporting component of events that concern no single policy."""


class CommandDispatcher:
    """`wake_at_ns` is when `decide` must be called even if no event arrives; None: it need not be."""

    def __init__(
        self,
        binder: Binder,
        prebind_writer: PrebindWriter,
        evictor: Evictor,
        reporter: Reporter,
        last_good: LastGoodStore,
        feed: PolicyFeed,
        policies: NamespacedName,
        extender_caller: ExtenderCaller,
        teams: TeamPolicyFeed | None = None,
    ) -> None:
        self._teams = teams
        self._extender_caller = extender_caller
        self._binder = binder
        self._prebind_writer = prebind_writer
        self._evictor = evictor
        self._reporter = reporter
        self._last_good = last_good
        self._feed = feed
        self._policies_config_map = policies
        self.wake_at_ns: int | None = None

    def dispatch(self, commands: Iterable[c.Command]) -> None:
        for command in commands:
            self._dispatch_one(command)

    def _dispatch_one(self, command: c.Command) -> None:
        match command:
            case c.Bind():
                self._reporter.discard_condition(command.uid)
                self._binder.put(command)
            case c.CancelBind(uid):
                self._binder.cancel(uid)
            case c.AbandonBind(uid):
                self._binder.abandon(uid)
                self._prebind_writer.abandon(uid)
            case c.AbandonEviction(uid):
                self._evictor.abandon(uid)
            case c.Prebind() | c.Unreserve() | c.Deallocate() | c.DeleteExtendedClaim():
                self._prebind_writer.put(command)
            case c.Evict() | c.ClearNomination():
                self._evictor.put(command)
            case c.CallExtenders():
                self._extender_caller.submit(command)
            case c.ReportPreempted(victim, uid, namespace, name, scheduler, node):
                regarding = EventObject("Pod", victim.namespace, victim.name, victim.uid)
                note = f"Preempted by pod {uid} on node {node}"
                preemptor = EventObject("Pod", namespace, name, uid)
                self._reporter.record_event(
                    EventContent(regarding, "Normal", "Preempted", "Preempting", note, scheduler, preemptor)
                )
            case c.ReportScheduled(uid, namespace, name, node, scheduler):
                note = f"Successfully assigned {namespace}/{name} to {node}"
                regarding = EventObject("Pod", namespace, name, uid)
                self._reporter.record_event(
                    EventContent(regarding, "Normal", "Scheduled", "Binding", note, scheduler)
                )
            case c.ReportPending(uid, namespace, name, scheduler, reason, message):
                regarding = EventObject("Pod", namespace, name, uid)
                self._reporter.set_condition(PodScheduledCondition(namespace, name, uid, reason, message))
                self._reporter.record_event(
                    EventContent(regarding, "Warning", "FailedScheduling", "Scheduling", message, scheduler)
                )
            case c.ReportPodEvent(uid, namespace, name, scheduler, event_type, reason, message):
                regarding = EventObject("Pod", namespace, name, uid)
                self._reporter.record_event(
                    EventContent(regarding, event_type, reason, "Scheduling", message, scheduler)
                )
            case c.ReportPodGroup(key, group_uid, api_version, status):
                self._reporter.set_condition(PodGroupStatusWrite(key, group_uid, api_version, status))
            case c.ReportPolicyEvent(event_type, reason, message, owner):
                config_map, object_uid = self._policies_config_map, self._feed.uid
                if owner is not None and self._teams is not None:
                    config_map, object_uid = self._teams.config_map(owner), self._teams.uid(owner)
                regarding = EventObject("ConfigMap", config_map.namespace, config_map.name, object_uid)
                self._reporter.record_event(
                    EventContent(regarding, event_type, reason, "Reloading", message, EVENT_COMPONENT)
                )
                level = logging.WARNING if event_type == "Warning" else logging.INFO
                log.log(level, message, extra={"reason": reason, "configmap": str(config_map)})
            case c.SavePolicyTexts(texts):
                self._last_good.save_policies(texts)
            case c.SavePolicyStates(texts):
                self._last_good.save_states(texts)
            case c.SetTimer(at_ns):
                self.wake_at_ns = at_ns
            case c.Log():
                write_log(log, command)
            case _:
                assert_never(command)
