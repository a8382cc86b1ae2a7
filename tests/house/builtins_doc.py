"""`docs/builtins.md` from the declarations and the plain modules, so that it cannot fall behind them.

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
    return "\n".join([_INTRODUCTION, *(_section(one) for one in BUILTINS.values()), _releases()])


def _releases() -> str:
    """What `include kube_default "1.35"` brings instead."""
    lines = [
        "## Older releases\n",
        f"`include kube_default` is that of {KUBE_DEFAULT_VERSION}. With the number of an older release it adds what that one did. Filters and their "
        "reasons, scores and weights are otherwise the same in these releases.\n",
        "| `include kube_default` | brings |",
        "|---|---|",
    ]
    for version, release in KUBE_SCHEDULER_RELEASES.items():
        said = [f"no `{name}`" for name in sorted(release.missing_builtins)]
        said += [f"no score of `{name}`" for name in sorted(release.builtins_without_score)]
        for name, words in release.score_parameter_values.items():
            said.append(f"`{name} {{ {', '.join(f'{one} = {word}' for one, word in words.items())} }}`")
        lines.append(f'| `"{version}"` | {", ".join(said) or "everything above"} |')
    lines += [
        "",
        "Not told apart: how releases before 1.36 read requests of a pod whose pod-level resources are being resized, and which in-tree volume "
        "plugins they took for migrated to CSI drivers (`CSINode` annotations); here both are as in 1.36. Feature gates are at each release's defaults.\n",
    ]
    return "\n".join(lines)


def _section(one: BuiltinDeclaration) -> str:
    parts = [f"## {one.name}\n", f"kube-scheduler's `{one.plugin}`: {one.summary}.\n", "```"]
    if one.filters:
        parts.append(f"filter {one.name}{_parameters(one.filter_parameters)}")
    if one.scores:
        parts.append(f"score {one.name} weight {one.default_weight}{_parameters(one.parameters)}")
    parts += ["```\n", _meaning(one.name), ""]
    both = one.filters and one.scores
    parts += [_parameter(each, "filter" if both else "") for each in one.filter_parameters]
    parts += [_parameter(each, "score" if both else "") for each in one.parameters]
    if one.filter_parameters or one.parameters:
        parts.append("")
    parts += [f"- reads of the pod: {_listed(one.pod_reads)}; of the node: {_listed(one.node_reads)}"]
    if one.filters:
        parts += [
            f"- says: {'; '.join(f'`{reason}`' for reason in one.reasons) or 'nothing, it refuses no node'}",
            f"- may change its mind after: {_listed(sorted(event.value for event in one.filter_requeue_events))}",
        ]
    parts += [f"- source: {one.source}", ""]
    return "\n".join(parts)


def _meaning(name: str) -> str:
    documented = inspect.getdoc(import_module(f"tests.reference.builtins.{name}"))
    assert documented, f"oracle.builtins.{name} says nothing of what it means"
    return documented


def _parameters(parameters: Sequence[BuiltinParameter]) -> str:
    if not parameters:
        return ""
    return f" {{ {', '.join(f'{one.name} = {_value(one.default)}' for one in parameters)} }}"


def _parameter(one: BuiltinParameter, of: str) -> str:
    match one.kind:
        case "choice":
            allowed = f"one of {_listed(one.choices)}"
        case "int":
            allowed = f"{one.low} to {one.high}"
        case "weights":
            allowed = f"resources and their weights, {one.low} to {one.high}"
        case "shape":
            allowed = f"percent to score, {one.low} to {one.high}"
        case "names":
            allowed = "a list of names"
        case "constraints":
            allowed = f"{_listed(one.choices)}, or topology keys and their maxSkew, {one.low} to {one.high}"
    return f"- `{one.name}`{f' of the {of}' if of else ''} ({allowed}): {one.doc}; `{_value(one.default)}` unless said otherwise"


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
