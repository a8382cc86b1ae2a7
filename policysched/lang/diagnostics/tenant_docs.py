"""Diagnostics about what a policy reads from tenants (`PS6xx`), and about policies that teams own.

The former are opt-in: a policy may trust its tenants on purpose, and whether that is safe depends on the cluster's
admission, not on the text. The latter need the operator's settings (`team_policies`), so they have no example.
"""

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc
from policysched.text import Severity


def _team_doc(
    code: str, name: str, title: str, text: str, severity: Severity = Severity.ERROR
) -> DiagnosticDoc:
    return DiagnosticDoc(code, name, severity, title, text, bad_example="", good_example="")


TEAM_DOCS: tuple[DiagnosticDoc, ...] = (
    _team_doc(
        "PS910",
        "team-policy-base",
        "a team's policy does not begin with the required base",
        "Policies in the ConfigMaps of teams are built on the library that the settings name "
        "(`team_policies.required_base`), a key of the operator's ConfigMap. Its include is the first "
        "statement after the header, so that nothing precedes the rules and parameters that it locks. "
        "The scheduler does not activate such a text; the previous version stays active.",
    ),
    _team_doc(
        "PS911",
        "team-policy-statement",
        "a statement is not allowed in a team's policy",
        "Metrics and extenders are read with the credentials of the operator, and the request of a resource is read "
        "of pods of all namespaces, so only the operator's libraries declare them; a team's policy uses those "
        "that its base declares. A team has no libraries of its own. The scheduler does not activate such a text; the previous version stays active.",
    ),
    _team_doc(
        "PS912",
        "team-policy-name",
        "a team's policy has the name of another owner",
        "The settings name the owner of a policy name: the entry of `policy_permissions.policies_allowed` with an `owner`. The "
        "operator's ConfigMap has precedence, even if its text is broken or removed. The scheduler "
        "does not activate such a text.",
    ),
    _team_doc(
        "PS913",
        "team-texts-limit",
        "a team has more texts than the settings allow",
        "A team's ConfigMap has at most `team_policies.texts_max` texts with `team_policies.bytes_max` bytes "
        "in all. Those beyond, in the order of their keys, are not checked; the previous versions of their "
        "policies stay active.",
    ),
    _team_doc(
        "PS914",
        "team-policy-read",
        "a team's policy reads what only the operator's texts may read",
        "Where its pods go and what their messages say tells a team what its rules read. A team's text reads pods of other "
        "namespaces only as `podAffinity` does: totals over `placed pods`, `pods in KEY` and `pods on node` may read `other.node`, and "
        "compare `other.labels` and `other.namespace` with `==`, `!=`, `in`, `not in` and `has`. With "
        "`other.namespace == pod.namespace and ...` as condition it counts only its own pods, and may read everything of them. "
        "Annotations and objects of nodes are refused as well. The operator's libraries may read all of this, so a team uses a "
        "`let` or `input` of its base. The scheduler does not activate such a text; the previous version stays active.",
    ),
    _team_doc(
        "PS915",
        "team-chosen-key",
        "teams can choose what a library of the operator reads",
        "A parameter that is not locked is the key of an annotation or object of nodes, of a value of pods of other namespaces, or of an "
        "annotation that the request of a resource reads of all pods. A team sets the parameter in its `NAME.params.yaml`, and so "
        "reads by any key what its own text may not (PS914). Lock the parameter, or list its values. Reported for the libraries of the "
        "operator where the settings (`--config`) have `team_policies`.",
        Severity.WARNING,
    ),
)


TRUST_DOCS: tuple[DiagnosticDoc, ...] = (
    DiagnosticDoc(
        "PS601",
        "trusts-tenant",
        Severity.HINT,
        "an order, a gang, an exemption, a quota or a choice of victims depends on a label or annotation of pods",
        "Whoever creates a pod writes its labels and annotations: a tenant can go first, wait as a gang that never "
        "completes, pass a filter, evade a count or protect its pods. Read `namespace.labels` or `pod.priority` (which a quota can "
        "limit) instead, or limit who may write the key with `deploy/admission/trusted-metadata`. Reported only with "
        "`--select PS6`.",
        'policy example version 1\ninclude kube_default\nqueue by pod.labels["rank"], pod.queued\n',
        'policy example version 1\ninclude kube_default\nqueue by namespace.labels["rank"], pod.queued\n',
        opt_in=True,
    ),
)
