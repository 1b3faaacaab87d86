from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from argon2 import PasswordHasher
from server_world import World, open_world
from tiny_models import decide, make_model
from tiny_runs import colours, embed_run, settings

from tdumpra.server import accounts


@pytest.fixture(scope="session")
def model_files(tmp_path_factory) -> tuple[Path, Path]:
    """Two tiny models of one training: the second one's gate opens less often."""
    root = tmp_path_factory.mktemp("served")
    config, data = settings(epochs=2), colours(90)
    folder = embed_run(config, root / "run", data)
    torch.use_deterministic_algorithms(False)
    first = decide(config, folder, kappa=5.0)
    second = replace(first, thresholds=replace(first.thresholds, theta=0.4))
    for name, decision in (("first", first), ("second", second)):
        (root / name).mkdir()
        make_model(config, data, folder, decision).write(root / name / "model.safetensors")
    return root / "first" / "model.safetensors", root / "second" / "model.safetensors"


@pytest.fixture(scope="session", autouse=True)
def quick_passwords() -> Iterator[None]:
    """Argon2 with a millisecond for each password, where it takes fifty for those of people."""
    patch = pytest.MonkeyPatch()
    patch.setattr(accounts, "_hasher", lambda: PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
    yield
    patch.undo()


@pytest.fixture
def make_world(tmp_path, model_files) -> Iterator[Callable[..., World]]:
    """Opens servers, and closes them at the end."""
    opened: list[World] = []

    def make(*, shadow: bool = False, folder: Path | None = None, **options: Any) -> World:
        models = list(model_files) if shadow else [model_files[0]]
        opened.append(open_world(folder or tmp_path / f"server-{len(opened)}", models, **options))
        return opened[-1]

    yield make
    for world in opened:
        world.service.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A server with accounts and blind reading by two."""
    return make_world()
