"""Extreme and odd values that the API server stores, and choices between them."""

from collections.abc import Sequence
from typing import Any

from tests.seeded_random import SeededRandom

Json = dict[str, Any]

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
DIGITS = "9" * 5_000
TEXTS = (
    "",
    "a",
    "0",
    "-1",
    "1e999999",
    "nan",
    "-inf",
    DIGITS,
    f"-{DIGITS}",
    f"0.{DIGITS}",
    f"1e{DIGITS}",
    "9223372036854775808",
    "١٢٣",
    "\x00\x1b[2J\u202e\u2028\ud7ff\U0010ffff",
    "[/bold][link=x]",
    "%s%n{}{0.__class__}",
    "aws://[",
    "http://[::1/x",
    "../..",
    '{"a": [1e999, 99999999999999999999999]}',
    "[" * 500,
    "x" * 70_000,
)
"""Of fields without a form: values of annotations, names of disks, images."""
LABELS = (
    "",
    "a",
    "0",
    "-1".strip("-"),
    "007",
    "9" * 63,
    "a.b_c-d",
    "Z" * 63,
    "1e9",
    "0x1f",
    "NaN",
    "9223372036854775807",
)
"""Values of labels."""
KEYS = (
    "a",
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "A_b.c",
    "x" * 63,
    f"{'d' * 60}.example/k",
)
QUANTITIES = (
    "0", "1n", "1u", "1m", "100m", "1", "2", "1k", "1500m", "1e3", "12e-3", "1Ki", "8Gi", "7Ei", "9E",
    "999999999999999999", "9223372036854775807", "1e18", "9223372036854775806", "4611686018427387904",
)  # fmt: skip
WHOLE = ("0", "1", "2", "1k", "9E", "9223372036854775807", "9223372036854775806", "4611686018427387904")
TIMES = (
    "2026-01-01T00:00:00Z",
    "1970-01-01T00:00:00Z",
    "0001-01-01T00:00:01Z",
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "2262-04-11T23:47:17Z",
    "-001-12-31T00:01:00Z",
    "10000-01-01T22:59:59Z",
)
"""Go writes years below 0 and beyond 9999 of times with an offset."""
NAMES = ("a", "p", "0", "a-b.c", "x" * 63, "y" * 253)
NAMESPACES = ("default", "b", "n" * 63)
RESOURCES = (
    "cpu",
    "memory",
    "ephemeral-storage",
    "example.com/gpu",
    "hugepages-2Mi",
    "hugepages-1Gi",
    "pods",
)
NODES = ("a", "b", "gone", "z" * 253)
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
CEL = (
    "true",
    'device.driver == "x"',
    f"{'9' * 5000} > 1",
    f'quantity("{DIGITS}").isGreaterThan(quantity("1"))',
    f'semver("1.0.{DIGITS}").major() > 0',
    f'int("{DIGITS}") > 1',
    'double("1e400") > 1.0',
    "-9223372036854775808 / -1 > 0",
    "9223372036854775807 + 1 > 0",
    "1 / 0 > 0",
    "1 % 0 > 0",
    "[1][9223372036854775807] > 0",
    "url('http://[').getHost() == ''",
    "isURL('aws://[')",
    "duration('9223372036s') + duration('9223372036s') > duration('1s')",
    "timestamp('9999-12-31T23:59:59Z') + duration('1000h') > timestamp('2020-01-01T00:00:00Z')",
    "timestamp('0000-01-01T00:00:00Z').getFullYear() == 0",
    "'x'.matches('(a{1000}){1000}')",
    "'x'.matches('[')",
    "'x'.substring(-1) == ''",
    "'x'.substring(9223372036854775807) == ''",
    "string(b'\\xff\\xfe') == 'x'",
    "'%d'.format([9223372036854775807]) == ''",
    "'%.2147483647f'.format([1.0]) == ''",
    "'%s'.format([]) == ''",
    "ip('::ffff:1.2.3.4%eth0').family() == 4",
    "cidr('1.2.3.4/999').containsIP('1.2.3.4')",
    "device.attributes['x'].y == 1",
    "device.capacity['x'].y.compareTo(quantity('1')) > 0",
    "device.attributes.all(k, v, v == device.attributes)",
    "1u - 2u > 0u",
    "uint(-1) > 0u",
    "int(1e300) > 0",
    "'\\U0010ffff'.charAt(1) == ''",
    "[1, 2].slice(1, 9223372036854775807) == []",
    "'a'.repeat(3) == ''",
    "device",
    "null",
    "[]",
    "{1: 2}[1] == 2",
    "{'a': 1}.b",
    "lists.range(9223372036854775807).size() > 0",
    "math.greatest(1, 2.0) > 1",
    "'a,b'.split(',', -5).size() == 2",
    "'a'.replace('', 'b', -1) == 'bab'",
    "device.attributes['x'].?y.orValue(1) == 1",
)


