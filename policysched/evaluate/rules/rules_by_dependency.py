"""Which rules to reevaluate after which kind of change."""

from collections.abc import Sequence
from dataclasses import dataclass

from policysched.evaluate.kernel import Dependency
from policysched.evaluate.rules.specialized_rules import SpecializedFilter, SpecializedScore


@dataclass(frozen=True, slots=True)
class RulesByDependency:
    """Indexes of the rules to reevaluate after each kind of change; a changed node concerns all of
    them. Of the rules that depend on usage, `usage_only` ones read nodes and their pods and
    nothing else, and such a score is node-local.
    """

    usage_filters: list[int]
    usage_scores: list[int]
    usage_only_filters: list[int]
    usage_only_scores: list[int]
    other_usage_filters: list[int]
    other_usage_scores: list[int]
    cluster_filters: frozenset[int]
    cluster_scores: frozenset[int]
    samples_filters: frozenset[int]
    samples_scores: frozenset[int]
    time_filters: frozenset[int]
    time_scores: frozenset[int]

    @staticmethod
    def of(
        filter_rules: Sequence[SpecializedFilter], score_rules: Sequence[SpecializedScore]
    ) -> "RulesByDependency":
        filters = [rule.kernel.depends_on for rule in filter_rules]
        scores = [rule.depends_on for rule in score_rules]

        def indexes(dependencies: list[Dependency], wanted: Dependency) -> list[int]:
            return [index for index, dependency in enumerate(dependencies) if dependency & wanted]

        usage_filters, usage_scores = indexes(filters, Dependency.USAGE), indexes(scores, Dependency.USAGE)
        usage_key = Dependency.NODE | Dependency.USAGE
        filling_filters = [index for index in usage_filters if filters[index] == usage_key]
        filling_scores = [
            index for index in usage_scores if scores[index] == usage_key and score_rules[index].node_local
        ]
        return RulesByDependency(
            usage_filters=usage_filters,
            usage_scores=usage_scores,
            usage_only_filters=filling_filters,
            usage_only_scores=filling_scores,
            other_usage_filters=[index for index in usage_filters if index not in filling_filters],
            other_usage_scores=[index for index in usage_scores if index not in filling_scores],
            cluster_filters=frozenset(indexes(filters, Dependency.CLUSTER | Dependency.VOLUMES)),
            cluster_scores=frozenset(indexes(scores, Dependency.CLUSTER)),
            samples_filters=frozenset(indexes(filters, Dependency.SAMPLES)),
            samples_scores=frozenset(indexes(scores, Dependency.SAMPLES)),
            time_filters=frozenset(indexes(filters, Dependency.TIME)),
            time_scores=frozenset(indexes(scores, Dependency.TIME)),
        )
