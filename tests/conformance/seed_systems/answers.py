"""Which module answers for which system: a file's `system` begins with the word here."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.conformance.seed_systems import (
    annotators,
    article,
    congestion,
    kube_rl,
    network_traffic,
    nthu_lab,
    pigeon,
    riya,
    safe,
    stupid,
    yoda,
)

Json = dict[str, Any]
Answer = Callable[[Json], Json]

ANSWERS: Mapping[str, Answer] = {
    "riya-scheduler": riya.answer,
    "customScheduler NetworkTraffic": network_traffic.answer,
    "kube-safe-scheduler agents congestion and foo": congestion.answer,
    "easy-learn-kubescheduler StupidScheduler": stupid.answer,
    "kube-safe-scheduler agent safe": safe.answer,
    "kube-safe-scheduler node annotators": annotators.answer,
    "Four ways to extend the scheduler": article.answer,
    "Yoda-Scheduler": yoda.answer,
    "kube-safe-scheduler agent pigeon": pigeon.answer,
    "kube-safe-scheduler kubeRL": kube_rl.answer,
    "NTHU-Scheduler-Plugin lab": nthu_lab.answer,
}


def answer(system: str, case: Json) -> Json:
    """In the shape of the case's `expected`; what nobody answers is left out. KeyError: nobody knows the system."""
    for name, found in ANSWERS.items():
        if system.startswith(name):
            return found(case)
    raise KeyError(f"no policy stands in for the system {system!r}")
