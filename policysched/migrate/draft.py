"""The draft of an imported policy, and its text.

There are two forms. If the filters are those of kube-scheduler in the default order, perhaps without
some, the text is `include kube_default` and the differences; such a policy gains the built-in rules
of later versions of policysched. If the configuration lists its plugins (`*` disabled, or another
order), the rules are written by name.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Literal

from policysched.builtins.registry import BUILTINS
from policysched.lang.format.formatter import format_source
from policysched.scheduler.policy_permissions import DEFAULT_SCHEDULER
from policysched.text import Source

WEIGHT_MAX = 1_000_000

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_policy_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class DraftScore:
    """A score. `params` is the text in braces, empty if all parameters have their defaults."""

    name: str
    weight: int
    params: str = ""


@dataclass(slots=True)
class PolicyDraft:
    """The parts of a policy.

    `filters` and `scores` are built-in rules in order; `filter_params` is the text in braces of filters;
    `custom_filters`, `custom_scores` and `extenders` are whole statements. `lists_plugins`: the
    configuration lists its plugins instead of changing the defaults.
    """

    name: str
    origin: str
    filters: list[str]
    filter_params: Mapping[str, str]
    scores: list[DraftScore]
    preemption: Literal["any", "never"]
    lists_plugins: bool
    inputs: list[str] = field(default_factory=list)
    custom_filters: list[str] = field(default_factory=list)
    custom_scores: list[str] = field(default_factory=list)
    extenders: list[str] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)  # listed in the comment at the top


def policy_text(draft: PolicyDraft) -> str:
    """The canonical text of the policy."""
    rules = (
        _explicit_statements(draft)
        if draft.lists_plugins or not _has_default_order(draft)
        else _include_statements(draft)
    )
    blocks = [
        "\n".join(_head(draft)),
        "\n".join(draft.inputs),
        "\n".join(rules),
        "\n".join((*draft.custom_filters, *draft.custom_scores)),
        "\n".join(draft.extenders),
        "preemption never" if draft.preemption == "never" else "preemption { victims = any }",
    ]
    written = "\n\n".join(block for block in blocks if block) + "\n"
    formatted = format_source(Source(f"{draft.name}.policy", written))
    assert formatted.text is not None, f"{formatted.internal_error} {formatted.diagnostics}\n{written}"
    return formatted.text


def _head(draft: PolicyDraft) -> Iterator[str]:
    yield f"# {_comment_text(draft.origin)}"
    if draft.not_covered:
        yield "#"
        yield "# Not imported:"
        for item in draft.not_covered:
            yield from wrap(
                _comment_text(item),
                110,
                initial_indent="# - ",
                subsequent_indent="#   ",
                break_on_hyphens=False,
            )
    yield ""
    silenced = list(_ignored_warnings(draft))
    if silenced:
        codes, whys = zip(*silenced, strict=True)
        yield f"# policysched: ignore[{', '.join(codes)}] {'; '.join(whys)}"
    yield f"policy {draft.name} version 1"


def _ignored_warnings(draft: PolicyDraft) -> Iterator[tuple[str, str]]:
    """Codes of policy-wide warnings that the configuration causes on purpose, with the reason."""
    if "node_resources_fit" not in draft.filters:
        yield "PS406", "NodeResourcesFit does not filter in the configuration"
    if "taint_toleration" not in draft.filters:
        yield "PS407", "TaintToleration does not filter in the configuration"
    if draft.name == DEFAULT_SCHEDULER:
        yield "PS412", "do not run kube-scheduler with this policy: both would place the same pods"


def _comment_text(text: str) -> str:
    """Text for a comment: one line, without template expressions such as `{{` and `${`."""
    return re.sub(r"([{$])(?=[{(])", r"\1 ", " ".join(text.split()))


# ── rules ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _has_default_order(draft: PolicyDraft) -> bool:
    """Whether the filters have the order of `include kube_default`; some may be missing."""
    kept = set(draft.filters)
    return draft.filters == [name for name in BUILTINS if name in kept]


def _include_statements(draft: PolicyDraft) -> list[str]:
    lines = ["include kube_default"]
    scores = {score.name: score for score in draft.scores}
    scores_of_dropped: list[str] = []
    for name, declaration in BUILTINS.items():
        filters_here, score = name in draft.filters, scores.get(name)
        if filters_here and draft.filter_params.get(name):
            lines.append(f"replace {_filter(draft, name)}")
        if declaration.filters and not filters_here:
            lines.append(f"drop {name}")
            scores_of_dropped += [_score(score)] if score is not None else []
        elif declaration.scores and score is None and not filters_here:
            lines.append(f"drop {name}")
        elif declaration.scores and score is None:
            lines.append(
                f"reweight {name} 0  # policysched: ignore[PS307] {declaration.plugin} filters and does not score"
            )
        elif score is not None and score.params:
            lines.append(f"replace {_score(score)}")
        elif score is not None and score.weight != declaration.default_weight:
            lines.append(f"reweight {name} {score.weight}")
    return [*lines, *scores_of_dropped]


def _explicit_statements(draft: PolicyDraft) -> list[str]:
    lines = [_filter(draft, name) for name in draft.filters]
    if lines and draft.scores:
        lines.append("")
    return [*lines, *(_score(score) for score in draft.scores)]


def _filter(draft: PolicyDraft, name: str) -> str:
    return f"filter {name} {draft.filter_params.get(name, '')}".rstrip()


def _score(score: DraftScore) -> str:
    return f"score {score.name} weight {score.weight} {score.params}".rstrip()
