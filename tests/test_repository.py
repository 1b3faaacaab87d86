"""Files of the repository that repeat each other agree: the locks, pyproject.toml, and the version."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tdumpra

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pins(name: str) -> dict[str, set[str]]:
    """The versions of each package of a lock; a line that is not a plain pin is an error."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        plain = re.fullmatch(r"([a-z0-9-]+)==(\S+)( ; .+)?", line)
        assert plain, line  # no address, no option
        found.setdefault(plain[1], set()).add(plain[2])
    return found


def named(requirements: list[str | dict[str, str]]) -> dict[str, Requirement]:
    parsed = [Requirement(entry) for entry in requirements if isinstance(entry, str)]
    return {canonicalize_name(requirement.name): requirement for requirement in parsed}


def unmet(requirements: dict[str, Requirement], lock: dict[str, set[str]]) -> list[str]:
    return [
        name
        for name, requirement in requirements.items()
        if not lock.get(name) or not all(requirement.specifier.contains(version) for version in lock[name])
    ]


def test_the_lock_for_running_holds_the_package_and_its_report():
    extras = PROJECT["project"]["optional-dependencies"]
    assert not unmet(named(PROJECT["project"]["dependencies"] + extras["report"]), pins("requirements.lock"))


def test_the_lock_for_running_holds_no_tool():
    groups = PROJECT["dependency-groups"]
    tools = named([*groups["test"], *groups["dev"], *groups["docs"]])
    assert tools.keys() & pins("requirements.lock").keys() == set()


def test_the_lock_for_developing_holds_the_groups():
    groups = PROJECT["dependency-groups"]
    tools = named([*groups["test"], *groups["dev"], *groups["docs"]])
    assert not unmet(tools, pins("requirements-dev.lock"))


def test_the_lock_of_services_holds_what_is_heavy():
    extras = PROJECT["project"]["optional-dependencies"]
    services = PROJECT["dependency-groups"]["services"]
    heavy = named(extras["openvino"] + extras["mlflow"] + extras["ray"] + services)
    assert not unmet(heavy, pins("requirements-services.lock"))
    assert not named([*extras["mlflow"], "ray"]).keys() & pins("requirements-dev.lock").keys()


def test_the_locks_agree():
    developing, services = pins("requirements-dev.lock"), pins("requirements-services.lock")
    assert {name: developing.get(name) for name in pins("requirements.lock")} == pins("requirements.lock")
    assert {name: developing[name] for name in services if name in developing} == {
        name: versions for name, versions in services.items() if name in developing
    }


def test_every_requirement_has_a_lower_bound():
    bounds = [requirement.specifier for requirement in named(PROJECT["project"]["dependencies"]).values()]
    assert all(any(each.operator in {">=", "=="} for each in bound) for bound in bounds)


def test_one_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)$", citation, re.M) == [tdumpra.__version__]
    assert re.findall(r"^## (\d\S*)$", changelog, re.M)[0] == tdumpra.__version__


def evaluated_at_import(tree: ast.Module) -> list[ast.AST]:
    """What runs when a module is imported: everything but the bodies of functions, with their decorators."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        waiting += getattr(node, "decorator_list", []) if inside else list(ast.iter_child_nodes(node))
    return found


CHANGING = {
    "time",
    "time_ns",
    "monotonic",
    "perf_counter",
    "now",
    "utcnow",
    "today",
    "uuid1",
    "uuid4",
    "urandom",
    "getpid",
}


def test_every_process_collects_the_same_tests():
    calls = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path in (ROOT / "tests").rglob("*.py")
        for node in evaluated_at_import(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CHANGING
    ]
    assert not calls
