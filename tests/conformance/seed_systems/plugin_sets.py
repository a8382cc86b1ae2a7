"""Rules by which kube-scheduler merges plugin sets, answered by `import-config` on one
configuration for each rule.
"""

from collections.abc import Mapping

from policysched.builtins.registry import BUILTINS
from policysched.builtins.unsupported import UNSUPPORTED_FEATURES
from policysched.lang.check import check_text
from policysched.migrate import import_config
from policysched.policy_files.source_set import UnusableFile

_HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: web\n  plugins:\n"
_MINE = "{name: Mine, weight: 3}"
_SETS: Mapping[str, str] = {
    "point absent": "    filter: {disabled: [{name: NodePorts}]}\n",
    "enabled only": f"    score: {{enabled: [{_MINE}]}}\n",
    "disabled *": "    score: {enabled: [{name: ImageLocality}], disabled: [{name: '*'}]}\n",
    "same plugin twice": "    score: {enabled: [{name: ImageLocality}, {name: ImageLocality}], disabled: [{name: '*'}]}\n",
    "two queueSort": "    queueSort: {enabled: [{name: PrioritySort}, {name: Mine}], disabled: [{name: '*'}]}\n",
    "weight 0": "    score: {enabled: [{name: ImageLocality, weight: 0}], disabled: [{name: '*'}]}\n",
    "plugin does not implement point": "    score: {enabled: [{name: NodePorts}]}\n",
    "unknown name": "    score: {enabled: [{name: Nope}]}\n",
}
_COVERED_IN_PART = {feature.plugin for feature in UNSUPPORTED_FEATURES}
"""import-config lists what a default plugin lacks for every profile, whatever the rule of the case says."""
_USUAL = {name: builtin.default_weight for name, builtin in BUILTINS.items() if builtin.default_weight}


def outcome(rule: str) -> str:
    """The answer in the wording of the case. Raises LookupError for an unknown rule."""
    try:
        done = import_config(_HEAD + _SETS[rule], "scheduler.yaml", {})
    except UnusableFile as error:
        queues = "two plugins at queueSort" in str(error)
        return "error: only one queue sort plugin can be enabled" if queues else "error"
    (text,) = done.policies.values()
    program = check_text(text, "web.policy").program
    assert program is not None, text
    weights = {score.name: score.weight for score in program.rules.scores if score.weight}
    left_out = [item.subject for item in done.not_imported if item.where.startswith("profiles")]
    others = [what for what in left_out if not any(plugin in what for plugin in _COVERED_IN_PART)]
    if rule == "weight 0":
        return f"treated as {weights['image_locality']}"
    if weights == {"image_locality": 1}:
        return "only enabled"
    if weights != _USUAL:
        return f"scores {weights}"
    if others == ["plugin Mine (score, weight 3)"]:
        return "defaults then enabled, in order"  # The enabled plugin is not kube-scheduler's; it is listed as not imported.
    return f"left out, and listed: {', '.join(others)}" if others else "defaults"
