"""Generates what the program supports of kube-scheduler's default profile and of the language."""

from collections.abc import Mapping

from policysched.builtins.registry import BUILTINS, KUBE_DEFAULT_VERSION
from policysched.builtins.unsupported import UNSUPPORTED_FEATURES
from policysched.lang.check import check_text
from policysched.text import Severity

_METRIC = """\
metric m: ratio {{ query = "q", unit = "1", join = node, every = 15s, stale = 90s, {} }}
score s weight 1 lower m normalize range(0, 1) missing worst
"""

MAY_BE_LEFT_OUT: Mapping[str, str] = {
    "`preemption`": "preemption { victims = own }",
    "`assume` of a metric": _METRIC.format("assume = 10%"),
    "`sampled_at` of a metric": _METRIC.format('sampled_at = "q"'),
}
"""Parts of the language that a version may not support, each with a statement that uses it."""


def covered() -> str:
    """Two sentences above the whole list."""
    plugins = list(dict.fromkeys(builtin.plugin for builtin in BUILTINS.values()))
    lacking = list(dict.fromkeys(feature.plugin for feature in UNSUPPORTED_FEATURES))
    plugins += [plugin for plugin in lacking if plugin not in plugins]
    return (
        f"Covered, in kube-scheduler {KUBE_DEFAULT_VERSION}'s own arithmetic: {_listed(plugins)}.\n\n"
        f"Not covered: parts of {_listed(lacking)}. A pod that uses such a part is never bound as if it had not requested it: "
        "it stays pending with a message that names the part, or as the table says."
    )


def not_covered() -> str:
    """The whole list."""
    lines = ["| kube-scheduler's plugin | a pod uses it by | what happens |", "|---|---|---|"]
    lines += [
        f"| {feature.plugin} | {feature.usage} | {feature.effect} |" for feature in UNSUPPORTED_FEATURES
    ]
    return "\n".join(lines)


def _listed(words: list[str]) -> str:
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else words[0]


def not_carried_out() -> str:
    """Parts of the language that are documented and that the checker rejects."""
    refused = [part for part, text in MAY_BE_LEFT_OUT.items() if _errors(text)]
    lines = [f"- Refused: {_listed(refused)}."] if refused else []
    return "\n".join(lines) or "- Everything above is implemented."


def _errors(statement: str) -> set[str]:
    checked = check_text(f"policy example version 1\ninclude kube_default\n{statement}\n")
    return {diagnostic.code for diagnostic in checked.diagnostics if diagnostic.severity >= Severity.ERROR}
