"""What to write for words of other languages: help lines for names that the language does not have."""

_TEXT_FUNCTION = (
    'there are no regular expressions; `starts_with(node.name, "gpu-")` tests the beginning of a text'
)
_NUMBER = 'a text becomes a number by a declaration: `input NAME: int = pod.labels["KEY"] default 0 invalid default`'
_CHANCE = "there is no chance in a policy; `bucket(pod.name, 100) < 10` selects a stable tenth of the pods"

FUNCTION_HABITS = {
    "count": "`count` takes pods or a list of records: `count(pods on node where ...)`; to ask for one entry of "
    'another list write `"dedicated" in node.taints`',
    **dict.fromkeys(("random", "rand", "hash"), _CHANCE),
    **dict.fromkeys(("int", "float", "number", "to_number", "parse_int"), _NUMBER),
    **dict.fromkeys(
        ("matches", "match", "regex", "contains", "startswith", "startsWith", "like"), _TEXT_FUNCTION
    ),
}
"""By the name of a function."""

ATTRIBUTE_HABITS = {
    "pod.age": "write `pod.waited` for the time in the queue, or `now - pod.created` for the age",
    **{f"{owner}.age": f"write `now - {owner}.created`" for owner in ("node", "victim")},
}
"""By the whole attribute."""


def owner_habit(owner: str) -> str:
    """A help line for an unknown owner; empty for most."""
    if owner == "now":
        return 'for hours and days write `window("Mon-Fri 08:00-24:00", "Europe/Zurich")`'
    return ""
