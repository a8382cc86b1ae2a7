"""Commands into deeds: each kind to the part that carries it out."""

import logging
from collections.abc import Iterable
from typing import assert_never

from policysched.config.logs import say
from policysched.config.settings import Place
from policysched.daemon.consultant import Consultant
from policysched.daemon.policy_feed import LastGood, PolicyFeed
from policysched.kube.write.bind import Binder
from policysched.kube.write.evict import Evictor
from policysched.kube.write.prebind import PreparationWriter
from policysched.kube.write.report import About, Condition, Reporter, Words
from policysched.scheduler import commands as c

log = logging.getLogger("policysched.scheduler")

OURSELVES = "policysched"
"""Who reports what concerns no single policy."""


class Carrier:
    """`wake_at_ns` is when `decide` is to be called even if nothing happens."""

    def __init__(
        self,
        binder: Binder,
        volumes: PreparationWriter,
        evictor: Evictor,
        reporter: Reporter,
        last_good: LastGood,
        feed: PolicyFeed,
        policies: Place,
        consultant: Consultant,
    ) -> None:
        self._consultant = consultant
        self._binder = binder
        self._volumes = volumes
        self._evictor = evictor
        self._reporter = reporter
        self._last_good = last_good
        self._feed = feed
        self._policies = policies
        self.wake_at_ns: int | None = None

    def carry_out(self, commands: Iterable[c.Command]) -> None:
        for command in commands:
            self._one(command)

    def _one(self, command: c.Command) -> None:
        match command:
            case c.Bind():
                self._reporter.withdraw(command.uid)
                self._binder.put(command)
            case c.Prepare() | c.Unreserve() | c.Deallocate() | c.DropClaim():
                self._volumes.put(command)
            case c.Evict() | c.ClearNomination():
                self._evictor.put(command)
            case c.Consult():
                self._consultant.put(command)
            case c.ReportPreempted(victim, uid, namespace, name, scheduler, node):
                about = About("Pod", victim.namespace, victim.name, victim.uid)
                note = f"Preempted by pod {uid} on node {node}"
                preemptor = About("Pod", namespace, name, uid)
                self._reporter.say(
                    Words(about, "Normal", "Preempted", "Preempting", note, scheduler, preemptor)
                )
            case c.ReportScheduled(uid, namespace, name, node, scheduler):
                note = f"Successfully assigned {namespace}/{name} to {node}"
                about = About("Pod", namespace, name, uid)
                self._reporter.say(Words(about, "Normal", "Scheduled", "Binding", note, scheduler))
            case c.ReportPending(uid, namespace, name, scheduler, reason, message):
                about = About("Pod", namespace, name, uid)
                self._reporter.mark(Condition(namespace, name, uid, reason, message))
                self._reporter.say(
                    Words(about, "Warning", "FailedScheduling", "Scheduling", message, scheduler)
                )
            case c.ReportPod(uid, namespace, name, scheduler, event_type, reason, message):
                about = About("Pod", namespace, name, uid)
                self._reporter.say(Words(about, event_type, reason, "Scheduling", message, scheduler))
            case c.ReportPolicies(event_type, reason, message):
                about = About("ConfigMap", self._policies.namespace, self._policies.name, self._feed.uid)
                self._reporter.say(Words(about, event_type, reason, "Reloading", message, OURSELVES))
                level = logging.WARNING if event_type == "Warning" else logging.INFO
                log.log(level, message, extra={"reason": reason, "configmap": str(self._policies)})
            case c.KeepPolicies(texts):
                self._last_good.keep(texts)
            case c.KeepStates(texts):
                self._last_good.keep_states(texts)
            case c.WakeAt(at_ns):
                self.wake_at_ns = at_ns
            case c.Log():
                say(log, command)
            case _:
                assert_never(command)
