"""The built-ins of kube-scheduler, one plain module each, under the names that `lang.builtins` declares.

A module that filters has `refuse`, one that scores has `score`. Each docstring gives the formula, and
`docs/builtins.md` is made from it.
"""

from policysched.oracle.builtin import Filter, Score
from policysched.oracle.builtins import (
    image_locality,
    node_affinity,
    node_name,
    node_ports,
    node_resources_balanced_allocation,
    node_resources_fit,
    node_unschedulable,
    taint_toleration,
)

FILTERS: dict[str, Filter] = {
    "node_unschedulable": node_unschedulable.refuse,
    "node_name": node_name.refuse,
    "taint_toleration": taint_toleration.refuse,
    "node_affinity": node_affinity.refuse,
    "node_ports": node_ports.refuse,
    "node_resources_fit": node_resources_fit.refuse,
}
SCORES: dict[str, Score] = {
    "taint_toleration": taint_toleration.score,
    "node_affinity": node_affinity.score,
    "node_resources_fit": node_resources_fit.score,
    "node_resources_balanced_allocation": node_resources_balanced_allocation.score,
    "image_locality": image_locality.score,
}
