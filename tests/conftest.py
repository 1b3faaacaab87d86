"""Before anything of tdumpra is imported: the shapes in the core's signatures are checked while tests run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import hypothesis
import jaxtyping
import pytest
import tiny_networks
import torch

_HOOKED = "tdumpra.core"

if too_early := [name for name in sys.modules if name == _HOOKED or name.startswith(f"{_HOOKED}.")]:
    raise RuntimeError(f"{too_early[0]} was imported before the tests could have its shapes checked")

# An int is accepted where a float is annotated, as type checkers do.
jaxtyping.install_import_hook(_HOOKED, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

# The same examples in every run: a failure that comes and goes teaches nobody.
hypothesis.settings.register_profile("tests", deadline=None, max_examples=60, derandomize=True, database=None)
hypothesis.settings.load_profile("tests")

torch.set_num_threads(1)  # the tensors are small, and threads that wait for each other cost more than they bring


@pytest.fixture(autouse=True)
def trust_the_tests_own_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models name the small networks of the tests; any other code in a model file is refused."""
    from tdumpra.networks import model_file  # after the hook above

    own = {name for name in vars(tiny_networks) if not name.startswith("_")}
    trusted = model_file.OWN_FACTORIES | {f"tiny_networks:{name}" for name in own}
    monkeypatch.setattr(model_file, "OWN_FACTORIES", trusted)


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """The core as users meet it, to see the sentences that it has for bad input."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Done(NamedTuple):
    """What a command left on the screen."""

    code: int
    out: str
    err: str


@pytest.fixture
def tdumpra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs a command as a shell would, in this process."""
    from tdumpra.cli import main as cli  # after the hook above

    def run(*arguments: Any, columns: int = 200) -> Done:
        monkeypatch.setattr(sys, "argv", ["tdumpra", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(columns))
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            torch.use_deterministic_algorithms(False)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run
