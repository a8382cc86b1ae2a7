"""What is covered of kube-scheduler's default profile, and what is not, from the tables that the program goes by."""

from policysched.lang.builtins import BUILTINS, KUBE_DEFAULT_VERSION
from policysched.lang.uncovered import UNCOVERED


def covered() -> str:
    """Two sentences for the README."""
    plugins = list(dict.fromkeys(one.plugin for one in BUILTINS.values()))
    pending = list(dict.fromkeys(one.plugin for one in UNCOVERED if one.happens == "the pod stays pending"))
    return (
        f"Covered, in kube-scheduler {KUBE_DEFAULT_VERSION}'s own arithmetic: {_listed(plugins)}.\n\n"
        f"Not covered: what {_listed(pending)} look at. A pod that uses it stays pending with a message that names it; it is "
        "never bound as if it had not asked. `policysched show` prints the whole list, and so does "
        "[docs/running.md](docs/running.md#what-is-not-covered)."
    )


def not_covered() -> str:
    """The whole list."""
    lines = ["| kube-scheduler's plugin | a pod uses it by | what happens |", "|---|---|---|"]
    lines += [f"| {one.plugin} | {one.uses} | {one.happens} |" for one in UNCOVERED]
    return "\n".join(lines)


def _listed(words: list[str]) -> str:
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else words[0]
