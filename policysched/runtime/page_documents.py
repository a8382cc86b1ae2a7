"""The documents of the page at `/`: health, pending by cause, queue, nodes, policies, one pod.

Each is a generator of steps of a few milliseconds on the main loop, as the pages of `runtime.live_endpoints`. Times are in
ms since 1970, so that a document changes only with what it shows. Rows about pods have a `namespace`, by which
`serve.page_feed` leaves out what a user may not list.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any

from policysched import __version__
from policysched.daemon.quota_documents import quotas_document
from policysched.explanations.pending_causes import REQUESTS_MAX, CausesOfPods
from policysched.lang.ir.attributes import resource_type
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import included_by
from policysched.lang.types.units import format_value
from policysched.model.identifiers import NodeName
from policysched.runtime.live_endpoints import LiveEndpoints, chunks
from policysched.runtime.policy_history import PolicyHistory
from policysched.runtime.rule_times import RuleTimes
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.pending_status import pending_status
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.serve.main_loop_reader import LiveEndpoint, LiveStep, NoSuchEndpoint

Json = dict[str, Any]
Steps = Iterator[LiveStep]
Query = Mapping[str, str]

_PODS_PER_STEP = 100
_NODES_PER_STEP = 500
_QUEUE_ROWS_MAX = 200
_GANG_ROWS_MAX = 200
_QUOTA_ROWS_MAX = 200
_CAUSE_ROWS_MAX = 50
_EXAMPLES_MAX = 5
_NODES_COMPARED = 6
_MS_NS = 1_000_000


class PageDocuments:
    """`live`: the pages of the command line, of which `/page/pod` is one."""

    def __init__(self, app: SchedulerApp, live: LiveEndpoints, history: PolicyHistory) -> None:
        self._app, self._live, self._history = app, live, history
        self._rule_times = RuleTimes()

    def by_path(self) -> dict[str, tuple[LiveEndpoint, float]]:
        """With the share of a core that each may cost: less than 3 % together. `/page/pod` may take more for a moment, so
        that one pod after another can be looked at; the page requests it every ten seconds."""
        return {
            "/page/overview": (self.overview, 0.005),
            "/page/pending": (self.pending, 0.008),
            "/page/queue": (self.queue, 0.005),
            "/page/nodes": (self.nodes, 0.007),
            "/page/policies": (self.policies, 0.002),
            "/page/pod": (self.pod, 0.05),
        }

    def overview(self, _query: Query) -> Steps:
        """Who leads, what runs, how much waits."""
        app, scheduler = self._app, self._app.scheduler
        core, counters = scheduler.core, scheduler.counters
        first = next(iter(core.pods.values()), None)  # seen before the others
        attempts: Counter[str] = Counter()
        for (result, _), count in counters.attempts.items():
            attempts[result] += count
        binds = app.binder.counts
        self._history.keep_only(scheduler.programs())
        for name, program in scheduler.programs().items():
            self._history.observe(name, program, self._live.now_ns())
        yield {
            "note": app.unavailable_reason,
            "version": __version__,
            "leader": {"leads": app.leadership.leads(), "holder": app.leadership.holder},
            "queue": scheduler.pending_counts(),
            "oldest_pending_ms": None if first is None else first.queued_ns // _MS_NS,
            "attempts": dict(attempts),
            "binds": {"confirmed": binds.confirmed, "refused": binds.refused, "lost": binds.lost},
            "binds_in_flight": scheduler.binds_in_flight,
            "waiting_for_volumes": scheduler.prebinding_count,
            "nodes": len(scheduler.cache.nodes),
            "pods": len(scheduler.cache.pods),
            "api_problem": app.connectivity.problem,
            "policies": [
                {
                    "name": policy.name or policy.key,
                    "phase": policy.phase,
                    "sha256": policy.sha256,
                    "since_ms": (policy.last_success_ns or policy.since_ns) // _MS_NS,
                    "errors": [diagnostic.message for diagnostic in policy.diagnostics][:5],
                }
                for policy in scheduler.policies()
            ],
            "metrics": [
                {
                    "policy": status.policy,
                    "metric": status.metric.name,
                    "source": status.source,
                    "polled_ms": None
                    if (good := status.last_good_poll) is None
                    else good.polled_ns // _MS_NS,
                    "stale_after_ms": status.metric.stale_after_ns // _MS_NS,
                    "nodes": 0 if good is None else good.nodes,
                    "problem": status.unserved_reason
                    or ("" if status.last_failure is None else status.last_failure.message),
                }
                for status in app.metric_monitor.statuses()
            ],
        }

    def pending(self, _query: Query) -> Steps:
        """The pending pods by cause, and the rules that by themselves keep the most pods pending."""
        core, groups, freed = self._app.scheduler.core, dict[str, _CauseRow](), Counter[str]()
        binding = 0
        causes = CausesOfPods(core)
        for uids in chunks(list(core.pods), _PODS_PER_STEP):
            for uid in uids:
                pod = core.pods.get(uid)
                if pod is None:
                    continue
                if pod.state is QueueState.BINDING:
                    binding += 1
                    continue
                cause = causes.of(pod)
                row = groups.get(cause.text)
                if row is None:
                    row = groups[cause.text] = _CauseRow(cause.sole_rules)
                row.add(pod)
            yield None
        for row in groups.values():
            for rule in row.sole_rules:
                freed[rule] += row.pods
        rows = sorted(groups.items(), key=lambda item: (-item[1].pods, item[0]))
        yield {
            "note": self._app.unavailable_reason,
            "pods": sum(row.pods for _, row in rows),
            "binding": binding,
            "causes": [row.record(text) for text, row in rows[:_CAUSE_ROWS_MAX]],
            "omitted_causes": max(0, len(rows) - _CAUSE_ROWS_MAX),
            "would_free": [{"rule": rule, "pods": count} for rule, count in freed.most_common(20)],
        }

    def queue(self, _query: Query) -> Steps:
        """The first pods of the queue, the gangs that are not complete, and the quotas."""
        scheduler = self._app.scheduler
        core, first, total = scheduler.core, list[tuple[Any, ...]](), 0
        for uids in chunks(list(core.pods), _PODS_PER_STEP):
            chunk = [
                (pod.policy, pod.sort_key, uid, pod)
                for uid in uids
                if (pod := core.pods.get(uid)) is not None
            ]
            total += len(chunk)
            first = heapq.nsmallest(_QUEUE_ROWS_MAX, [*first, *chunk], key=itemgetter(0, 1, 2))
            yield None
        quotas = quotas_document(scheduler.quotas()[:_QUOTA_ROWS_MAX], None)
        yield {
            "note": self._app.unavailable_reason,
            "counts": scheduler.pending_counts(),
            "pods": [_pod_row(core, pod) for *_, pod in first if pod.uid in core.pods],
            "omitted": max(0, total - len(first)),
            **self._gangs(),
            # Without a namespace: entities are names of all tenants, for those who may list all pods.
            "quotas": [{**row, "namespaces": []} for row in quotas["quotas"]],
        }

    def _gangs(self) -> Json:
        core = self._app.scheduler.core
        waiting = [gang for gang in core.gangs if gang.pending_members]
        waiting.sort(key=lambda gang: (gang.queued_ns, gang.id))
        rows = []
        for gang in waiting[:_GANG_ROWS_MAX]:
            group = core.queue.group_of(gang)
            member = next(iter(gang.pending_members.values()))
            rows.append(
                {
                    "namespace": gang.namespace,
                    "name": gang.name,
                    "policy": gang.policy,
                    "state": gang.state.value,
                    "minimum": gang.minimum,
                    "placed": len(gang.placed_members),
                    "pending": len(gang.pending_members),
                    "queued_ms": member.queued_ns // _MS_NS,
                    "attempts": gang.attempts or member.attempts,
                    "message": member.pending_message if group is None else group.message,
                }
            )
        return {"gangs": rows, "omitted_gangs": max(0, len(waiting) - len(rows))}

    def nodes(self, query: Query) -> Steps:
        """One value of every node: `by` is a resource or `POLICY/METRIC`. Columns, because there may be 5,000."""
        cache, metrics = self._app.scheduler.cache, self._metric_choices()
        offered = {
            name for node in cache.nodes.values() for name, amount in node.allocatable.items() if amount
        }
        resources: list[str] = [name for name in ("cpu", "memory", "pods") if name in offered]
        resources += sorted(offered.difference(resources, ("ephemeral-storage",)))
        by = query.get("by", "cpu")
        if by not in offered and by not in metrics:
            raise NoSuchEndpoint(f"no node has `{by}`")
        now_ns = self._live.now_ns()
        columns: dict[str, list[Any]] = {"names": [], "values": [], "of": [], "pods": [], "flags": []}
        policy, _, name = by.rpartition("/") if by in metrics else ("", "", "")
        metric = metrics[by].metrics[name] if policy else None
        polled = self._app.scheduler.samples(policy).get(name) if policy else None
        for names in chunks(sorted(cache.nodes), _NODES_PER_STEP):
            for node_name in names:
                node = cache.nodes.get(NodeName(node_name))
                if node is None:
                    continue
                usage, flags = cache.ledger.usage(node.name), int(node.unschedulable)
                value: float | None
                if metric is None:
                    total: int | None = node.allocatable.get(by, 0)
                    value = len(usage.pods) if by == "pods" else usage.requested_capped(by)
                else:
                    total, sample = None, None if polled is None else polled.values.get(node.name)
                    value = None if sample is None else sample.value
                    if sample is not None and polled is not None:
                        age_ns = now_ns - min(sample.at_ns, polled.polled_ns)
                        flags |= 2 * (age_ns > metric.stale_after_ns)
                for column, item in zip(
                    columns.values(), (node.name, value, total, len(usage.pods), flags), strict=True
                ):
                    column.append(item)
            yield None
        yield {
            "note": self._app.unavailable_reason,
            "by": by,
            "type": resource_type(by).kind.value if metric is None else metric.type.kind.value,
            "resources": resources,
            "metrics": sorted(metrics),
            **columns,
        }

    def _metric_choices(self) -> dict[str, Program]:
        """Metrics between pods have no value of a node."""
        return {
            f"{policy}/{name}": program
            for policy, program in self._app.scheduler.programs().items()
            for name in program.metrics
            if (polled := self._app.scheduler.samples(policy).get(name)) is None or not polled.pairs
        }

    def policies(self, _query: Query) -> Steps:
        """The texts with the place of each rule and what it has done since the process started, and the history."""
        scheduler = self._app.scheduler
        counts = scheduler.core.queue.rule_counts
        records = []
        self._history.keep_only(scheduler.programs())
        self._rule_times.keep_only(scheduler.programs())
        for name, program in sorted(scheduler.programs().items()):
            self._history.observe(name, program, self._live.now_ns())
            self._rule_times.measure(scheduler.core, name, self._live.now_ns())
            times_us = self._rule_times.of(name)
            rules = []
            for kind, of_kind in (("filter", program.rules.filters), ("score", program.rules.scores)):
                for rule in of_kind:
                    count = counts.get((name, rule.name)) if kind == "filter" else None
                    include = included_by(rule.span, program.name_span)
                    is_own = rule.span.source.name == program.name_span.source.name
                    rules.append(
                        {
                            "name": rule.name,
                            "kind": kind,
                            "line": rule.span.source.position(rule.span.start).line if is_own else None,
                            "include": include,
                            "blocked": 0 if count is None else count.blocked,
                            "blocked_alone": 0 if count is None else count.blocked_alone,
                            "us": None if (us := times_us.get(rule.name)) is None else float(f"{us:.2g}"),
                        }
                    )
            records.append(
                {
                    "name": name,
                    "sha256": program.sha256,
                    "text": program.name_span.source.text,
                    "rules": rules,
                    "history": self._history.of(name),
                }
            )
            yield None
        yield {"note": self._app.unavailable_reason, "policies": records}

    def pod(self, query: Query) -> Steps:
        """`/explain` for a pod given as `namespace/name`."""
        name = query.get("pod", "").strip()
        namespace, slash, _ = name.partition("/")
        if not slash:
            names = self._app.scheduler.pending_pods.full_names(name)
            yield {
                "matches": [
                    {"namespace": full.partition("/")[0], "pod": full} for full in names[:_QUEUE_ROWS_MAX]
                ]
            }
            return
        for step in self._live.explain({"pod": name}):
            yield {"explained": [_story(namespace, step)]} if isinstance(step, Mapping) else step


class _CauseRow:
    __slots__ = ("_amounts", "_examples", "_namespaces", "_oldest_ns", "pods", "sole_rules")

    def __init__(self, sole_rules: tuple[str, ...]) -> None:
        self.sole_rules = sole_rules
        self.pods = 0
        self._amounts: dict[str, int] = {}
        self._namespaces: dict[str, None] = {}
        self._examples: list[PendingPod] = []
        self._oldest_ns: int | None = None

    def add(self, pod: PendingPod) -> None:
        self.pods += 1
        amounts = self._amounts
        for name, amount in islice(pod.pod.requests.items(), REQUESTS_MAX):
            if name in amounts or len(amounts) < REQUESTS_MAX:
                amounts[name] = amounts.get(name, 0) + amount
        self._namespaces[pod.pod.namespace] = None
        if self._oldest_ns is None or pod.queued_ns < self._oldest_ns:
            self._oldest_ns = pod.queued_ns
        if len(self._examples) < _EXAMPLES_MAX:
            self._examples.append(pod)

    def record(self, text: str) -> Json:
        return {
            "cause": text,
            "pods": self.pods,
            "sole_rules": list(self.sole_rules),
            "requests": [
                {"resource": name, "amount": format_value(amount, resource_type(name))}
                for name, amount in sorted(self._amounts.items())
                if amount and (name in ("cpu", "memory") or "/" in name)
            ],
            "oldest_ms": (self._oldest_ns or 0) // _MS_NS,
            "namespaces": list(self._namespaces),
            "examples": [
                {
                    "namespace": pod.pod.namespace,
                    "pod": pod.pod.full_name,
                    "message": pod.pending_message,  # it may have values of its pod
                }
                for pod in self._examples
            ],
        }


def _pod_row(core: SchedulerCore, pod: PendingPod) -> Json:
    status = pending_status(core, pod.uid)
    assert status is not None
    return {
        "namespace": pod.pod.namespace,
        "pod": status.pod,
        "policy": status.policy,
        "state": status.state,
        "gang": status.gang,
        "attempts": status.attempts,
        "queued_ms": status.queued_ns // _MS_NS,
        "message": status.message,
    }


def _story(namespace: str, page: Mapping[str, Any]) -> Json:
    """`/explain` without the nodes that are not compared: there may be 5,000. A proposal to move a pod names one of any
    namespace, so it is only for users who may list all pods."""
    totals, placed_on = page["totals"], page["placed_on"]
    best = sorted(totals, key=lambda node: (node != (placed_on or page["selected"]), -totals[node], node))
    best = best[:_NODES_COMPARED]
    scores = {
        rule: {node: cells[node]["weighted"] for node in best if node in cells}
        for rule, cells in page["scores"].items()
    }
    kept = (
        "policy",
        "pod",
        "message",
        "nodes",
        "placed_on",
        "gang",
        "filters",
        "closest",
        "notes",
        "waiting",
    )
    return {
        "namespace": namespace,
        **{name: page[name] for name in kept},
        "feasible_count": len(page["feasible"]),
        "best": best,
        "scores": scores,
        "totals": {node: totals[node] for node in best},
        "would_fit": None
        if page["would_fit"] is None
        else [
            {**proposal, "namespaces": ["*"]} if proposal["kind"] == "move" else proposal
            for proposal in page["would_fit"]
        ],
    }
