"""Generates `docs/rules.md` from the catalogue that `policysched rule` prints."""

from policysched.lang.diagnostics.catalogue import DIAGNOSTIC_DOCS
from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc

_INTRODUCTION = """# Diagnostics

All diagnostics of `policysched lint`, by code. Code and name are accepted everywhere: `policysched rule PS210` and
`policysched rule unknown-name` print the same. An *error* keeps a policy from becoming active; a *warning* or a *hint* does
not, and can be silenced on its line with a reason: `# policysched: ignore[PS413] measured on an idle cluster`.

This page is generated from `policysched/lang/diagnostics/`: `python -m tests.house.docs --update`.
"""

_BLOCKS = {
    "0": "About the text as a whole",
    "1": "Syntax",
    "2": "Names, types, units",
    "3": "Logic",
    "4": "Operations",
    "5": "Cost",
    "6": "Trust",
    "7": "Tests",
    "9": "Live",
}


def page() -> str:
    parts = [_INTRODUCTION, *_contents()]
    for digit, title in _BLOCKS.items():
        rules = [rule for rule in DIAGNOSTIC_DOCS.values() if rule.code[2] == digit]
        if rules:
            parts += [f"## {title}\n", *(_section(rule) for rule in rules)]
    return "\n".join(parts).rstrip() + "\n"


def _contents() -> list[str]:
    lines = ["| code | name | severity | |", "|---|---|---|---|"]
    lines += [
        f"| [{rule.code}](#{rule.code.lower()}-{rule.name}) | {rule.name} | {rule.severity.label} | {_cell(rule.summary)} |"
        for rule in DIAGNOSTIC_DOCS.values()
    ]
    return [*lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _section(rule: DiagnosticDoc) -> str:
    summary = rule.summary[0].upper() + rule.summary[1:]
    parts = [
        f"### {rule.code} {rule.name}\n",
        f"*{rule.severity.label}.* {summary}.\n",
        f"{rule.explanation}\n",
    ]
    if rule.bad_example:  # diagnostics of a running scheduler have no examples
        parts += ["Triggers it:\n", _fenced(rule.bad_example), "Fixed:\n", _fenced(rule.good_example)]
    return "\n".join(parts)


def _fenced(text: str) -> str:
    """Not fenced as a policy, because a separate test runs these examples. Long examples (those of
    limits) are cut.
    """
    lines = text.rstrip().replace("\t", "→").splitlines()
    is_yaml = text.startswith("apiVersion")
    long = len(lines) > 30 or max(len(line) for line in lines) > 400
    if long:
        lines = [f"{line[:120]} …" if len(line) > 120 else line for line in lines[:8]] + ["…"]
    return "\n".join(["```" + ("yaml" if is_yaml else "text"), *lines, "```\n"])
