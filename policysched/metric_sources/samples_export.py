"""The samples that a running scheduler holds, as `/samples` exports them and the offline commands read them back.

Unlike a samples file that a person writes, an export has the time of each sample and each poll, the load assumed for
pods placed since, the nodes that a recovery condition excludes, and the values of states. Schema:
`schemas/samples-export.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson

from policysched.cluster.metric_samples import MetricSamples, PairEndpoint, Sample, Samples
from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.lang.ir.program import Program
from policysched.lang.ir.recovery import recovery_conditions
from policysched.lang.ir.recovery_condition import RecoveryCondition
from policysched.model.identifiers import NodeName
from policysched.schemas import findings

FORMAT_VERSION = 1


class BadSamplesExport(Exception):
    """The document is not an export of samples, or has none for the policy. The message is one line."""


@dataclass(frozen=True, slots=True)
class SamplesExport:
    """The samples of one policy at `time_ns`. `sha256` is the hash of the text that the scheduler ran; `states` has the
    saved form of the values of its states, None if it has none."""

    time_ns: int
    sha256: str
    samples: Samples
    states: str | None


def export_samples(program: Program, samples: Samples, states: str | None) -> dict[str, Any]:
    """One policy's part of the export."""
    return {
        "sha256": program.sha256,
        "metrics": {
            name: _metric_record(metric, samples[name])
            for name, metric in program.metrics.items()
            if name in samples
        },
        "states": None if states is None else orjson.loads(states),
    }


def samples_document(policies: Mapping[str, dict[str, Any]], now_ns: int, note: str | None) -> dict[str, Any]:
    """The whole export. `note`: why this process has no samples."""
    return {
        "format_version": FORMAT_VERSION,
        "time_ns": now_ns,
        "note": note,
        "policies": dict(policies),
    }


def is_samples_export(document: Any) -> bool:
    return isinstance(document, dict) and {"format_version", "policies"} <= document.keys()


def read_samples_export(document: Mapping[str, Any], program: Program) -> SamplesExport:
    """The samples of the policy. Raises BadSamplesExport."""
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise BadSamplesExport(
            f"is an export of format version {version}; this program reads {FORMAT_VERSION}"
        )
    if errors := findings("samples-export", dict(document)):
        raise BadSamplesExport(f"is not a complete export of samples: {errors[0]}")
    policies = document["policies"]
    if program.name not in policies:
        note = document.get("note")
        names = ", ".join(sorted(policies)) or f"none{f' ({note})' if note else ''}"
        raise BadSamplesExport(f"has no samples of policy {program.name}; it has those of: {names}")
    record = policies[program.name]
    samples = {
        name: _read_metric(program, program.metrics[name], metric)
        for name, metric in record["metrics"].items()
        if name in program.metrics
    }
    states = record.get("states")
    return SamplesExport(
        document["time_ns"],
        record["sha256"],
        samples,
        None if states is None else orjson.dumps(states).decode(),
    )


def _metric_record(metric: Metric, polled: MetricSamples) -> dict[str, Any]:
    record: dict[str, Any] = {"type": str(metric.type), "polled_ns": polled.polled_ns}
    if not is_node_metric(metric):
        record["pairs"] = [
            {"pods": ["/".join(pod), "/".join(peer)], "value": value}
            for pod, peers in sorted(polled.pairs.items())
            for peer, value in sorted(peers.items())
            if pod <= peer
        ]
        return record
    assumed = dict(polled.assumed)
    record["values"] = {
        node: {"value": sample.value, "at_ns": sample.at_ns}
        | ({"assumed": assumed[node]} if assumed.get(node) else {})
        for node, sample in sorted(polled.values.items())
    }
    record["recovering"] = [
        {
            "op": condition.op,
            "limit": condition.limit,
            "recover_at": condition.recover_at,
            "recover_for_ns": condition.recover_for_ns,
            "until_ns": dict(sorted(nodes.items())),
        }
        for condition, nodes in polled.recovering_until_ns.items()
    ]
    return record


def _read_metric(program: Program, metric: Metric, record: Mapping[str, Any]) -> MetricSamples:
    if not is_node_metric(metric):
        pairs: dict[PairEndpoint, dict[PairEndpoint, float | None]] = {}
        for pair in record.get("pairs", ()):
            first, second = (cast(PairEndpoint, tuple(name.split("/", 1))) for name in pair["pods"])
            pairs.setdefault(first, {})[second] = pair["value"]
            pairs.setdefault(second, {})[first] = pair["value"]
        return MetricSamples({}, record["polled_ns"], pairs=pairs)
    values = record.get("values", {})
    return MetricSamples(
        {NodeName(node): Sample(value["value"], value["at_ns"]) for node, value in values.items()},
        record["polled_ns"],
        assumed={NodeName(node): value["assumed"] for node, value in values.items() if "assumed" in value},
        recovering_until_ns=_read_recovering(program, metric, record.get("recovering", ())),
    )


def _read_recovering(
    program: Program, metric: Metric, records: list[dict[str, Any]]
) -> dict[RecoveryCondition, Mapping[NodeName, int]]:
    """Those of the conditions that the policy still has."""
    conditions = {condition for condition in recovery_conditions(program) if condition.metric == metric.name}
    read: dict[RecoveryCondition, Mapping[NodeName, int]] = {condition: {} for condition in conditions}
    for record in records:
        condition = RecoveryCondition(
            metric.name, record["op"], record["limit"], record["recover_at"], record["recover_for_ns"]
        )
        if condition in conditions:
            read[condition] = {NodeName(node): until for node, until in record["until_ns"].items()}
    return read
