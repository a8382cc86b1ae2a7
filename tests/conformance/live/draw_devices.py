"""Devices for random clusters: slices of drivers, device classes, and pods that claim devices, by
their own claims or as extended resources.

Few devices and few claims, so that pods compete for them and share them. The random stream is
separate, so the rest of the cluster does not change. Left out is what ends in an error of
kube-scheduler for all nodes (a failing selector, all devices of an incomplete pool, all devices
against a constraint), what keeps a pod from being tried at all (a missing claim), and the intended
differences of ADR 34 and ADR 39: distinctAttribute for several devices of one request, and a pod
with its own claims that requests an extended resource which some node offers itself. Every
allocated claim is also reserved for another pod; otherwise kube-scheduler would deallocate a random
one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.devices import ask, claim_manifest, claim_spec, class_manifest, gpu, new, slice_manifest
from tests.seeded_random import SeededRandom

Json = dict[str, Any]

GPU = "example.com/gpu"
ZONE = "topology.kubernetes.io/zone"
ADMIN_ACCESS = "resource.kubernetes.io/admin-access"
TEMPLATE_ENTRY = "resource.kubernetes.io/pod-claim-name"
"""The annotation that names the entry of its pod for which a claim was created; the claim
controller writes it, too.
"""
_TRUSTED = "green"
_MADE = "made"


def add_devices(seed: int, case: Json) -> None:
    """For half of the clusters."""
    rng = SeededRandom(f"live devices {seed}")
    if rng.one_in(2):
        _Devices(rng, seed, case).add()


@dataclass(frozen=True, slots=True)
class _Offered:
    """A device that can be allocated to a claim from the start; `term` selects its nodes, None:
    all.
    """

    kind: str
    pool: str
    name: str
    term: Json | None


class _Devices:
    """`orderly`: all pools are complete, so that claims may request all devices."""

    def __init__(self, rng: SeededRandom, seed: int, case: Json) -> None:
        self._rng = rng
        self._seed = seed
        self._case = case
        self._cards, self._parts = f"gpu{seed}.example.com", f"part{seed}.example.com"
        self._shares, self._net = f"share{seed}.example.com", f"net{seed}.example.com"
        self._orderly = rng.one_in(2)
        self._nodes = [node["metadata"]["name"] for node in case["nodes"]]
        self._extended = not rng.one_in(3)
        self._free: list[_Offered] = []

    def add(self) -> None:
        rng, case = self._rng, self._case
        for obj in case["objects"]:
            if obj["kind"] == "Namespace" and obj["metadata"]["name"] == _TRUSTED:
                obj["metadata"]["labels"] = {**obj["metadata"]["labels"], ADMIN_ACCESS: "true"}
        slices = [new(slice_) for slice_ in self._slices()]
        case["objects"] += [new(class_) for class_ in self._classes()] + slices
        claims: dict[str, list[str]] = {}
        for space in sorted({pod["metadata"]["namespace"] for pod in (*case["bound"], *case["pending"])}):
            for number in range(rng.randint(1, 4)):
                name = f"s{self._seed}-{space}-d{number}"
                case["objects"].append(self._claim(name, space, held=rng.one_in(4)))
                claims.setdefault(space, []).append(name)
        for pod in (*case["bound"], *case["pending"]):
            is_bound = "nodeName" in pod["spec"]
            if rng.one_in(6 if is_bound else 2):
                self._use(pod, claims[pod["metadata"]["namespace"]], template=not is_bound)
            elif self._extended and not is_bound:
                self._ask_for_resources(pod)

    # ── slices ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _slices(self) -> list[Json]:
        slices = []
        for node in self._nodes:
            if not self._rng.one_in(4):
                slices += self._pool_of_cards(node)
            if self._rng.one_in(2):
                slices += self._pool_of_parts(node)
            if self._rng.one_in(2):
                slices.append(self._shared_card(node))
        if not self._rng.one_in(3):
            slices.append(self._near())
        if not self._orderly and self._rng.one_in(3):
            slices.append(self._contradictory(self._rng.choice(self._nodes)))
        return slices

    def _pool_of_cards(self, node: str) -> list[Json]:
        """A pool of one or two slices, of which one may be missing, perhaps with a slice of an
        earlier generation.
        """
        rng = self._rng
        cards = [self._card(f"g{place}") for place in range(rng.randint(1, 4))]
        parts = [cards] if rng.one_in(2) else [cards[: len(cards) // 2], cards[len(cards) // 2 :]]
        more: Json = {"driver": self._cards, "generation": 2, "slices": len(parts)}
        if not self._orderly and rng.one_in(6):
            more["slices"] += 1
        names = rng.sample((f"{node}-a", f"{node}-b"), len(parts))
        slices = [
            slice_manifest(node, *part, name=name, **more) for name, part in zip(names, parts, strict=True)
        ]
        if rng.one_in(6):
            old = {**more, "generation": 1, "slices": 1}
            slices.append(slice_manifest(node, self._card("old"), name=f"{node}-old", **old))
        if more["slices"] == len(parts):
            fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
            self._free += [_Offered("card", node, card["name"], {"matchFields": fields}) for card in cards]
        return slices

    def _card(self, name: str) -> Json:
        rng = self._rng
        more: Json = {}
        if rng.one_in(3):
            effect = rng.choice(("NoSchedule", "NoSchedule", "NoExecute", "None"))
            more["taints"] = [{"key": rng.choice(("hot", "old")), "value": "yes", "effect": effect}]
        attributes: Json = {
            "model": rng.choice(("a", "b")),
            "index": rng.randrange(4),
            "driverVersion": {"version": rng.choice(("1.0.0", "1.1.0", "2.0.0-rc.1"))},
        }
        if not rng.one_in(6):
            attributes["rack"] = rng.choice(("x", "y"))
        if rng.one_in(2):
            attributes["fast"] = rng.one_in(2)
        return gpu(name, attributes=attributes, capacity={"memory": rng.choice(("40Gi", "80Gi"))}, **more)

    def _pool_of_parts(self, node: str) -> list[Json]:
        """Partitions of one card that consume the same counters."""
        rng = self._rng
        room = {"memory": {"value": rng.choice(("20Gi", "40Gi"))}, "engines": {"value": "4"}}
        sizes = rng.sample(("40Gi", "20Gi", "20Gi", "10Gi"), rng.randint(2, 4))
        parts = [
            gpu(
                f"p{place}",
                attributes={"size": place},
                capacity={"memory": size},
                consumesCounters=[
                    {
                        "counterSet": "card",
                        "counters": {
                            "memory": {"value": size},
                            "engines": {"value": str(rng.randint(1, 2))},
                        },
                    }
                ],
            )
            for place, size in enumerate(sizes)
        ]
        more: Json = {"driver": self._parts, "pool": f"{node}-parts", "slices": 2}
        counters = [{"name": "card", "counters": room}]
        return [
            slice_manifest(node, *parts, name=f"{node}-parts", **more),
            slice_manifest(node, name=f"{node}-counters", sharedCounters=counters, **more),
        ]

    def _shared_card(self, node: str) -> Json:
        rng = self._rng
        policy = rng.choice(
            (
                None,
                {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi", "max": "6Gi"}},
                {"default": "2Gi", "validValues": ["2Gi", "4Gi"]},
            )
        )
        room: Json = {"value": "8Gi", **({"requestPolicy": policy} if policy else {})}
        cards = [
            gpu(f"s{place}", allowMultipleAllocations=True, capacity={"memory": room})
            for place in range(rng.randint(1, 2))
        ]
        return slice_manifest(node, *cards, name=f"{node}-share", driver=self._shares, pool=f"{node}-share")

    def _near(self) -> Json:
        """Devices that several nodes can use."""
        rng = self._rng
        zone = {"key": ZONE, "operator": "In", "values": rng.some(("z1", "z2", "z3"), 2, least=1)}
        term = {"matchExpressions": [zone]}
        terms = {"nodeSelector": {"nodeSelectorTerms": [term]}}
        cards, reach = [gpu("n0"), gpu("n1"), gpu("n2")], rng.choice((terms, {"allNodes": True}, None))
        if reach is None:
            own = [terms, {"nodeName": rng.choice(self._nodes)}, {"allNodes": True}]
            cards = [gpu(f"n{place}", **attributes) for place, attributes in enumerate(own)]
            reach = {"perDeviceNodeSelection": True}
        name = f"s{self._seed}-near"
        if "perDeviceNodeSelection" not in reach:
            self._free.append(_Offered("net", name, "n1", term if reach is terms else None))
        return slice_manifest(None, *cards, name=name, driver=self._net, pool=name, **reach)

    def _contradictory(self, node: str) -> Json:
        """A device that consumes a counter that its pool does not have."""
        use = {"counterSet": "none", "counters": {"memory": {"value": "1Gi"}}}
        return slice_manifest(
            node,
            gpu("x", consumesCounters=[use]),
            name=f"{node}-wrong",
            driver=f"wrong{self._seed}.example.com",
            pool=f"{node}-wrong",
        )

    # ── device classes ─────────────────────────────────────────────────────────────────────────────────────────────

    def _classes(self) -> list[Json]:
        rng, classes = self._rng, []
        for kind, driver in self._drivers().items():
            more: Json = {}
            if kind == "card" and self._extended:
                more["extendedResourceName"] = GPU
            if rng.one_in(4):
                more["config"] = [{"opaque": {"driver": driver, "parameters": {"a": 1}}}]
            classes.append(class_manifest(self._class(kind), f'device.driver == "{driver}"', **more))
        big = f'device.capacity["{self._cards}"].memory.compareTo(quantity("80Gi")) >= 0'
        classes.append(class_manifest(self._class("big"), f'device.driver == "{self._cards}"', big))
        classes.append(class_manifest(self._class("any")))
        return classes

    def _drivers(self) -> dict[str, str]:
        return {"card": self._cards, "part": self._parts, "share": self._shares, "net": self._net}

    def _class(self, kind: str) -> str:
        return f"s{self._seed}-{kind}"

    # ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _claim(self, name: str, space: str, *, held: bool = False) -> Json:
        if held and self._free:
            return self._held(name, space, self._free.pop(self._rng.randrange(len(self._free))))
        spec = self._spec(trusted=space == _TRUSTED)
        return {**new(claim_manifest(name, namespace=space)), "spec": spec}

    def _held(self, name: str, space: str, device: _Offered) -> Json:
        """A claim to which the device is allocated."""
        plain = ask(of_class=self._class(device.kind))
        request = self._rng.choice(("r0", "r0/s0", "r0/s1"))
        claimed: Json = {"name": "r0", "exactly": plain}
        if request != "r0":
            claimed = {
                "name": "r0",
                "firstAvailable": [{"name": alternative, **plain} for alternative in ("s0", "s1")],
            }
        driver = self._drivers()[device.kind]
        result = {"request": request, "driver": driver, "pool": device.pool, "device": device.name}
        status = {
            "allocation": {
                "devices": {"results": [result]},
                **({} if device.term is None else {"nodeSelector": {"nodeSelectorTerms": [device.term]}}),
                # kube-scheduler cannot reserve a claim without it: it adds the time, which the API
                # server forbids.
                "allocationTimestamp": "2026-01-01T00:00:00Z",
            },
            "reservedFor": [{"resource": "pods", "name": "somebody", "uid": f"uid-of-user-of-{name}"}],
        }
        return new(claim_manifest(name, claimed, namespace=space, status=status))

    def _spec(self, *, trusted: bool) -> Json:
        rng = self._rng
        kind = rng.randrange(8)
        constraints: list[Json] = []
        if kind == 0:
            asks = [{"count": rng.randint(2, 3)}, {}][: rng.randint(1, 2)]
            requests = [
                {"name": f"r{place}", "exactly": self._plain() | ask} for place, ask in enumerate(asks)
            ]
            constraints = [{"matchAttribute": f"{self._cards}/{rng.choice(('rack', 'model'))}"}]
            if rng.one_in(2):
                constraints[0]["requests"] = ["r0"]
        elif kind == 1:
            requests = [{"name": f"r{place}", "exactly": self._plain()} for place in range(2)]
            constraints = [{"distinctAttribute": f"{self._cards}/model", "requests": ["r0", "r1"]}]
        else:
            requests = [self._request(f"r{place}", trusted=trusted) for place in range(rng.choice((1, 1, 2)))]
        configs = []
        if rng.one_in(6):
            opaque = {"opaque": {"driver": "other.example.com", "parameters": {}}}
            configs = [{**opaque, **({"requests": ["r0"]} if rng.one_in(2) else {})}]
        return claim_spec(*requests, constraints=constraints, config=configs)

    def _request(self, name: str, *, trusted: bool) -> Json:
        rng = self._rng
        if rng.one_in(3):
            subs = [{"name": f"s{place}", **self._ask()} for place in range(rng.randint(2, 3))]
            return {"name": name, "firstAvailable": subs}
        exactly = self._ask()
        if trusted and rng.one_in(3):
            exactly["adminAccess"] = True
        return {"name": name, "exactly": exactly}

    def _plain(self) -> Json:
        return ask(of_class=self._class("card"))

    def _ask(self) -> Json:
        rng = self._rng
        more: Json = {}
        kind = rng.choice(("card", "card", "big", "part", "share", "share", "net", "any"))
        if rng.one_in(30):
            return ask(of_class="nowhere")
        if self._orderly and rng.one_in(8):
            more["allocationMode"] = "All"
        elif rng.one_in(3):
            more["count"] = rng.choice((1, 2, 2, 3))
        if kind == "share" and rng.one_in(2):
            amount = rng.choice(("1500Mi", "2Gi", "3Gi", "7Gi"))
            more["capacity"] = {"requests": {"memory": amount}}
        if rng.one_in(4):
            more["tolerations"] = [
                rng.choice(
                    (
                        {"operator": "Exists"},
                        {"key": "hot", "operator": "Exists", "effect": "NoSchedule"},
                        {"key": "old", "operator": "Equal", "value": "yes"},
                    )
                )
            ]
        selectors = [self._selector()] if rng.one_in(2) and kind in ("card", "big", "any") else []
        return ask(*selectors, of_class=self._class(kind), **more)

    def _selector(self) -> str:
        """A CEL expression that does not fail on any device."""
        attributes = f'device.attributes["{self._cards}"]'
        room = f'device.capacity["{self._cards}"]'
        condition = self._rng.choice(
            (
                f"{attributes}.index >= 2",
                f'has({attributes}.rack) && {attributes}.rack == "x"',
                f"{attributes}.?fast.orValue(false)",
                f'{attributes}.model in ["b", "c"]',
                f'{attributes}.model.startsWith("a")',
                f'{attributes}.model.matches("^[b-z]$")',
                f'{room}.memory.compareTo(quantity("80Gi")) >= 0',
                f'{room}.memory.isLessThan(quantity("50Gi"))',
                f'{attributes}.driverVersion.isGreaterThan(semver("1.0.5"))',
                f'cel.bind(d, {attributes}, d.model == "b" || d.index == 0)',
                f"{attributes}.all(name, name != 'fast')",
                "!device.allowMultipleAllocations",
            )
        )
        return f'device.driver == "{self._cards}" && {condition}'

    # ── pods with claims ───────────────────────────────────────────────────────────────────────────────────────────

    def _use(self, pod: Json, claims: Sequence[str], *, template: bool) -> None:
        """Let the pod use shared claims, or one that is created for it."""
        rng, spec = self._rng, pod["spec"]
        meta = pod["metadata"]
        if template and not rng.one_in(3):
            spec["resourceClaims"] = [{"name": _MADE, "resourceClaimTemplateName": "t"}]
            claim = self._claim(f"{meta['name']}-{_MADE}", meta["namespace"])
            claim["metadata"]["annotations"] = {TEMPLATE_ENTRY: _MADE}
            self._case.setdefault("owned", {}).setdefault(meta["name"], []).append(claim)
        else:
            chosen = rng.some(claims, 2, least=1)
            spec["resourceClaims"] = [{"name": claim, "resourceClaimName": claim} for claim in chosen]
        spec["containers"][0]["resources"]["claims"] = [{"name": spec["resourceClaims"][0]["name"]}]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            container["resources"].get("limits", {}).pop(GPU, None)
        if template and not rng.one_in(3):
            _want_little_else(spec)
        if self._extended and rng.one_in(4):
            self._ask_for(pod, f"deviceclass.resource.kubernetes.io/{self._class('card')}")

    def _ask_for_resources(self, pod: Json) -> None:
        if not self._rng.one_in(3):
            _want_little_else(pod["spec"])
        for name in self._rng.some(
            (GPU, f"deviceclass.resource.kubernetes.io/{self._class('part')}"), 2, least=1
        ):
            self._ask_for(pod, name)

    def _ask_for(self, pod: Json, resource: str) -> None:
        containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        for container in self._rng.sample(containers, self._rng.randint(1, len(containers))):
            container["resources"].setdefault("limits", {})[resource] = str(self._rng.randint(1, 2))


def _want_little_else(spec: Json) -> None:
    """Enough room on every node, so that devices decide."""
    for field in ("affinity", "nodeSelector", "topologySpreadConstraints", "volumes", "hostNetwork"):
        spec.pop(field, None)
    spec["tolerations"] = [{"operator": "Exists"}]
    for container in spec["containers"]:
        container.pop("ports", None)
        container["resources"]["requests"] = {"cpu": "100m"}
        container["resources"].pop("limits", None)
