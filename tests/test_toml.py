from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Literal

import pytest

from tdumpra.toml import ConfigError, read_tree, to_toml


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    mode: Literal["fast", "slow"] = "fast"
    pair: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"rate must not be negative, not {self.rate}")


@dataclass(frozen=True)
class Outer:
    name: str = "run"
    seeds: tuple[int, ...] = (0,)
    limit: float | None = None
    flag: bool = False
    inner: Inner = field(default_factory=Inner)


def write(tmp_path, text: str):
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_left_out_keeps_its_default(tmp_path):
    assert read_tree(write(tmp_path, "seeds = [3, 4]\n[inner]\nrate = 1\n"), Outer) == Outer(
        seeds=(3, 4), inner=Inner(rate=1.0)
    )


def test_a_whole_number_serves_as_a_number(tmp_path):
    assert read_tree(write(tmp_path, ""), Outer, limit=4) == read_tree(write(tmp_path, "limit = 4"), Outer, limit=5)
    tree = read_tree(write(tmp_path, "limit = 3"), Outer)
    assert isinstance(tree.limit, float)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed = [1]", r"unknown key seed \(did you mean seeds\?\)"),
        ("[inner]\nrat = 1", r"unknown key inner\.rat \(did you mean rate\?\)"),
        ("zzz = 1", "there are flag, inner, limit, name, seeds"),
        ("name = 3", "name must be a string, not 3"),
        ("flag = 1", "flag must be true or false, not 1"),
        ("seeds = 1", "seeds must be a list, not 1"),
        ("seeds = [true]", r"seeds\[0\] must be a whole number, not True"),
        ("limit = 'x'", "limit must be a number, not 'x'"),
        ("inner = 3", r"inner must be a table \[inner\], not 3"),
        ("[inner]\nmode = 'quick'", "inner.mode must be one of 'fast', 'slow', not 'quick'"),
        ("[inner]\npair = [1.0]", "inner.pair must have 2 entries, not 1"),
        ("[inner]\nrate = -1.0", r"\[inner\] rate must not be negative"),
        ("a = = 1", "is not valid TOML"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(tmp_path, text, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_tree(write(tmp_path, text), Outer)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.toml"):
        read_tree(tmp_path / "nowhere.toml", Outer)


def test_what_is_written_reads_back(tmp_path):
    tree = Outer(name='quo"te\\ ä', seeds=(1, 2), limit=1e-8, flag=True, inner=Inner(rate=3.0, mode="slow"))
    text = to_toml(tree)
    assert tomllib.loads(text)["inner"]["mode"] == "slow"
    assert read_tree(write(tmp_path, text), Outer) == tree
