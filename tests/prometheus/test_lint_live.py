"""`policysched lint --live` with a real Prometheus: metrics that never existed, rejected queries,
duplicate series.
"""

from pathlib import Path

import pytest

from tests.cli.builders import Run, run
from tests.controlplane.waiting import wait_for
from tests.prometheus.monitoring import LONG_RATE, SAMPLED_AT, Monitoring

TWICE = "label_replace(up, 'twin', '1', '', '') or label_replace(up, 'twin', '2', '', '')"


@pytest.fixture
def lint(monitoring: Monitoring, tmp_path: Path) -> "Lint":
    wait_for(lambda: len(monitoring.ask(LONG_RATE)) == 2, "two series")
    return Lint(monitoring, tmp_path)


class Lint:
    def __init__(self, monitoring: Monitoring, folder: Path) -> None:
        self._folder = folder
        settings = f"policies: a/b\nsources: {{prom: {{kind: prometheus, url: '{monitoring.url}'}}}}\n"
        (folder / "settings.yaml").write_text(settings)

    def __call__(self, query: str, more: str = "", join: str = "instance") -> Run:
        path = self._folder / "a.policy"
        metric = f'metric rx: bandwidth {{\n  query = "{query}"\n  unit = "B/s"\n  join = {join}\n  every = 15s\n  stale = 90s\n{more}}}\n'
        path.write_text(
            f"policy test version 1\ninclude kube_default\n{metric}filter f require rx < 1Gbps missing pass\n"
        )
        settings = self._folder / "settings.yaml"
        return run("lint", str(path), "--config", str(settings), "--live", "--output-format", "concise")


def test_lint_live_reports_the_result_of_a_metrics_query(lint: Lint) -> None:
    assert lint(LONG_RATE, f'  sampled_at = "{SAMPLED_AT}"\n').out == ""
    assert "PS903" in lint("node_netwrok_receive_bytes_total").out
    assert "the query returns no series" in lint("node_netwrok_receive_bytes_total").out
    assert "none of the 2 series has the label `node`" in lint(LONG_RATE, join="node").out
    assert "PS904" in lint("sum by (instance").out
    assert "PS904" in lint("1 + 1").out
    assert "PS903" in lint(LONG_RATE, '  sampled_at = "timestamp(nothing)"\n').out
    twice = lint(TWICE).out
    assert "PS905" in twice
    assert "has 2 series with `instance` = `10.64.0." in twice
