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
from policysched.builtins.registry import BUILTINS, KUBE_DEFAULT_VERSION, KUBE_SCHEDULER_RELEASES
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
    lines = [
        "## Older releases\n",
        f"`include kube_default` is that of {KUBE_DEFAULT_VERSION}. With the number of an older release it adds what that one did. Filters and their "
        "reasons, scores and weights are otherwise the same in these releases.\n",
        "| `include kube_default` | brings |",
        "|---|---|",
    ]
    for version, release in KUBE_SCHEDULER_RELEASES.items():
        differences = [f"no `{name}`" for name in sorted(release.missing_builtins)]
        differences += [f"no score of `{name}`" for name in sorted(release.builtins_without_score)]
        for name, words in (
            *release.filter_parameter_values.items(),
            *release.score_parameter_values.items(),
        ):
            differences.append(
                f"`{name} {{ {', '.join(f'{parameter} = {word}' for parameter, word in words.items())} }}`"
            )
        lines.append(f'| `"{version}"` | {", ".join(differences) or "everything above"} |')
    lines += [
        "",
        "Not told apart: how releases before 1.36 read requests of a pod whose pod-level resources are being resized, and which in-tree volume "
        "plugins they took for migrated to CSI drivers (`CSINode` annotations); here both are as in 1.36. Feature gates are at each release's defaults. Where a gate that is off by default before 1.36 concerns fields "
        "of ResourceSlices alone (device taints, binding conditions, partitionable devices, consumable capacity), nothing differs here: the API "
        "server of that release drops the fields.\n",
    ]
    return "\n".join(lines)


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
            f"- says: {'; '.join(f'`{reason}`' for reason in builtin.reasons) or 'nothing, it refuses no node'}",
            f"- may change its mind after: {_listed(sorted(event.value for event in builtin.filter_requeue_events))}",
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
