"""The layout of the package: no unreachable module, no import cycle, no public class name twice,
and drawings that match the contracts.
"""

import ast
import re
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from pkgutil import resolve_name
from statistics import median

import grimp
import pytest

from policysched.builtins.registry import BUILTINS
from tests.house.docs import ROOT

GRAPH = grimp.build_graph("policysched", exclude_type_checking_imports=True)
MODULES = sorted(GRAPH.modules)

LOADED_BY_NAME = {
    f"policysched.builtins.{name}.{part}" for name in BUILTINS for part in ("declaration", "kernel")
}
"""Modules that `importlib` or a child process loads: the built-ins by the registry."""

ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")

LINES_MAX = 450
TABLES = {
    "policysched/lang/syntax/tree.py",  # one class for each kind of syntax node
    "policysched/sandbox/apiserver/tables.py",  # the columns that kubectl prints, kind by kind
}


def source_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported_by_name(module: str) -> set[str]:
    """Modules that occur in the source as a dotted string, such as those that a child process runs."""
    return set(
        re.findall(r"[\"'](policysched(?:\.\w+)+)[\"']", source_of(module).read_text(encoding="utf-8"))
    )


def test_every_module_is_reachable_from_a_command() -> None:
    reached: set[str] = set()
    waiting = [module for module in MODULES if module.startswith("policysched.cli")] + [
        "policysched.__main__"
    ]
    while waiting:
        module = waiting.pop()
        if module in reached or module not in GRAPH.modules:
            continue
        reached.add(module)
        waiting += GRAPH.find_modules_directly_imported_by(module)
        waiting += imported_by_name(module)
        waiting.append(module.rpartition(".")[0])
        if module == "policysched.builtins.registry":
            waiting += LOADED_BY_NAME

    assert len(reached) > 400
    assert set(MODULES) - reached == set()


def test_there_are_no_import_cycles() -> None:
    order: dict[str, int] = {}
    done: set[str] = set()
    circles: list[list[str]] = []

    def visit(module: str, path: list[str]) -> None:
        order[module] = len(path)
        for imported in sorted(GRAPH.find_modules_directly_imported_by(module)):
            if imported in done:
                continue
            if imported in order:
                circles.append([*path[order[imported] :], module])
            else:
                visit(imported, [*path, module])
        del order[module]
        done.add(module)

    for module in MODULES:
        if module not in done:
            visit(module, [])

    assert circles == []


