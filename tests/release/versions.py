"""Whether the places that name a version agree."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def version_problems(version: str, changelog: str, tag: str | None) -> list[str]:
    """What speaks against publishing `version`. Without a tag, the newest section may be `Unreleased`."""
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    section = newest.group(1) if newest is not None else "none"
    problems = []
    if tag is not None and tag != f"v{version}":
        problems.append(f"the tag is {tag}, the package has version {version}")
    if section != version and (tag is not None or section != "Unreleased"):
        problems.append(f"the newest section of CHANGELOG.md is {section}, not {version}")
    return problems


def release_notes(changelog: str, tag: str) -> str | None:
    """The section of the version that `tag` names, without its heading. None: there is none."""
    version = tag.removeprefix("v")
    section = re.search(
        rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    return None if section is None else section.group(1).strip() + "\n"


def lock_problems(project: str, lock: str) -> list[str]:
    """What `requirements.lock` lacks of the dependencies in `pyproject.toml`, with those of all extras that run."""
    pinned = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock, re.MULTILINE)
    }
    problems = []
    described = tomllib.loads(project)["project"]
    extras = described["optional-dependencies"]
    for text in (*described["dependencies"], *extras["offline"], *extras["run"], *extras["otlp"]):
        required = Requirement(text)
        if required.name == described["name"]:  # one extra includes another
            continue
        version = pinned.get(canonicalize_name(required.name))
        if version is None:
            problems.append(f"requirements.lock lacks {required.name}; run `make lock`")
        elif version not in required.specifier:
            problems.append(f"requirements.lock has {required.name} {version}, not {required.specifier}")
    return problems
