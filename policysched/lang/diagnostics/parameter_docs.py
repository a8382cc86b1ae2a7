"""Diagnostics about parameter values that are set outside the policy and about levels (`PS26x`)."""

from policysched.lang.diagnostics.diagnostic_doc import EXAMPLE_HEADER, DiagnosticDoc, diagnostic_doc
from policysched.text import Severity


def _config_map_example(values: str, declaration: str = "param") -> str:
    return f"""apiVersion: v1
kind: ConfigMap
metadata: {{name: policies}}
data:
  example.policy: |
    policy example version 1
    include kube_default
    {declaration} crowd: int = 100 range 1..110
    filter crowded require node.pods < crowd
  example.params.yaml: |
    {values}
"""


PARAMETER_DOCS: tuple[DiagnosticDoc, ...] = (
    DiagnosticDoc(
        "PS260",
        "parameter-value",
        Severity.ERROR,
        "a parameter value has the wrong type or is outside its limits",
        "A `param` declares a type and limits. Values from the ConfigMap, the settings or "
        "`--param` must satisfy both; otherwise the policy is rejected and its previous version "
        "stays active. The diagnostic points at the value.",
        f"{EXAMPLE_HEADER}param crowd: int = 200 range 1..110\nfilter crowded require node.pods < crowd\n",
        f"{EXAMPLE_HEADER}param crowd: int = 100 range 1..110\nfilter crowded require node.pods < crowd\n",
    ),
    DiagnosticDoc(
        "PS261",
        "parameter-not-declared",
        Severity.ERROR,
        "a value is set for an undeclared parameter",
        "A misspelled name is an error, because the value would otherwise be ignored silently. "
        "When a parameter is removed from a policy, remove its value from the ConfigMap or the "
        "settings in the same edit or before.",
        _config_map_example("crowds: 90"),
        _config_map_example("crowd: 90"),
    ),
    DiagnosticDoc(
        "PS262",
        "parameters-unreadable",
        Severity.ERROR,
        "the parameter values of a policy cannot be read",
        "The key `NAME.params.yaml` next to the policies is a YAML map from parameter names to "
        "values: strings, numbers, `true` or `false`, or lists of these. While it cannot be "
        "read, the policy NAME is rejected and its previous version stays active.",
        _config_map_example("crowd: {least: 1, most: 90}"),
        _config_map_example("crowd: 90"),
    ),
    DiagnosticDoc(
        "PS263",
        "locked-parameter",
        Severity.ERROR,
        "a locked parameter is set beside the policies",
        "A `locked param` has its default, or the value in the operator's settings (`params`) or of "
        "`--param`. A key `NAME.params.yaml` has the same authors as the policy, so it cannot set one.",
        _config_map_example("crowd: 90", declaration="locked param"),
        _config_map_example("crowd: 90"),
    ),
    diagnostic_doc(
        "PS267",
        "canary-value",
        "the share or the guard of a canary is invalid",
        "A canary has a share of the owners, more than 0% and at most 100%, and a guard: the measure `pending` (the share of the "
        "canary's pods that were tried and have no node), a limit above 0%, and how long it may be exceeded.",
        bad="canary packed 10% by pod.owner.name guard failed < 2% for 1m else rollback { reweight image_locality 2 }",
        good="canary packed 10% by pod.owner.name guard pending < 2% for 1m else rollback { reweight image_locality 2 }",
    ),
    diagnostic_doc(
        "PS266",
        "required-level-after-preferred",
        "a required topology level follows a preferred one",
        "Levels are listed from the widest to the narrowest. Members that share a rack share its zone, so a wider level "
        "cannot be preferred where a narrower one is required.",
        bad='gang by pod.owner.name { min = 2  timeout = 5m  topology = ["zone" preferred, "rack" required] }',
        good='gang by pod.owner.name { min = 2  timeout = 5m  topology = ["zone" required, "rack" preferred] }',
    ),
)