def test_no_two_public_classes_share_a_name() -> None:
    modules_of = defaultdict(list)
    for module in MODULES:
        for statement in ast.parse(source_of(module).read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                modules_of[statement.name].append(module)

    assert len(modules_of) > 500
    assert {name: modules for name, modules in modules_of.items() if len(modules) > 1} == {}


def test_no_module_is_too_long_to_read_at_once() -> None:
    lines = {
        source_of(module).relative_to(ROOT).as_posix(): source_of(module)
        .read_text(encoding="utf-8")
        .count("\n")
        for module in MODULES
    }

    assert {path: count for path, count in lines.items() if count > LINES_MAX and path not in TABLES} == {}
    assert all(lines[path] > LINES_MAX for path in TABLES), "a table that is short needs no exception"


GLOSSARY = re.findall(
    r"^\| ([^|]+) \| [^|]+ \| `([\w.]+)`: `([\w.]+)` \|$",
    (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_the_glossary_has_one_row_for_each_term() -> None:
    terms = [term.lower() for term, _, _ in GLOSSARY]

    assert len(terms) > 100
    assert len(terms) == len(set(terms))


@pytest.mark.parametrize(
    ("term", "module", "owner"), GLOSSARY, ids=lambda value: value if " " not in value else None
)
def test_the_owner_of_a_term_exists(term: str, module: str, owner: str) -> None:
    name, *members = owner.split(".")
    value = resolve_name(f"{module}:{name}")

    for member in members:
        fields = {*dir(value), *getattr(value, "__annotations__", {}), *assigned_in(value)}
        assert member in fields, f"{term}: {module}:{owner}"


def assigned_in(owner: type) -> set[str]:
    """Attributes that the methods of a class assign."""
    tree = ast.parse(Path(ROOT / (owner.__module__.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
    (body,) = [item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == owner.__name__]
    return {node.attr for node in ast.walk(body) if isinstance(node, ast.Attribute)}


def test_the_drawing_of_the_layers_matches_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = [contract for contract in contracts if contract["type"] == "layers"]

    assert len(layers) >= 3
    for contract in layers:
        (container,) = contract["containers"]
        drawn = ARCHITECTURE.partition(f"```layers {container}\n")[2].partition("```")[0]
        rows = [row.split("  ")[0].strip() for row in drawn.splitlines() if row.strip()]
        assert rows == contract["layers"], f"the drawing of {container}"


def test_the_reference_implementation_does_not_use_what_it_checks() -> None:
    modules = [
        path for path in (ROOT / "tests" / "reference").rglob("*.py") if not path.name.startswith("test_")
    ]

    imports = re.compile(
        r"^\s*(?:from|import) (policysched\.(?:evaluate|builtins\.\w+\.kernel)\S*)", re.MULTILINE
    )
    used = {path.name: imports.findall(path.read_text(encoding="utf-8")) for path in modules}

    assert len(used) > 20
    assert {name: modules for name, modules in used.items() if modules} == {}


def test_every_module_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`(\w+(?:/\w+)+\.py)`", ARCHITECTURE))

    assert len(named) > 60
    roots = {path: ROOT if path.startswith("tests/") else ROOT / "policysched" for path in named}
    assert {path for path in named if not (roots[path] / path).is_file()} == set()


def test_every_name_beside_a_module_in_the_architecture_is_in_that_module() -> None:
    named = re.findall(r"`(\w+(?:/\w+)+\.py)`(?:: | \()`(\w+)(?:\.(\w+))?`", ARCHITECTURE)

    assert len(named) > 5
    for path, name, member in named:
        defined = members_of((ROOT / "policysched" / path).read_text(encoding="utf-8"))
        assert name in defined, f"{path}: {name}"
        assert not member or member in defined[name], f"{path}: {name}.{member}"


NOT_OURS = {"ConfigMap", "Pods", "Nodes", "Services", "Prometheus"}
"""Capitalized words of the drawing that name Kubernetes objects and servers, not classes."""


def test_the_drawing_from_a_config_map_to_a_binding_names_what_exists() -> None:
    drawing = ARCHITECTURE.partition("## From a ConfigMap to a Binding")[2].split("```")[1]
    defined: dict[str, set[str]] = defaultdict(set)
    for module in MODULES:
        for name, members in members_of(source_of(module).read_text(encoding="utf-8")).items():
            defined[name] |= members

    modules = set(re.findall(r"(?<![\w.])[a-z_]+(?:\.[a-z_]+)+\b", drawing))
    classes = set(re.findall(r"\b([A-Z][a-z]+(?:[A-Z][a-z]+)*)(\.{3})?(?:\.([a-z_]+))?", drawing))

    assert len(modules) > 8
    assert {f"policysched.{module}" for module in modules} - set(MODULES) == set()
    assert len(classes) > 20
    for name, is_prefix, member in classes:
        if name not in NOT_OURS:
            matching = [other for other in defined if other == name or (is_prefix and other.startswith(name))]
            assert matching, f"{name} is not a class"
            assert not member or member in defined[name], f"{name}.{member}"


def members_of(source: str) -> dict[str, set[str]]:
    """The functions, classes and assigned names of a module, with the methods of each class."""
    members: dict[str, set[str]] = {}
    for statement in ast.parse(source).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                members[name] = set()
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                functions = [
                    part
                    for part in ast.walk(statement)
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
                ]
                members[name] = {function.name for function in functions if function is not statement}
    return members


def test_the_median_module_is_short() -> None:
    lines = [source_of(module).read_text(encoding="utf-8").count("\n") for module in MODULES]

    assert 80 <= median(lines) <= 150


CALLED_BY_LIBRARIES = {
    *("list_commands", "get_command", "format_commands"),
    *("do_GET", "do_POST", "log_message"),
    *("pause_reading", "resume_reading"),
}
"""Methods that click, http.server and aiohttp call."""


def test_every_function_class_and_method_is_used() -> None:
    """By another place of the product, or by a test: some parts of the sandbox and of proposals exist for tests."""
    product = "\n".join(source_of(module).read_text(encoding="utf-8") for module in MODULES)
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    grammar = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "grammar").glob("*.lark"))

    defined = set(re.findall(r"^ *(?:async )?(?:def|class) (\w+)", product, re.MULTILINE))
    used = Counter(re.findall(r"\w+", "\n".join((product, tests, grammar))))

    assert len(defined) > 4000
    unused = {name for name in defined if used[name] == 1 and not name.startswith("__")}
    assert unused - CALLED_BY_LIBRARIES == set()
