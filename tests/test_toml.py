from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Literal

import pytest

from tdumpra.toml import ConfigError, read_toml, read_tree, to_toml


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


def write(tmp_path, text: str, name: str = "c.toml"):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
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
        ("seed = [1]", r"unknown key seed; did you mean 'seeds'\?"),
        ("[inner]\nrat = 1", r"unknown key inner\.rat; did you mean 'rate'\?"),
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


class TestExtends:
    def test_the_later_file_wins_and_tables_are_joined(self, tmp_path):
        write(tmp_path, "seeds = [1, 2]\nflag = true\n[inner]\nrate = 2.0\nmode = 'slow'\n", "base.toml")
        path = write(tmp_path, "extends = 'base.toml'\nseeds = [3]\n[inner]\nrate = 5.0\n")
        tree = read_tree(path, Outer)
        assert tree == Outer(seeds=(3,), flag=True, inner=Inner(rate=5.0, mode="slow"))
        assert read_toml(path) == {"seeds": [3], "flag": True, "inner": {"rate": 5.0, "mode": "slow"}}
        assert "extends" not in to_toml(tree)

    def test_a_value_may_take_the_place_of_a_table(self, tmp_path):
        write(tmp_path, "[inner]\nrate = 2.0\n", "base.toml")
        path = write(tmp_path, "extends = 'base.toml'\ninner = 3\n")
        assert read_toml(path) == {"inner": 3}

    def test_a_path_is_relative_to_the_file_that_names_it(self, tmp_path):
        write(tmp_path, "flag = true\nlimit = 1.0", "ground.toml")
        write(tmp_path, "extends = '../ground.toml'\nlimit = 2.0\nseeds = [7]", "study/base.toml")
        path = write(tmp_path, "extends = 'study/base.toml'\nseeds = [8]")
        assert read_tree(path, Outer) == Outer(flag=True, limit=2.0, seeds=(8,))

    def test_defaults_stand_for_what_the_file_itself_leaves_out(self, tmp_path):
        base = write(tmp_path, "name = 'base'", "base.toml")
        assert read_tree(write(tmp_path, "extends = 'base.toml'"), Outer, name="c").name == "c"
        assert read_tree(write(tmp_path, "extends = 'base.toml'\nname = 'own'"), Outer, name="c").name == "own"
        assert read_tree(write(tmp_path, "extends = 'base.toml'"), Outer).name == "base"
        assert read_tree(base, Outer, name="c").name == "base"

    @pytest.mark.parametrize("first", ["c.toml", "../{}/c.toml", "b.toml"])
    def test_a_circle_is_refused_with_its_files(self, tmp_path, first):
        write(tmp_path, "extends = 'c.toml'", "b.toml")
        path = write(tmp_path, f"extends = '{first.format(tmp_path.name)}'")
        with pytest.raises(ConfigError, match=rf"circle: .*c\.toml.* -> .*{first[-6:]}"):
            read_tree(path, Outer)

    def test_a_base_that_is_not_there_is_named_with_its_heir(self, tmp_path):
        with pytest.raises(ConfigError, match=r"c\.toml extends .*none\.toml"):
            read_tree(write(tmp_path, "extends = 'none.toml'"), Outer)

    @pytest.mark.parametrize("value", ["3", "['base.toml']", "{base = 'base.toml'}"])
    def test_another_value_than_a_path_is_refused(self, tmp_path, value):
        with pytest.raises(ConfigError, match=r"c\.toml: extends must be a string"):
            read_tree(write(tmp_path, f"extends = {value}"), Outer)

    @pytest.mark.parametrize(
        ("base", "own", "culprit"),
        [
            ("seed = 1", "flag = true", "base"),
            ("flag = true", "seed = 1", "c"),
            ("[inner]\nrat = 1", "[inner]\nrate = 1", "base"),
            ("[inner]\nrate = -1.0", "[inner]\nmode = 'slow'", "base"),
            ("flag = 3", "flag = 4", "c"),
            ("a = = 1", "", "base"),
        ],
    )
    def test_a_mistake_is_told_of_the_file_that_makes_it(self, tmp_path, base, own, culprit):
        write(tmp_path, base, "base.toml")
        with pytest.raises(ConfigError) as refusal:
            read_tree(write(tmp_path, f"extends = 'base.toml'\n{own}"), Outer)
        assert str(refusal.value).startswith(str(tmp_path / f"{culprit}.toml"))

    def test_only_the_top_of_a_file_extends(self, tmp_path):
        with pytest.raises(ConfigError, match=r"unknown key inner\.extends"):
            read_tree(write(tmp_path, "[inner]\nextends = 'base.toml'"), Outer)
