"""`docs/builtins.md` from the declarations and the reference implementation.

    python -m tests.house.builtins_doc [--update]

Without `--update` it prints the page.
"""

import argparse
import inspect
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter
from policysched.builtins.registry import (
    BUILTINS,
    KUBE_DEFAULT_VERSION,
    KUBE_SCHEDULER_RELEASES,
    KubeSchedulerRelease,
)
from policysched.lang.ir.rules import BuiltinParamValue

PAGE = Path(__file__).resolve().parents[2] / "docs" / "builtins.md"

_INTRODUCTION = f"""# Built-in filters and scores

What kube-scheduler's default plugins do, in its own integer arithmetic (release {KUBE_DEFAULT_VERSION}). `include kube_default`
adds all of them in this order and with these weights; each can also be written alone, as below. The tests compare
them with recorded decisions of a kube-scheduler.

This page is generated from the declarations in `policysched/builtins` and the reference implementation in
`tests/reference/builtins`: `python -m tests.house.builtins_doc --update`.
"""


def page() -> str:
    return "\n".join([_INTRODUCTION, *(_section(builtin) for builtin in BUILTINS.values()), _releases()])


def _releases() -> str:
    """What `include kube_default "1.35"` includes instead."""
    releases = KUBE_SCHEDULER_RELEASES
    newest = releases[KUBE_DEFAULT_VERSION]
    rows = {"first filters": [_listed(release.default_filters[:2]) for release in releases.values()]}
    for builtin in newest.builtins:
        lacking = [builtin.name in release.missing_builtins for release in releases.values()]
        unscored = [builtin.name in release.builtins_without_score for release in releases.values()]
        if any(lacking):
            rows[f"`{builtin.name}`"] = ["no" if lacks else "yes" for lacks in lacking]
        if any(unscored):
            rows[f"score of `{builtin.name}`"] = ["no" if lacks else "yes" for lacks in unscored]
        for parameter in (*builtin.filter_parameters, *builtin.parameters):
            of_releases = [_value_in(release, builtin, parameter) for release in releases.values()]
            if len(set(of_releases)) > 1:
                rows[f"`{builtin.name} {{ {parameter.name} }}`"] = [f"`{value}`" for value in of_releases]
    rows["message `no new claims to deallocate` and the like"] = [
        "yes" if release.says_claims else "no" for release in releases.values()
    ]
    rows["message `found a potential placement for pod on node ...`"] = [
        "yes" if release.says_placement else "no" for release in releases.values()
    ]
    lines = [
        "## Releases\n",
        f"`include kube_default` is that of {KUBE_DEFAULT_VERSION}. With the number of an older release it adds what that one did. Filters and their "
        "reasons, scores and weights are otherwise the same in these releases. Feature gates are at each release's defaults. The messages are those of "
        "the release whose default filters a policy has, in their order.\n",
        "| | " + " | ".join(f'`"{version}"`' for version in releases) + " |",
        "|---" * (1 + len(releases)) + "|",
        *(f"| {title} | {' | '.join(cells)} |" for title, cells in rows.items()),
        "",
        _NOT_TOLD_APART,
    ]
    return "\n".join(lines)


def _value_in(
    release: KubeSchedulerRelease, builtin: BuiltinDeclaration, parameter: BuiltinParameter
) -> BuiltinParamValue:
    of_filter = parameter in builtin.filter_parameters
    values = release.filter_parameter_values if of_filter else release.score_parameter_values
    return values.get(builtin.name, {}).get(parameter.name, parameter.default)


