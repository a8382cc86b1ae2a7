"""Hosts with traffic, an exporter for each, and a Prometheus that scrapes them every second, as a
context manager.

The address of a host is chosen by the tests (`10.64.0.N`). It is the label `instance` of its
series, and the nodes of a test have it too.
"""

import json
import shutil
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.guardian import Guardian
from tests.controlplane.process import Process, free_ports
from tests.controlplane.waiting import wait_for
from tests.prometheus import host
from tests.prometheus.programs import Programs

LIFETIME_S = 3600
READY_WITHIN_S = 300.0


def received(window: str) -> str:
    """The query for the bytes per second that each host receives, over that range."""
    return f"sum by (instance) (rate(node_network_receive_bytes_total{{device='lo'}}[{window}]))"


RATE = received("10s")
LONG_RATE = received("5m")
"""A host keeps a value for five minutes, even if a busy machine delays its scrapes."""
SAMPLED_AT = "max by (instance) (timestamp(node_network_receive_bytes_total{device='lo'}))"


class Monitoring:
    """`hosts` by name. They send nothing until `send`."""

    def __init__(self, programs: Programs, hosts: Sequence[str]) -> None:
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="policysched-prometheus-"))
        self._guardian = Guardian()
        self._guardian.folder(self.folder)
        self._addresses = {name: f"10.64.0.{number}" for number, name in enumerate(hosts, start=1)}
        self._processes: list[Process] = []
        self._started = 0
        ports = free_ports(len(hosts) + 1)
        self._port = ports[0]
        self._exporter_ports = dict(zip(hosts, ports[1:], strict=True))
        self.exporters: dict[str, Process] = {}

    def __enter__(self) -> "Monitoring":
        try:
            for name in self._addresses:
                self.send(name, bytes_per_s=0)
                self._start_host(name)
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._guardian.dismiss()

    # ── interface of the tests ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def address(self, name: str) -> str:
        """The InternalIP of a node that stands for this host."""
        return self._addresses[name]

    def send(self, name: str, *, bytes_per_s: int) -> None:
        """Set the rate from now on."""
        path, fresh = self.folder / f"{name}.rate", self.folder / f"{name}.rate.new"
        fresh.write_text(str(bytes_per_s))
        fresh.replace(path)

    def flows(self, name: str, counters: Mapping[tuple[str, str], float]) -> None:
        """Set the counters that the host's exporter shows: bytes between pods, by sender and
        receiver.
        """
        lines = ["# TYPE pod_flow_bytes_total counter"]
        lines += [
            f'pod_flow_bytes_total{{source="{sender}",destination="{receiver}"}} {count}'
            for (sender, receiver), count in counters.items()
        ]
        path, fresh = self._flows(name) / "flows.prom", self._flows(name) / "flows.new"
        fresh.write_text("\n".join((*lines, "")))
        fresh.replace(path)

    def rates(self) -> dict[str, float]:
        """Bytes per second by host, as Prometheus has them now; hosts without two samples are left
        out.
        """
        by_address = {f"{address}:9100": name for name, address in self._addresses.items()}
        return {
            by_address[series["metric"]["instance"]]: float(series["value"][1]) for series in self.ask(RATE)
        }

    def wait_for_rates(self, busy: str) -> None:
        """Wait until this host is busy and all others are quiet."""

        def look() -> bool:
            rates = self.rates()
            return len(rates) == len(self._addresses) and all(
                rate > 1_000_000 if name == busy else rate < 1_000 for name, rate in rates.items()
            )

        wait_for(look, f"Prometheus to see the traffic of {busy} alone", within_s=READY_WITHIN_S)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """An instant query with a separate client."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=READY_WITHIN_S) as answer:
            series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return series

    def start(self) -> None:
        """Start Prometheus with the data that it stored before."""
        self._started += 1
        config = self.folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config()))
        self.prometheus = self._run(
            f"prometheus{self._started}",
            self._programs.prometheus,
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
        )
        self.prometheus.wait_until(self._ready, within_s=READY_WITHIN_S)

    def stop(self) -> None:
        self.prometheus.stop()

    def pause(self) -> None:
        """Connections stay open, and no request is answered."""
        self.prometheus.pause()

    def resume(self) -> None:
        self.prometheus.resume()

    # ── processes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_host(self, name: str) -> None:
        rate_file = self.folder / f"{name}.rate"
        self._flows(name).mkdir()
        traffic = self._run(
            f"host-{name}",
            *self._programs.unshare,
            *(sys.executable, "-S", "-E", host.__file__, str(rate_file), str(LIFETIME_S)),
        )
        self.exporters[name] = self._run(
            f"exporter-{name}",
            self._programs.node_exporter,
            *("--collector.disable-defaults", "--collector.netdev", "--no-collector.netdev.netlink"),
            *("--collector.textfile", f"--collector.textfile.directory={self._flows(name)}"),
            "--collector.netdev.device-exclude=^$",
            f"--path.procfs=/proc/{traffic.pid}",
            f"--web.listen-address=127.0.0.1:{self._exporter_ports[name]}",
            "--log.level=warn",
        )

    def _flows(self, name: str) -> Path:
        return self.folder / f"{name}.flows"

    def _config(self) -> Any:
        targets = [
            {
                "targets": [f"127.0.0.1:{port}"],
                "labels": {"instance": f"{self._addresses[name]}:9100"},
            }
            for name, port in self._exporter_ports.items()
        ]
        return {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "node", "static_configs": targets}],
        }

    def _run(self, name: str, *argv: str) -> Process:
        process = Process(name, list(argv), self.folder / f"{name}.log", self._guardian)
        self._processes.append(process)
        return process

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:  # it does not listen yet, or answers 503 while it reads its storage
            return False
