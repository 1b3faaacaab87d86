from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tdumpra.data.sources import open_source
from tdumpra.errors import SourceError


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("ham1000:x", r"names no data source; .*did you mean 'ham10000'\?"),
        ("", "names no data source"),
        ("ham10000", "names no data source"),
        ("csv:", r"lacks the place: write 'csv:PATH'"),
        ("folder:/no/such", r"the folder /no/such does not exist: check the path after 'folder:'"),
        ("csv:/no/such.csv", "cannot read the table /no/such.csv"),
        ("medmnist:/no/such.npz", r"/no/such.npz is not a readable"),
    ],
)
def test_what_is_no_source_is_refused(spec, sentence):
    with pytest.raises(SourceError, match=sentence):
        open_source(spec)


def test_a_bare_folder_is_told_its_kind(tmp_path):
    with pytest.raises(SourceError, match=f"write 'folder:{tmp_path}'"):
        open_source(str(tmp_path))


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(SourceError, match="needs a folder"):
        open_source(f"ham10000:{tmp_path / 'x'}")


@pytest.fixture
def generator(monkeypatch):
    """Stands in for the generator, whose pictures are tested elsewhere."""
    calls: list[dict[str, object]] = []

    def synthetic_manifest(*, n: int = 1400, seed: int = 0, size: int = 96, ambiguous: float = 0.2) -> object:
        calls.append({"n": n, "seed": seed, "size": size, "ambiguous": ambiguous})
        return "manifest"

    module = ModuleType("tdumpra.data.synthetic")
    module.synthetic_manifest = synthetic_manifest  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tdumpra.data.synthetic", module)
    return calls


def test_options_of_the_synthetic_source(generator):
    open_source("synthetic:")
    open_source("synthetic:n=600, seed=3,ambiguous=0.5")
    assert generator == [
        {"n": 1400, "seed": 0, "size": 96, "ambiguous": 0.2},
        {"n": 600, "seed": 3, "size": 96, "ambiguous": 0.5},
    ]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("synthetic:sede=1", r"has no option 'sede'; did you mean 'seed'\?"),
        ("synthetic:n=many", "option n must be of type int, not 'many'"),
    ],
)
def test_wrong_options_of_the_synthetic_source(generator, spec, sentence):
    with pytest.raises(SourceError, match=sentence):
        open_source(spec)
