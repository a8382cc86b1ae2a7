"""The table of metrics, from what an app at work exports."""

from tests.house.exporting import exported

KUBE_SCHEDULERS = "scheduler_"


def table() -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for one in sorted(exported(), key=lambda one: (not one.name.startswith(KUBE_SCHEDULERS), one.name)):
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.type} | {labels} | {one.help} |")
    return "\n".join(lines)
