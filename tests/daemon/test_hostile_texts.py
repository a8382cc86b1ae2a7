"""What a tenant can write into a team's texts, and into the labels and annotations that policies read: each has a bounded
outcome that shows no control characters."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from policysched.daemon.metric_families import TEAM_SERIES_MAX
from policysched.daemon.policy_checker import TeamBase, check_texts
from policysched.daemon.quota_documents import quota_families
from policysched.lang.check.bundle import CheckedSource
from policysched.lang.types.kinds import INT
from policysched.runtime.telemetry import Telemetry
from policysched.scheduler.policies.rejection_message import errors_of, rejection_message
from policysched.scheduler.policy_permissions import AllowedPolicy, PolicyPermissions
from policysched.scheduler.quotas.quota_status import QuotaEntityStatus, QuotaResourceStatus
from policysched.serve.prometheus_text import MetricFamily
from tests.builders import node, pod
from tests.daemon.test_team_policy_feed import OPERATOR, PLACE, own
from tests.scheduler.rig import Rig

RULE = "filter ready require "
PARAMS = "ml-a.params.yaml"
ALIASES = (
    "a: &b0 [1, 1]\n" + "".join(f"c{i}: &b{i} [*b{i - 1}, *b{i - 1}]\n" for i in range(1, 40)) + "few: *b39\n"
)


def checked(texts: dict[str, str]) -> CheckedSource:
    keyed = {f"ml/{key}" if key.endswith(".policy") else key: text for key, text in texts.items()}
    return check_texts(keyed, "ConfigMap ml/x", base=TeamBase(OPERATOR, PLACE, "base.policy")).sources[
        "ml/a.policy"
    ]


@pytest.mark.parametrize(
    "texts",
    [
        {"a.policy": own("ml-a", RULE + '"\x1b[31m\u202e" == node.nmae')},
        {"a.policy": own("ml-a", RULE + 'node.labels["\x1b]8;;http://evil\x07"] == 3')},
        {"a.policy": "policy \x1b[31mx version 1\n"},
        {"a.policy": own("ml-a", RULE + f"node.free.cpu < {'9' * 5_000}Gi")},
        {"a.policy": own("ml-a", RULE + "node.pods < 1e999999999")},
        {"a.policy": own("ml-a").replace("version 1", f"version {'9' * 50_000}")},
        {"a.policy": own("ml-a", RULE + "(" * 20_000)},
        {"a.policy": own("ml-a", RULE + "not " * 20_000 + "node.ready")},
        {"a.policy": own("ml-a", *["filter x require y"] * 6_000)},
        {"a.policy": own("ml-a", "\x00")},
        {"a.policy": own("ml-a", "# \udcff")},
        {"a.policy": own("ml-a"), PARAMS: "few: " + "9" * 5_000},
        {"a.policy": own("ml-a"), PARAMS: "few: " + "[" * 20_000},
        {"a.policy": own("ml-a"), PARAMS: "{a: " * 3_000},
        {"a.policy": own("ml-a"), PARAMS: ALIASES},
        {"a.policy": own("ml-a"), PARAMS: "few: !!python/object/apply:os.system ['x']"},
        {"a.policy": own("ml-a"), PARAMS: "few: .nan"},
        {"a.policy": own("ml-a"), PARAMS: "few: -5"},
        {"a.policy": own("ml-a"), PARAMS: '"\\e[31m": 5'},
        {"a.policy": own("ml-a"), PARAMS: 'few: "\\ud800"'},
    ],
)  # fmt: skip
def test_a_hostile_text_is_rejected_with_a_short_printable_message(texts: dict[str, str]) -> None:
    source = checked(texts)

    assert source.program is None and errors_of(source)
    message = rejection_message(source)
    assert len(message) < 2_000 and message.isprintable()


READS = """policy test version 1
include kube_default
input number: int = pod.annotations["a"] default 1 invalid reject "no number"
input span: duration = pod.annotations["a"] default 1s invalid reject "no duration"
input amount: bytes = pod.annotations["a"] default 1Gi invalid reject "no amount"
input part: ratio = pod.annotations["a"] default 1.0 invalid reject "no ratio"
filter f require number < 5 and span < 5s and amount < 5Gi and part < 5.0
"""


@pytest.mark.parametrize(
    "value",
    ["9" * 5_000, "1e999999", "nan", "inf", "-inf", "-1", "１２", "\u0661", "1_000", "0x10", " 1", "\x1b[31m", "a" * 200_000,
     "1e308", "-0", "9223372036854775808", "0.1" * 1_000, "\u2028x", "\x00", "[/x]"],
)  # fmt: skip
def test_a_hostile_annotation_is_an_invalid_input(value: str) -> None:
    rig = Rig(READS, node("a"))

    rig.observe(pod("hostile", annotations={"a": value}), pod("plain"))
    rig.settle()

    assert rig.placements() == {"plain": "a"}
    message = rig.pending_message("hostile") or ""
    assert message.startswith("no ") and len(message) < 100


def test_entities_that_tenants_invent_by_a_label_have_no_series() -> None:
    used = QuotaResourceStatus("pods", INT, 5, 2, 0, None)
    entities = [
        QuotaEntityStatus("p", "q", (name,), listed, 5, 0.5, (used,))
        for name, listed in [("team", True), *((f"x{number}", False) for number in range(1_000))]
    ]

    assert [len(family.samples) for family in quota_families(entities)] == [1, 1, 1]


def test_a_team_has_few_series_of_a_metric_however_many_rows_and_rules_it_names() -> None:
    """It can name others with each edit."""
    used = QuotaResourceStatus("pods", INT, 5, 2, 0, None)
    entities = [
        QuotaEntityStatus(policy, "q", (f"x{number}",), True, 5, 0.5, (used,))
        for policy in ("web", "team")
        for number in range(1_000)
    ]
    permissions = PolicyPermissions((AllowedPolicy("team", owner="team"),))

    class OfQuotas(Telemetry):
        def _collect(self, app: Any, now_ns: int) -> Iterator[MetricFamily]:
            yield from quota_families(entities)

    telemetry = OfQuotas()
    app: Any = SimpleNamespace(scheduler=SimpleNamespace(core=SimpleNamespace(permissions=permissions)))
    telemetry.attach(app, lambda: 0)
    lines = [
        line for line in telemetry.registry.render().splitlines() if line.startswith("policysched_quota")
    ]

    assert sum('policy="web"' in line for line in lines) == 3 * 1_000
    assert sum('policy="team"' in line for line in lines) == 3 * TEAM_SERIES_MAX
