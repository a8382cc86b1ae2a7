"""Diagnostics about what reaches a policy from outside of its text: values for its parameters (`PS26x`)."""

from policysched.lang.diagnostics.diagnostic_doc import EXAMPLE_HEADER, DiagnosticDoc
from policysched.text import Severity


def _config_map_example(values: str) -> str:
    return f"""apiVersion: v1
kind: ConfigMap
metadata: {{name: policies}}
data:
  example.policy: |
    policy example version 1
    include kube_default
    param crowd: int = 100 range 1..110
    filter crowded require node.pods < crowd
  example.params.yaml: |
    {values}
"""


PARAMETER_DOCS: tuple[DiagnosticDoc, ...] = (
    DiagnosticDoc(
        "PS260",
        "parameter-value",
        Severity.ERROR,
        "a parameter's value is not of its type, or outside its limits",
        "A `param` says of which type it is and from where to where it goes, and what is set in the ConfigMap, the settings "
        "or with `--param` has to keep to that. Otherwise the policy is refused as if its text were wrong: what ran "
        "before runs on. The finding stands where the value stands.",
        f"{EXAMPLE_HEADER}param crowd: int = 200 range 1..110\nfilter crowded require node.pods < crowd\n",
        f"{EXAMPLE_HEADER}param crowd: int = 100 range 1..110\nfilter crowded require node.pods < crowd\n",
    ),
    DiagnosticDoc(
        "PS261",
        "parameter-not-declared",
        Severity.ERROR,
        "a value is set for a parameter that the policy has not got",
        "A misspelt name must not be ignored: the operator would believe in a value that nothing reads. A parameter that a "
        "new text of the policy no longer has is taken out of the ConfigMap's key or the settings in the same edit, or before.",
        _config_map_example("crowds: 90"),
        _config_map_example("crowd: 90"),
    ),
    DiagnosticDoc(
        "PS262",
        "parameters-unreadable",
        Severity.ERROR,
        "the values for a policy's parameters cannot be read",
        "The key `NAME.params.yaml` beside the policies is a YAML map from names of parameters to their values: texts, "
        "numbers, `true` or `false`, or lists of these. While it cannot be read the policy NAME is refused, and what ran "
        "before runs on.",
        _config_map_example("crowd: {least: 1, most: 90}"),
        _config_map_example("crowd: 90"),
    ),
)
