"""Diagnostics about what a policy takes from tenants (`PS6xx`). They are opt-in: that a policy trusts its tenants is
often meant, and whether it is safe depends on the cluster's admission and not on the text."""

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc
from policysched.text import Severity

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