class OddValues:
    """Choices from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = SeededRandom(seed)
        self.rarity = 2
        """Of optional fields: one in so many."""

    def any(self, values: Sequence[Any]) -> Any:
        return self.random.choice(values)

    def maybe(self, *fields: tuple[str, Any]) -> Json:
        """Some of these fields; a value that can be called is made only if it is used."""
        return {
            name: value() if callable(value) else value
            for name, value in fields
            if self.random.one_in(self.rarity)
        }

    def several(self, make: Any, most: int = 3) -> list[Any]:
        return [make() for _ in range(self.random.randint(0, most))]

    def int32(self, least: int = 0) -> int:
        return int(self.any([value for value in (0, 1, 2, 100, INT32_MAX - 1, INT32_MAX) if value >= least]))

    def int64(self, least: int = 0) -> int:
        return int(self.any([value for value in (0, 1, 2, 2**31, 2**53 + 1, INT64_MAX) if value >= least]))

    def amounts(self, names: Sequence[str] = RESOURCES) -> Json:
        return {
            name: self.any(QUANTITIES if name in ("cpu", "memory", "storage") else WHOLE)
            for name in self.random.some(names, 4)
        }

    def labels(self) -> dict[str, str]:
        return {key: self.any(LABELS) for key in self.random.some((*KEYS, "group", "least", "rank"), 4)}

    def annotations(self) -> dict[str, str]:
        keys = ("load", "group", "ports", "json", "scheduling.k8s.io/group-name")
        return {key: self.any(TEXTS) for key in self.random.some((*KEYS, *keys), 4)}

    def meta(self, name: str, *, namespaced: bool = True, **more: Any) -> Json:
        space = {"namespace": self.any(NAMESPACES)} if namespaced else {}
        return {
            "name": name,
            **space,
            "uid": f"uid-{name}-{space.get('namespace')}",
            "resourceVersion": str(self.int64(1)),
            "creationTimestamp": self.any(TIMES[:2]),
            "labels": self.labels(),
            "annotations": self.annotations(),
            **self.maybe(("generation", self.int64)),
            **more,
        }

    def requirement(self, *, node: bool = False, field: bool = False) -> Json:
        operator = self.any(
            ("In", "NotIn")
            if field
            else ("In", "NotIn", "Exists", "DoesNotExist", *(("Gt", "Lt") if node else ()))
        )
        values = {"Exists": 0, "DoesNotExist": 0, "In": 2, "NotIn": 2, "Gt": 1, "Lt": 1}[operator]
        of = TEXTS if node else LABELS
        return {
            "key": "metadata.name" if field else self.any(KEYS),
            "operator": operator,
            **(
                {"values": [self.any(NODES if field else of) for _ in range(1 if field else values)]}
                if values
                else {}
            ),
        }

    def selector(self) -> Json:
        return self.maybe(
            ("matchLabels", self.labels), ("matchExpressions", lambda: self.several(self.requirement))
        )

    def node_term(self) -> Json:
        return self.maybe(
            ("matchExpressions", lambda: self.several(lambda: self.requirement(node=True))),
            ("matchFields", lambda: [self.requirement(field=True)]),
        )

    def node_selector(self) -> Json:
        return {"nodeSelectorTerms": [self.node_term(), *self.several(self.node_term)]}
