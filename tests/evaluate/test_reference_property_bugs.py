"""The reference property catches a planted bug in every part of the evaluation."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from policysched.evaluate import NotCounted
from tests.evaluate.clusters import scene_of
from tests.evaluate.policies import corner
from tests.evaluate.test_reference_property import all_agree

Function = Callable[..., Any]


def caught(name: str, scenes: Iterable[int]) -> bool:
    """Whether the properties fail in this corner of the language for one of the scenes."""
    for number in scenes:
        try:
            all_agree(corner(name), scene_of(number))
        except (AssertionError, NotCounted):
            return True
    return False


def always(answer: object) -> Function:
    return lambda *_, **_more: answer


BUGS: dict[str, tuple[str, str, Callable[[Function], Function]]] = {
    "a state value is read as never fed": (
        "states",
        "policysched.evaluate.columns.view.View.from_node_values",
        lambda right: lambda self, _, start: right(self, {}, start),
    ),
    "traffic between pods is zero": (
        "traffic",
        "policysched.evaluate.vector.traffic._PodFlows.flow_to",
        lambda _: always(0),
    ),
    "samples that cannot be used count as nothing": (
        "traffic",
        "policysched.evaluate.vector.traffic._PodFlows.flow_to",
        lambda right: lambda self, name: right(self, name) or 0,
    ),
    "nothing is assumed between pods": (
        "traffic",
        "policysched.evaluate.vector.traffic._assumed_number",
        lambda _: lambda _amount, **_kind: None,
    ),
    "pods of other schedulers are members": (
        "traffic",
        "policysched.evaluate.columns.gang_members.GangMembers.gang_and_name",
        lambda right: lambda self, pod: right(self, replace(pod, scheduler="test")),
    ),
    "pods that end are members": (
        "traffic",
        "policysched.evaluate.columns.gang_members.GangMembers.gang_and_name",
        lambda right: lambda self, pod: right(self, replace(pod, terminating=False)),
    ),
    "members added to an overlay are overlooked": (
        "traffic",
        "policysched.evaluate.columns.gang_members.HypotheticalGangMembers.catch_up",
        lambda _: always(None),
    ),
    "a domain is a node": (
        "traffic",
        "policysched.evaluate.vector.traffic.DomainColumn",
        lambda right: lambda _: right("kubernetes.io/hostname"),
    ),
    "polls between pods never grow old": (
        "traffic",
        "policysched.evaluate.columns.view.View.metric",
        lambda right: lambda self, name: (right(self, name)[0], True),
    ),
    "nodes outside the subset are evaluated": (
        "queue and gangs",
        "policysched.evaluate.evaluator.row_mask",
        lambda right: lambda columns, nodes: right(columns, [*nodes, *columns.names]),
    ),
    "nodes outside the subset set the scale": (
        "queue and gangs",
        "policysched.evaluate.evaluation.Evaluation.evaluated_rows",
        lambda _: lambda _self, world: world.columns.valid,
    ),
    "a taint is overlooked": (
        "queue and gangs",
        "policysched.builtins.taint_toleration.kernel._Filter._has_untolerated",
        lambda right: lambda self, taints: right(self, taints[1:]),
    ),
    "used ports are overlooked": (
        "queue and gangs",
        "policysched.builtins.node_ports.kernel._Filter._conflicts_with_any",
        lambda _: always(False),
    ),
    "memory never runs short": (
        "queue and gangs",
        "policysched.builtins.node_resources_fit.kernel.NodeResourcesFitFilter._insufficient",
        lambda right: lambda self, resource, *more: right(self, resource, *more) & (resource != "memory"),
    ),
    "an image counts too much": (
        "queue and gangs",
        "policysched.builtins.image_locality.kernel._Score.raw",
        lambda right: lambda self, view: right(self, view) + 1,
    ),
    "a preferred term counts one point too much": (
        "queue and gangs",
        "policysched.builtins.node_affinity.kernel._Score.raw",
        lambda right: lambda self, view: right(self, view) + 1,
    ),
    "balance is rounded otherwise": (
        "queue and gangs",
        "policysched.builtins.node_resources_balanced_allocation.kernel._scaled",
        lambda _: lambda deviation: np.rint((1 - deviation) * 100).astype(np.int64),
    ),
    "deleted pods still count": (
        "counts",
        "policysched.evaluate.columns.pod_totals.PodTotals._change",
        lambda right: lambda self, keys, pod, node, by: right(self, keys, pod, node, max(by, 0)),
    ),
    "new pods are not indexed": (
        "counts",
        "policysched.cluster.pod_index.PodIndex.changed_since",
        lambda right: lambda self, version: right(self, version) if version < 0 else (),
    ),
    "terminating pods never count": (
        "counts",
        "policysched.evaluate.columns.pod_counter.ClusterPodCounter.total",
        lambda right: lambda self, expr, *more: right(self, replace(expr, scope="active"), *more),
    ),
    "a pod waits for a metric that no rule reads for it": (
        "waiting for metrics",
        "policysched.evaluate.plan.specialize.SpecializedRules.rule_metrics",
        lambda _: always([("rx",), ("load",)]),
    ),
    "no pod waits for a metric": (
        "waiting for metrics",
        "policysched.evaluate.evaluation.Evaluation._detect_outages",
        lambda _: always(None),
    ),
    "the pod itself does not count": (
        "counts",
        "policysched.evaluate.columns.pod_query.PodQuery.amount_of_pod",
        lambda _: always(0),
    ),
    "the residual condition is overlooked": (
        "counts",
        "policysched.evaluate.columns.pod_query.PodQuery.amount",
        lambda _: always(1),
    ),
    "buckets are of another hash": (
        "texts",
        "policysched.evaluate.vector.conditions.bucket_of",
        lambda right: lambda text, count, salt: right(text + "x", count, salt),
    ),
    "a function of strings takes the next string": (
        "texts",
        "policysched.evaluate.vector.conditions._function_of_text",
        lambda right: (
            lambda machine, text, function, dtype: right(
                machine, text, lambda value: function(value[1:]), dtype
            )
        ),
    ),
    "pods are counted by their node's former labels": (
        "placed counts",
        "policysched.evaluate.columns.placed_pod_totals.PlacedPodTotals.relabel",
        lambda _: always(None),
    ),
    "pods that come are not placed": (
        "placed counts",
        "policysched.evaluate.columns.placed_pod_totals.PlacedPodTotals.adjust",
        lambda right: lambda self, row, pod, by: right(self, row, pod, by) if by < 0 else None,
    ),
    "readiness is overlooked": (
        "placed counts",
        "policysched.evaluate.columns.pod_totals.PodTotals.adjust",
        lambda right: lambda self, pod, node, by: right(self, replace(pod, ready=False), node, by),
    ),
    "totals overlook an overlay": (
        "placed counts",
        "policysched.evaluate.columns.pod_totals.HypotheticalPodTotals.catch_up",
        lambda _: always(None),
    ),
    "counted pods never come of age": (
        "placed counts",
        "policysched.evaluate.columns.pod_totals.PodTotals._pass_time",
        lambda _: always(()),
    ),
    "pods are counted by node and not by domain": (
        "placed counts",
        "policysched.evaluate.columns.pod_totals.PodTotals.__init__",
        lambda right: (
            lambda self, spec, *base: right(self, replace(spec, topology_key="kubernetes.io/hostname"), *base)
        ),
    ),
    "a sum counts pods": (
        "placed counts",
        "policysched.evaluate.columns.pod_query.exact_number",
        lambda _: always(1),
    ),
    "elements that are not chosen are added": (
        "records",
        "policysched.evaluate.vector.elements._sum_by_row",
        lambda right: lambda lists, values, _, count, **how: right(lists, values, None, count, **how),
    ),
    "the greatest is taken for the least": (
        "records",
        "policysched.evaluate.vector.elements._extremes_by_row",
        lambda right: lambda expr, lists, values, *rest: -right(expr, lists, -values, *rest),
    ),
    "an element is matched with another node": (
        "records",
        "policysched.evaluate.vector.elements.ElementsView.column",
        lambda right: lambda self, kind: right(self, kind)[::-1],
    ),
    "a terminating pod counts for spreading": (
        "pods among pods",
        "policysched.builtins.pod_topology_spread.kernel.PodMatcher",
        lambda right: lambda selectors, **_: right(selectors),
    ),
    "nodes that the pod cannot use are spread over": (
        "pods among pods",
        "policysched.builtins.node_affinity.kernel.specialize_filter",
        lambda _: always(None),
    ),
    "the first pod of an affinity group is refused": (
        "pods among pods",
        "policysched.builtins.inter_pod_affinity.kernel._Filter._namespace_in_scope",
        lambda _: always(False),
    ),
    "placed pods' anti-affinity is overlooked": (
        "pods among pods",
        "policysched.builtins.inter_pod_affinity.kernel._Filter._violates_existing_anti_affinity",
        lambda _: always(None),
    ),
    "an overlay's pods are in no domain": (
        "pods among pods",
        "policysched.evaluate.columns.placed_pods.HypotheticalPlacedPods.apply_pending_changes",
        lambda _: always(None),
    ),
    "namespace labels never change": (
        "pods among pods",
        "policysched.evaluate.columns.placed_pods.PlacedPods.namespaces_changed",
        lambda _: always(None),
    ),
    "removed pods stay counted": (
        "pods among pods",
        "policysched.evaluate.columns.placed_pods.PlacedPods.adjust",
        lambda right: lambda self, row, pod, by: right(self, row, pod, by) if by > 0 else None,
    ),
    "a filter ignores cluster-wide changes": (
        "pods among pods",
        "policysched.builtins.inter_pod_affinity.kernel._fingerprint",
        lambda _: lambda *_, **__: (),
    ),
    "nominated pods are ignored": (
        "pods among pods",
        "policysched.evaluate.evaluator.nominated_rows",
        lambda _: always({}),
    ),
    "a share is rounded up": (
        "metrics",
        "policysched.evaluate.rules.normalizers.percent_of_range",
        lambda right: lambda raw, low, high: np.minimum(100, right(raw, low, high) + 1),
    ),
    "missing values count as known": (
        "arithmetic",
        "policysched.evaluate.vector.arithmetic.both_known",
        lambda _: always(True),
    ),
    "the wrong branch is taken where nothing is known": (
        "choices",
        "policysched.evaluate.vector.arithmetic.both_known",
        lambda _: lambda _, right: right,
    ),
    "halves are rounded up from the wrong side": (
        "roundings",
        "policysched.evaluate.vector.functions._half_up",
        lambda _: np.rint,
    ),
    "a distribution is as narrow as it can be": (
        "distributions",
        "policysched.evaluate.vector.functions.beta_cdf",
        lambda right: lambda args: right([*args[:2], args[2] * 0]),
    ),
    "the pod is not counted after placement": (
        "placing",
        "policysched.evaluate.vector.aggregates.AggregateTerms.sum_with_replacement",
        lambda right: lambda self, values, after: right(self, values, None if after is None else values),
    ),
    "the maximum ignores the pod's own change": (
        "placing",
        "policysched.evaluate.vector.aggregates._without",
        lambda _: lambda ordered, _: ordered,
    ),
    "nodes that are no candidates are counted": (
        "aggregates",
        "policysched.evaluate.rules.specialized_rules.Activation.frame",
        lambda right: (
            lambda self, view, among=None: right(self, view, None if among is None else among | True)
        ),
    ),
    "all candidates see the number that one of them sees": (
        "aggregates of aggregates",
        "policysched.evaluate.vector.aggregates._candidate_groups",
        lambda right: (
            lambda context, frame: [
                (frame.candidates.nonzero()[0], value) for _, value in right(context, frame)
            ][:1]
        ),
    ),
    "a number in the value is as it is without the pod": (
        "aggregates of aggregates",
        "policysched.evaluate.vector.aggregates.nested_aggregates",
        lambda _: always(()),
    ),
    "no node awaits recovery": (
        "recovering",
        "policysched.evaluate.columns.metric_column.MetricColumn.awaiting_recovery",
        lambda right: lambda self, watch, now_ns: right(self, watch, now_ns) & False,
    ),
    "a node never recovers": (
        "recovering",
        "policysched.evaluate.columns.metric_column.MetricColumn.awaiting_recovery",
        lambda right: lambda self, watch, _: right(self, watch, 0),
    ),
    "ties are broken by the node alone": (
        "lists",
        "policysched.evaluate.evaluator.text_hash",
        lambda _: always(0),
    ),
    "an overlay adds no pods": (
        "counting",
        "policysched.evaluate.columns.overlay.Overlay.add_pod",
        lambda _: always(None),
    ),
    "the load of pods on an overlay is forgotten": (
        "assumed",
        "policysched.evaluate.plan.assume_clauses.OverlayLoad.catch_up",
        lambda _: always(None),
    ),
    "assumed load is forgotten": (
        "assumed",
        "policysched.evaluate.columns.metric_column.add_metric_values",
        lambda right: lambda metric, held, _: right(metric, held, 0),
    ),
    "descending keys ascend": (
        "queue and gangs",
        "policysched.evaluate.plan.queue_order._negated",
        lambda _: lambda value: value,
    ),
    "a gang has no limits": (
        "queue and gangs",
        "policysched.evaluate.plan.gang_terms._int_or_none",
        lambda _: always(None),
    ),
    "admission accepts every pod": (
        "refusing inputs",
        "policysched.evaluate.plan.plan.CompiledPreEnqueue.message",
        lambda _: always(None),
    ),
    "some changed nodes are not reported": (
        "counting",
        "policysched.cluster.cache.ClusterCache.changed_nodes",
        lambda right: lambda self: {name for name in right(self) if self.ledger.usage(name).pods},
    ),
}


KNOWN_SCENES = {
    "a filter ignores cluster-wide changes": 100,
    "a taint is overlooked": 5,
    "an element is matched with another node": 5,
    "counted pods never come of age": 16,
    "elements that are not chosen are added": 7,
    "halves are rounded up from the wrong side": 14,
    "members added to an overlay are overlooked": 68,
    "namespace labels never change": 100,
    "nodes that the pod cannot use are spread over": 13,
    "nothing is assumed between pods": 4,
    "pods are counted by their node's former labels": 6,
    "pods of other schedulers are members": 5,
    "pods that end are members": 82,
    "readiness is overlooked": 2,
    "removed pods stay counted": 6,
    "samples that cannot be used count as nothing": 290,
    "terminating pods never count": 3,
    "traffic between pods is zero": 15,
}
"""The scene that shows a bug which the first scenes do not show, or show late."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, target, plant = BUGS[bug]
    owner, _, attribute = target.rpartition(".")
    right = getattr(resolve_name(owner), attribute)

    monkeypatch.setattr(target, plant(right))

    assert caught(name, (KNOWN_SCENES.get(bug, 0), *range(400)))


@pytest.mark.parametrize("name", sorted({name for name, _, _ in BUGS.values()}))
def test_without_a_bug_nothing_is_caught(name: str) -> None:
    # A few are enough: `test_reference_property.py` compares more, with the same properties.
    assert not caught(name, range(5))
