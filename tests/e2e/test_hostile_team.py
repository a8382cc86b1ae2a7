"""A team that writes anything into its ConfigMap on a real control plane, beside another team and the operator."""

import itertools
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from tests.controlplane.api import ApiError, Json
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import DEPLOY, Deployed
from tests.e2e.hostile_clients import peak_mib
from tests.e2e.program import Running
from tests.e2e.test_team_policies import BASE, OPERATOR, SETTINGS, TEAM

MEMORY_MIB_MAX = 150
LOG_BYTES_MAX = 200_000
NOTE_CHARACTERS_MAX = 1024
"""Of an event, by the API server."""
HEAD = 'policy ml-{name} version 1\ninclude "base.policy"\n'

LARGE: Mapping[str, Mapping[str, str]] = {
    "enormous": {"a.policy": HEAD.format(name="a") + "# x\n" * 240_000},
    "enormous in one line": {
        "a.policy": HEAD.format(name="a") + f"filter f require {'1 + ' * 240_000}1 > 0\n"
    },
    "thousands of keys": {f"k{number}.policy": HEAD.format(name="a") for number in range(8_000)},
}
REJECTED = (
    HEAD + "filter f require " + "(" * 20_000 + "true" + ")" * 20_000 + "\n",
    HEAD + "filter f require " + "not " * 20_000 + "true\n",
    HEAD + "drop crowded\n",
    HEAD + "replace filter crowded require true\n",
    HEAD + "param most: int = 109\n",
    "policy ml-{name} version 1\n",
    HEAD + 'filter "\x1b[31m\u202e\x00\x07" require x\r\x85\u2028\n',
    HEAD + 'metric m: int {{ query = "up" join = instance every = 1s stale = 9s }}\n',
    HEAD.replace("ml-{name}", "web-site"),
    HEAD.replace("ml-{name}", "main"),
    HEAD.replace("ml-{name}", "default-scheduler"),
)
"""Depth, rules and parameters that are locked, no base, control characters, queries with the operator's credentials, the
names of others."""


class Namespace:
    """A namespace with the ConfigMap of its team's policies, which an administrator writes here."""

    def __init__(self, deployed: Deployed, name: str) -> None:
        self._api, self._path = deployed.api, f"/api/v1/namespaces/{name}/configmaps"
        deployed.control_plane.create_namespace(name)
        self._api.post(self._path, {"metadata": {"name": "policysched-policies"}})

    def put(self, texts: Mapping[str, str]) -> None:
        body = {"metadata": {"name": "policysched-policies"}, "data": dict(texts)}
        self._api.put(f"{self._path}/policysched-policies", body)


def test_whatever_a_team_writes_the_others_edit_and_bind(control_plane: ControlPlane, tmp_path: Path) -> None:
    deployed = Deployed(control_plane, tmp_path)
    control_plane.add_node(ready_node("a"))
    deployed.kubectl("apply", "-f", "-", stdin=(DEPLOY / "team-policies" / "rbac.yaml").read_text())
    deployed.put_policies(base=BASE, main=OPERATOR)
    ml, web = Namespace(deployed, "ml"), Namespace(deployed, "web")
    numbers = itertools.count()

    def edit_and_bind(when: str) -> None:
        """The other team's edit becomes active, and a pod of the operator's policy is bound."""
        before = running.json("/policy")["policies"]
        text = TEAM.format(node="a").replace("ml-batch", "web-site")
        web.put({"site.policy": text + f"filter n{next(numbers)} require node.pods < 100\n"})
        pod = f"pod-{next(numbers)}"
        deployed.create(pod, scheduler="main")
        deployed.bound(pod)
        wait_for(
            lambda: of("web-site", running.json("/policy")["policies"]) != of("web-site", before),
            f"the edit of the other team to be active: {when}",
        )

    def wait_for_events(keys: Collection[str]) -> None:
        def named() -> bool:
            notes = [event["note"] for event in deployed.events("policysched-policies", "PolicyRejected")]
            return all(any(key in note for note in notes) for key in keys)

        wait_for(named, f"events about {', '.join(keys)}")

    broken = {f"t{at}.policy": text.format(name=f"t{at}") for at, text in enumerate(REJECTED)}
    with deployed.running(settings=SETTINGS) as running:
        good = HEAD.format(name="batch")
        ml.put({"batch.policy": good})
        wait_for(lambda: running.state_of("ml-batch") == "active", "the team's policy to be active")
        edit_and_bind("before")
        before_mib, before_bytes = peak_mib(running.process.pid), len(running.log())
        for name, texts in LARGE.items():
            ml.put(texts)
            edit_and_bind(name)
        for part in (list(broken)[:6], list(broken)[6:]):  # a team may have eight texts
            texts = {key: broken[key] for key in part}
            ml.put({"batch.policy": good, "base.policy": "library base version 1\n", **texts})
            edit_and_bind("all that is rejected")
            wait_for_events(part)
        for number in range(50):  # as fast as the API server takes it
            ml.put(
                {"batch.policy": f"{good}# {number}\n" + "filter broken require nonsense\n" * (number % 2)}
            )
        edit_and_bind("constant changes")
        ml.put({"batch.policy": f"{good}# mended\n"})
        wait_for(
            lambda: "# mended" in deployed.last_good().get("ml-batch.policy", ""), "the team to mend its text"
        )
        check_policies(deployed, running)
        assert peak_mib(running.process.pid) - before_mib < MEMORY_MIB_MAX
        assert len(running.log()) - before_bytes < LOG_BYTES_MAX
        assert printable(running.log())
    events = deployed.events("policysched-policies", "PolicyRejected")
    assert all(event["regarding"]["namespace"] == "ml" for event in events)
    assert all(printable(event["note"]) and len(event["note"]) <= NOTE_CHARACTERS_MAX for event in events)


def check_policies(deployed: Deployed, running: Running) -> None:
    """No name is another's, and nothing that was rejected runs."""
    states = {policy["name"]: policy["state"] for policy in running.json("/policy")["policies"]}
    running_names = {name for name, state in states.items() if state in ("active", "last_known_good")}
    assert running_names <= {"main", "web-site", "ml-batch", "ml-a"}, states
    assert states["main"] == states["web-site"] == states["ml-batch"] == "active"
    assert 'node.name == "a"' in deployed.last_good()["web-site.policy"]
    assert not deployed.events("policies", "PolicyRejected"), (
        "nobody's error reaches the operator's ConfigMap"
    )


def of(policy: str, listed: list[Json]) -> list[tuple[str, str]]:
    return [(item["sha256"], item["state"]) for item in listed if item["name"] == policy]


def printable(text: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in text)


def test_the_api_server_refuses_a_config_map_above_its_limit(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """So nothing larger than the texts above can reach the scheduler."""
    deployed = Deployed(control_plane, tmp_path)
    with pytest.raises(ApiError) as refused:
        Namespace(deployed, "ml").put({"batch.policy": "x" * ((1 << 20) + 1)})
    assert refused.value.status == 422
