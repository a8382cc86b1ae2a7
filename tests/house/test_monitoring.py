"""The alerts and the Grafana dashboard use metrics that exist, in queries that Prometheus understands, and the alerts fire."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.house.docs import ROOT
from tests.house.exported_metrics import exported
from tests.missing_programs import leave_out

ALERTS = ROOT / "deploy/alerts/policysched.rules.yaml"
DASHBOARD = ROOT / "deploy/grafana/policysched.json"
NAME = re.compile(r"\b(?:policysched|scheduler)_[a-z_]+\b")
LABELS = re.compile(r"\{[^{}]*\}|\b(?:by|on) ?\([^)]*\)")
SERIES_OF_HISTOGRAMS = re.compile(r"_(?:bucket|sum|count)$")


def alerts() -> dict[str, str]:
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def queries() -> dict[str, str]:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "5m")
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }


def unknown_names(expr: str) -> set[str]:
    known = {metric.name for metric in exported()}
    names = set(NAME.findall(LABELS.sub("", expr)))
    return {name for name in names if name not in known and SERIES_OF_HISTOGRAMS.sub("", name) not in known}


@pytest.mark.parametrize("source", [alerts, queries], ids=["alerts", "dashboard"])
def test_every_metric_of_a_query_is_exported(source: Any) -> None:
    text = source()

    assert len(text) > 9
    assert {title: unknown for title, expr in text.items() if (unknown := unknown_names(expr))} == {}


def test_a_metric_that_is_not_exported_is_detected() -> None:
    assert unknown_names("rate(policysched_no_such_total[5m])") == {"policysched_no_such_total"}


@pytest.fixture(scope="module")
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        leave_out("prometheus", "promtool is not on the PATH (apt-get install prometheus)")
    return program


def test_prometheus_understands_every_query(promtool: str, tmp_path: Path) -> None:
    rules = [{"record": f"q:{number}", "expr": expr} for number, expr in enumerate(queries().values())]
    own = tmp_path / "dashboard.yaml"
    own.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    for file in (own, ALERTS):
        checked = subprocess.run(
            (promtool, "check", "rules", file), capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


CLOCK = {"series": 'policysched_time_seconds{instance="a"}', "values": "0+60x240"}
FIRING = {
    "PolicyschedPodsPendingLong": (
        'policysched_oldest_pending_timestamp_seconds{instance="a", kind="pod"}',
        "0x240",
    ),
    "PolicyschedGangStuck": (
        'policysched_oldest_pending_timestamp_seconds{instance="a", kind="gang"}',
        "0x240",
    ),
    "PolicyschedSamplesStale": (
        'policysched_sample_last_good_poll_timestamp_seconds{instance="a", policy="p", metric="m"}',
        "0x240",
    ),
    "PolicyschedPolicyRejected": (
        'policysched_policy_last_reload_successful{instance="a", policy="p"}',
        "0x240",
    ),
    "PolicyschedPolicySuspended": (
        'policysched_policy_suspended{instance="a", policy="p"}',
        "1x240",
    ),
    "PolicyschedPolicyEditRejected": (
        'policysched_policy_reload_total{instance="a", result="type"}',
        "0x60 1x10 2x180",
    ),
}
"""The series that makes each alert fire within 75 minutes; of one sample a minute."""
QUIET = {
    "PolicyschedPodsPendingLong": "0+60x240",
    "PolicyschedGangStuck": "0+60x240",
    "PolicyschedSamplesStale": "0+60x240",
    "PolicyschedPolicyRejected": "1x240",
    "PolicyschedPolicySuspended": "0x240",
    "PolicyschedPolicyEditRejected": "0x240",
}
"""The same series where nothing is wrong: a queue that moves, polls that arrive."""


@pytest.mark.parametrize("fires", [True, False], ids=["fires", "quiet"])
@pytest.mark.parametrize("alert", FIRING)
def test_an_alert_fires_when_it_should(promtool: str, tmp_path: Path, alert: str, fires: bool) -> None:
    series, values = FIRING[alert]
    query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [CLOCK, {"series": series, "values": values if fires else QUIET[alert]}],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": "75m",
                        "exp_samples": [{"labels": "{}", "value": int(fires)}],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test))

    tested = subprocess.run((promtool, "test", "rules", file), capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_dashboard_is_provisioned_by_a_config_map_and_chooses_its_source() -> None:
    kustomization = yaml.safe_load((ROOT / "deploy/grafana/kustomization.yaml").read_text(encoding="utf-8"))
    (generator,) = kustomization["configMapGenerator"]
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))

    assert generator["files"] == [DASHBOARD.name]
    assert generator["options"]["labels"] == {"grafana_dashboard": "1"}
    assert [variable["type"] for variable in dashboard["templating"]["list"]] == ["datasource"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
