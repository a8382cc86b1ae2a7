"""How readers of `/decisions` slow binds: from the creation of a pod to its bind in the sandbox, alone and beside 50 readers that
ask for all records as fast as they are answered, each from an address of its own."""

import asyncio
import http.client
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import median, quantiles

import aiohttp

from tests.bench.measuring import Row, shown
from tests.e2e.sandbox import PLAIN, Cluster

_READERS, _PODS, _RECORDS = 50, 60, 300
_PATH = "/api/v1/namespaces/default/pods"


def measure() -> Iterable[Row]:
    if not sys.platform.startswith("linux"):  # elsewhere 127.0.0.1 is the only address of loopback
        return
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), nodes=8)
        cluster.start()
        try:
            cluster.put_policies(main=PLAIN)
            with cluster.scheduler() as scheduler:
                scheduler.wait_for_state("test", "active")
                _create_to_bound_s(cluster, "warm", _RECORDS)
                time.sleep(3)  # until their events are written
                alone = _create_to_bound_s(cluster, "alone", _PODS)
                read_count = multiprocessing.Value("i", 0)
                readers = multiprocessing.Process(
                    target=_read, args=(scheduler.port, read_count), daemon=True
                )
                readers.start()
                time.sleep(3)
                began_s, began_count = time.perf_counter(), read_count.value
                beside = _create_to_bound_s(cluster, "beside", _PODS)
                per_s = (read_count.value - began_count) / (time.perf_counter() - began_s)
                readers.kill()
        finally:
            cluster.stop()
    yield Row("create to bound", f"median {shown(median(alone))}, p95 {shown(quantiles(alone, n=20)[-1])}")
    yield Row(
        f"the same beside {_READERS} readers of /decisions",
        f"median {shown(median(beside))}, p95 {shown(quantiles(beside, n=20)[-1])}, {per_s:.0f} pages/s",
    )
    yield Row("ratio of the medians", f"{median(beside) / median(alone):.1f}", "2")


def _create_to_bound_s(cluster: Cluster, prefix: str, count: int) -> list[float]:
    """Of pods that are created one after another."""
    bound_s: dict[str, float] = {}
    changed = threading.Event()
    watch = http.client.HTTPConnection("127.0.0.1", cluster.port)
    watch.request("GET", f"{_PATH}?watch=true")
    stream = watch.getresponse()

    def follow() -> None:
        for line in stream:
            pod = json.loads(line)["object"]
            if pod["spec"].get("nodeName") and pod["metadata"]["name"] not in bound_s:
                bound_s[pod["metadata"]["name"]] = time.perf_counter()
                changed.set()

    threading.Thread(target=follow, daemon=True).start()
    taken_s = []
    client = http.client.HTTPConnection("127.0.0.1", cluster.port)
    for number in range(count):
        name = f"{prefix}-{number}"
        container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": "1m"}}}
        spec = {"schedulerName": "test", "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        began_s = time.perf_counter()
        client.request("POST", _PATH, json.dumps(pod), {"Content-Type": "application/json"})
        client.getresponse().read()
        while name not in bound_s:
            changed.wait(1.0)
            changed.clear()
        taken_s.append(bound_s[name] - began_s)
    return taken_s


def _read(port: int, count: "Synchronized[int]") -> None:
    asyncio.run(_read_with_all(port, count))


async def _read_with_all(port: int, count: "Synchronized[int]") -> None:
    async def read(number: int) -> None:
        connector = aiohttp.TCPConnector(local_addr=(f"127.0.1.{number + 1}", 0))
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                async with session.get(f"http://127.0.0.1:{port}/decisions?limit=1000") as answer:
                    await answer.read()
                    if answer.status == 200:
                        with count.get_lock():
                            count.value += 1

    await asyncio.gather(*(read(number) for number in range(_READERS)))