_NOT_TOLD_APART = """Not told apart; here these are as in 1.37, whatever release a policy includes:

- what a pod counts while it is resized in place (1.36: the sum of the largest amounts of its containers; 1.37: the largest
  sum), also how releases before 1.36 read pod-level resources then;
- DeviceTaintRules, which kube-scheduler reads by default since 1.37; policysched reads them where the API server serves
  them as resource.k8s.io/v1, which is since 1.37;
- the device search: 1.36 mixes up the counters of pools that have one name and different drivers, forgets devices of a
  request in `distinctAttribute`, skips devices without free capacity in a request for all devices, and rounds fractional
  ranges of capacity up to whole numbers;
- PodGroups as victims of preemption, which kube-scheduler has since 1.36 (behind the gate WorkloadAwarePreemption; in
  1.37 behind GenericWorkload): here wherever the policy includes `pod_groups`;
- the message of a selector that fails (1.37 names the device and gives advice) and that of a claim for too many devices;
- in an allocation, a configuration that applies to all requests names none of them, as since 1.37;
- which in-tree volume plugins releases before 1.36 took for migrated to CSI drivers (`CSINode` annotations).

Where a gate that is off by default before 1.36 concerns fields of ResourceSlices alone (device taints, binding conditions,
partitionable devices, consumable capacity), nothing differs here: the API server of that release drops the fields.

Known differences from 1.37: a request for a capacity that no 64-bit integer can hold, or that is no multiple of a
thousandth, stops the attempt there and is rounded up here; where several CSIStorageCapacities have room for a claim on
a node, the score of `volume_binding` reads the largest here and any of them there.
"""


def _section(builtin: BuiltinDeclaration) -> str:
    parts = [f"## {builtin.name}\n", f"kube-scheduler's `{builtin.plugin}`: {builtin.summary}.\n", "```"]
    if builtin.filters:
        parts.append(f"filter {builtin.name}{_parameters(builtin.filter_parameters)}")
    if builtin.scores:
        parts.append(f"score {builtin.name} weight {builtin.default_weight}{_parameters(builtin.parameters)}")
    parts += ["```\n", _meaning(builtin.name), ""]
    has_both = builtin.filters and builtin.scores
    parts += [_parameter(each, "filter" if has_both else "") for each in builtin.filter_parameters]
    parts += [_parameter(each, "score" if has_both else "") for each in builtin.parameters]
    if builtin.filter_parameters or builtin.parameters:
        parts.append("")
    parts += [f"- reads of the pod: {_listed(builtin.pod_reads)}; of the node: {_listed(builtin.node_reads)}"]
    if builtin.filters:
        parts += [
            f"- reasons: {'; '.join(f'`{reason}`' for reason in builtin.reasons) or 'none, it rejects no node'}",
            f"- requeued after: {_listed(sorted(event.value for event in builtin.filter_requeue_events))}",
        ]
    parts += [f"- source: {builtin.source}", ""]
    return "\n".join(parts)


def _meaning(name: str) -> str:
    documented = inspect.getdoc(import_module(f"tests.reference.builtins.{name}"))
    assert documented, f"oracle.builtins.{name} says nothing of what it means"
    return documented


def _parameters(parameters: Sequence[BuiltinParameter]) -> str:
    if not parameters:
        return ""
    return (
        f" {{ {', '.join(f'{parameter.name} = {_value(parameter.default)}' for parameter in parameters)} }}"
    )


def _parameter(parameter: BuiltinParameter, of: str) -> str:
    match parameter.kind:
        case "choice":
            allowed = f"one of {_listed(parameter.choices)}"
        case "int":
            allowed = f"{parameter.low} to {parameter.high}"
        case "weights":
            allowed = f"resources and their weights, {parameter.low} to {parameter.high}"
        case "shape":
            allowed = f"percent to score, {parameter.low} to {parameter.high}"
        case "names":
            allowed = "a list of names"
        case "constraints":
            allowed = f"{_listed(parameter.choices)}, or topology keys and their maxSkew, {parameter.low} to {parameter.high}"
    return f"- `{parameter.name}`{f' of the {of}' if of else ''} ({allowed}): {parameter.doc}; `{_value(parameter.default)}` unless said otherwise"


def _value(value: BuiltinParamValue) -> str:
    if isinstance(value, frozenset):
        return f"[{', '.join(sorted(value))}]"
    if isinstance(value, tuple):
        return "{" + ", ".join(f'"{key}" = {amount}' for key, amount in value) + "}"
    return str(value)


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words) or "nothing"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The page of the built-ins.")
    parser.add_argument("--update", action="store_true", help=f"write {PAGE.name} instead of printing it")
    if parser.parse_args(arguments).update:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
