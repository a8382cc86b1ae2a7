"""The module that answers for each system, by the first word of a file's `system`."""

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
    """The answer in the shape of the case's `expected`, without the keys that have no answer.
    Raises KeyError for an unknown system.
    """
    for name, of_system in ANSWERS.items():
        if system.startswith(name):
            answers = of_system(case)
            return _recommended(of_system, case, answers) | answers
    raise KeyError(f"no policy stands in for the system {system!r}")


_ORDERS = ("order", "normalized", "rows", "results")
"""The keys that a list directly under `recommended` can be the value of."""

_WORD = "verdict"
"""The keys that a single word directly under `recommended` can be the value of."""


def _recommended(of_system: Answer, case: Json, known: Json) -> Json:
    """Answers for `recommended`: its keys are answered as if they were the keys of the case, also
    with that word at either end of the key.
    """
    answers: Json = {}
    for key, wanted in case["expected"].items():
        plain = key.removesuffix("_recommended").removeprefix("recommended_")
        if key in known:
            continue
        if plain != key:
            inner = of_system({**case, "expected": {plain: wanted}})
            if plain in inner:
                answers[key] = inner[plain]
        elif key == "recommended" and isinstance(wanted, dict):
            answers[key] = of_system({**case, "expected": wanted})
        elif key == "recommended" and isinstance(wanted, str):
            inner = of_system({**case, "expected": {_WORD: wanted}})
            if _WORD in inner:
                answers[key] = inner[_WORD]
        elif key == "recommended" and isinstance(wanted, list):
            inner = of_system({**case, "expected": dict.fromkeys(_ORDERS, wanted)})
            answers[key] = next((inner[name] for name in _ORDERS if name in inner), None)
    return answers
