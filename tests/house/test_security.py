"""SECURITY.md has a line for each permission of the roles in `deploy/` and no other; the threat model names existing tests; the admission
components cover what the shipped policies trust."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from policysched.lang.diagnostics.catalogue import OPT_IN_CODES
from policysched.lint.linter import lint
from policysched.policy_files.sources import parse_sources
from tests.house.docs import ROOT

Permission = tuple[str, str, str]
"""The verb, the resource, and where: `all`, `NAMESPACE`, `NAMESPACE/NAME`, or `all called NAME`, with the file where it can
be left out."""

ROLES = {
    "What the scheduler may do": {
        "rbac.yaml": "",
        "preemption.yaml": "all",
        "team-policies/rbac.yaml": "policysched-team-policies",
        "metrics-api.yaml": "all",
    },
    "What the authors of a team may do": {"team-policies/rbac.yaml": "policysched-policy-author"},
    "What the extender may do": {"extender/rbac.yaml": "", "extender/binding.yaml": "all"},
}
"""By section, the files and which of their roles: all, or the one of this name; empty: a file that is always applied."""

OTHER_ROLES = {
    "metrics-reader.yaml": "for the user that scrapes: the path /metrics",
    "page-reader.yaml": "for users of the page: its paths",
    "extender/client.yaml": "for callers of the extender: its paths",
    "shadow/rbac.yaml": "for the user of `policysched shadow`: list and watch alone",
    "break-glass/rbac.yaml": "of a kube-scheduler, beside the cluster's own roles",
    "admission/node-metrics/role.yaml": "for agents; docs/threat-model.md",
}

ROW = re.compile(
    r"^\|((?: `[a-z]+`)+) \|((?: `[a-z/]+`)+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE
)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def roles_in(file: str) -> list[Any]:
    manifests = yaml.safe_load_all((ROOT / "deploy" / file).read_text())
    return [role for role in manifests if role["kind"] in ("Role", "ClusterRole")]


def permissions_of(roles: Iterable[Any], file: str = "") -> set[Permission]:
    suffix = f", `{file}" if file else ""
    permissions = set()
    for role in roles:
        namespace = role["metadata"].get("namespace")
        for rule in role.get("rules", []):
            names = rule.get("resourceNames", ())
            places = (
                [f"{namespace}/{name}" for name in names]
                if namespace
                else [f"all called `{name}`{suffix}" for name in names]
            ) or [namespace or f"all{suffix}"]
            permissions |= {
                (verb, resource, place)
                for verb in rule["verbs"]
                for resource in rule["resources"]
                for place in places
            }
    return permissions


def granted(section: str) -> set[Permission]:
    permissions: set[Permission] = set()
    for file, role_name in ROLES[section].items():
        chosen = [role for role in roles_in(file) if role_name in ("", "all", role["metadata"]["name"])]
        assert chosen, f"{file} has no role {role_name}"
        permissions |= permissions_of(chosen, file if role_name else "")
    return permissions


def documented(page: str, section: str) -> list[Permission]:
    (text,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return [
        (verb, resource, place.strip("` "))
        for verbs, resources, place, _why, _abuse in ROW.findall(text)
        for verb in re.findall(r"[a-z]+", verbs)
        for resource in re.findall(r"[a-z/]+", resources)
    ]


@pytest.mark.parametrize("section", ROLES)
def test_each_permission_has_one_line_that_says_why_and_what_it_could_be_abused_for(section: str) -> None:
    page = (ROOT / "SECURITY.md").read_text()
    lines = documented(page, section)

    assert len(lines) == len(set(lines)), "a permission is described twice"
    assert set(lines) == granted(section)
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(ROW.findall(page)), "a row that the test cannot read"


def test_a_missing_and_a_superfluous_line_are_detected() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    section, bind = "What the extender may do", r"^\| `create` \| `pods/binding`.*\n"
    without = re.sub(bind, "", page, flags=re.MULTILINE)
    more = page + "| `get` | `secrets` | all | a reason | an abuse |\n"

    missing = granted(section) - set(documented(without, section))
    assert missing == {("create", "pods/binding", "all, `extender/binding.yaml")}
    assert set(documented(more, section)) - granted(section) == {("get", "secrets", "all")}


def may_read_secrets(roles: Iterable[Any]) -> bool:
    return any(
        {"secrets", "*"} & set(rule.get("resources", ()))
        and {"", "*"} & set(rule.get("apiGroups", ()))
        and {"get", "list", "watch", "*"} & set(rule["verbs"])
        for role in roles
        for rule in role.get("rules", ())
    )


def test_no_role_of_this_program_reads_secrets() -> None:
    files = {file for files in ROLES.values() for file in files} | OTHER_ROLES.keys() - {
        "break-glass/rbac.yaml"
    }

    assert [file for file in sorted(files) if may_read_secrets(roles_in(file))] == []


@pytest.mark.parametrize("resource", ["secrets", "*"])
def test_a_role_that_reads_secrets_is_detected(resource: str) -> None:
    rule = {"apiGroups": [""], "resources": ["pods", resource], "verbs": ["list"]}

    assert may_read_secrets([{"rules": [rule]}])


def test_each_role_is_in_a_section_or_is_not_for_this_program() -> None:
    files = {str(path.relative_to(ROOT / "deploy")) for path in (ROOT / "deploy").rglob("*.yaml")}
    files = {file for file in files if not file.startswith("chart/")}  # copies of the others
    with_roles = {
        file
        for file in files
        if re.search(r"^kind: (Cluster)?Role$", (ROOT / "deploy" / file).read_text(), re.M)
    }

    listed = {file for files in ROLES.values() for file in files}
    assert with_roles == listed | OTHER_ROLES.keys()
    chosen = {role_name for files in ROLES.values() for role_name in files.values()}
    assert {role["metadata"]["name"] for role in roles_in("team-policies/rbac.yaml")} <= chosen


def missing_tests(page: str) -> list[str]:
    return [
        f"{path}::{name}"
        for path, name in TEST.findall(page)
        if not (ROOT / path).is_file()
        or not re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]


THREAT_MODEL = ROOT / "docs" / "threat-model.md"
ATTACKS = sorted((ROOT / "docs" / "attacks").glob("*.md"))


def rows_of(text: str, heading: str) -> list[str]:
    """The rows of the tables below a heading of the second level; of the whole text without a heading."""
    part = text.split(f"\n## {heading}\n")[1].split("\n## ")[0] if heading else text
    headers = ("| what |", "| attack |")
    return [line for line in part.splitlines() if line.startswith("| ") and not line.startswith(headers)]


@pytest.mark.parametrize("page", [THREAT_MODEL, *ATTACKS], ids=lambda page: page.stem)
def test_the_threat_model_and_the_attacks_name_existing_tests(page: Path) -> None:
    assert missing_tests(page.read_text()) == []


def test_a_page_that_names_no_test_is_detected() -> None:
    assert missing_tests("`tests/house/test_security.py::test_nothing`") != []


def test_each_threat_has_a_bound_and_a_test_or_is_accepted() -> None:
    threats = THREAT_MODEL.read_text().split("\n## Known and not fixed\n")[0]
    rows = rows_of(threats, "")

    assert len(rows) > 20
    assert [row for row in rows if not TEST.search(row) and "accepted" not in row] == []


def test_what_is_not_fixed_has_a_severity_and_a_way_out() -> None:
    rows = rows_of(THREAT_MODEL.read_text(), "Known and not fixed")

    severities = [[cell.strip() for cell in row.strip("|").split("|")][2] for row in rows]
    assert severities == sorted(severities, key=["critical", "high", "medium", "low"].index)
    assert [row for row in rows if "" in [cell.strip() for cell in row.strip("|").split("|")]] == []


@pytest.mark.parametrize("page", ATTACKS, ids=lambda page: page.stem)
def test_each_attack_names_the_test_that_shows_its_outcome(page: Path) -> None:
    header = "| attack | outcome | severity | shown by |"
    if header not in page.read_text():
        assert page.stem in ("README", "all-at-once")
        return
    rows = rows_of(page.read_text(), "")

    assert len(rows) > 10
    assert [row for row in rows if not TEST.search(row)] == []


@pytest.mark.parametrize("folder", ["deploy", "deploy/extender"])
def test_the_network_policy_and_the_disruption_budget_are_of_the_deployed_pods(folder: str) -> None:
    names = ("deployment", "networkpolicy", "poddisruptionbudget")
    deployment, network, budget = (
        yaml.safe_load((ROOT / folder / f"{name}.yaml").read_text()) for name in names
    )
    template = deployment["spec"]["template"]
    ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}

    for selector in (network["spec"]["podSelector"], budget["spec"]["selector"]):
        assert selector["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert {port["port"] for rule in network["spec"]["ingress"] for port in rule["ports"]} == ports
    assert budget["spec"]["maxUnavailable"] < deployment["spec"]["replicas"]
    kustomization = yaml.safe_load((ROOT / folder / "kustomization.yaml").read_text())
    assert {f"{name}.yaml" for name in names} <= set(kustomization["resources"])


def trusted_keys() -> set[str]:
    text = (ROOT / "deploy/admission/trusted-metadata/policy.yaml").read_text()
    policy, _binding = yaml.safe_load_all(text)
    (expression,) = (v["expression"] for v in policy["spec"]["variables"] if v["name"] == "trusted")
    kinds: dict[str, list[str]] = yaml.safe_load(expression)
    return {key for keys in kinds.values() for key in keys}


def test_the_admission_component_lists_what_the_shipped_policies_trust() -> None:
    keys = set()
    for path in (ROOT / "policies").glob("*.policy"):
        for finding in lint(parse_sources(path.read_text(), path.name), select=OPT_IN_CODES):
            assert finding.code == "PS601"
            keys.add(re.findall(r"`([^`]+)`, which the creator", finding.message)[0])

    assert keys == trusted_keys()


@pytest.mark.parametrize("name", ["congestion", "safe", "yoda", "bandwidth-first"])
def test_the_admission_component_lists_the_node_annotations_of_the_shipped_policies(name: str) -> None:
    read = set(
        re.findall(r'node\.annotations\["([^"]+)"\]', Path(ROOT / f"policies/{name}.policy").read_text())
    )
    text = (ROOT / "deploy/admission/node-metrics/policy.yaml").read_text()

    assert read
    assert {key for key in read if f"'{key}'" not in text} == set()
