"""A Prometheus for the simulation: series whose values change, nodes left out or told twice, and answers that are none.

Only the wire is pretended: the scheduler's own asker, joins and conversion are at work behind it.
"""

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson

from policysched.samples.book import Book, Unusable
from policysched.samples.polled import PolledSource
from policysched.samples.prometheus import PrometheusAsker
from policysched.samples.sources import Source, Sources
from policysched.sim.apiserver.server import ApiServer
from policysched.sim.local import Local
from policysched.sim.weather import Weather

_VALUES = (0.1, 0.35, 0.5, 0.7, 0.95)
_NO_ANSWERS = (
    b"<html>502</html>",
    b"",
    b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}',
)


@dataclass(slots=True)
class PretendPrometheus:
    """A `Road`. `calm` not empty: it answers well from then on."""

    server: ApiServer
    dice: Random
    weather: Weather
    calm: list[bool]

    async def query(self, query: str) -> bytes:
        await asyncio.sleep(self.dice.uniform(0, self.weather.metric_answer_s))
        if not self.calm and self.dice.random() < self.weather.metric_outage_share:
            return self._no_answer()
        series = [one for node in Local(self.server).list("nodes") for one in self._series(node)]
        series.append({"metric": {"node": "of-another-cluster"}, "value": [0, "0.1"]})
        warnings = ["a store is unavailable"] if self.dice.random() < 0.1 else []
        data = {"resultType": "vector", "result": series}
        return orjson.dumps({"status": "success", "data": data, "warnings": warnings})

    def _no_answer(self) -> bytes:
        drawn = self.dice.randrange(len(_NO_ANSWERS) + 1)
        if drawn == len(_NO_ANSWERS):
            raise Unusable("unreachable", "the connection was refused")
        return _NO_ANSWERS[drawn]

    def _series(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        """Mostly one; none, a twin or no number at times, until it is calm."""
        name, drawn = node["metadata"]["name"], self.dice.random()
        value = str(self.dice.choice(_VALUES))
        one = {"metric": {"node": name, "instance": f"{name}:9100"}, "value": [0, value]}
        if self.calm or drawn < 0.85:
            return [one]
        if drawn < 0.90:
            return [one, {**one, "value": [0, "0.1"]}]
        return [{**one, "value": [0, "NaN"]}] if drawn < 0.93 else []


def sources(road: PretendPrometheus, now_ns: Any, dice: Random) -> Sources:
    book = Book("prometheus")
    asker = PrometheusAsker(road, now_ns=now_ns)
    polled = PolledSource(asker, book, now_ns=now_ns, random=dice)
    return Sources({"prometheus": Source("prometheus", polled, book)})
