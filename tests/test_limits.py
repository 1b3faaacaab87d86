from __future__ import annotations

import pytest

from tdumpra.errors import InputFileError
from tdumpra.limits import VARIABLE, Limits, limits, refuse_above


def test_the_variable_changes_single_limits(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert limits() == Limits()
    monkeypatch.setenv(VARIABLE, "image_pixels=2e8, table_rows = 5,")
    assert limits() == Limits(image_pixels=2e8, table_rows=5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("image_pixel=5", "did you mean 'image_pixels'"),
        ("speed=5", "there are artifact_bytes, "),
        ("image_pixels=many", "must be a number, not 'many'"),
        ("image_pixels=-1", "must be above 0"),
        ("image_pixels=nan", "must be above 0"),
    ],
)
def test_a_limit_that_cannot_be(monkeypatch, text, sentence):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(InputFileError, match=sentence):
        limits()


def test_a_refusal_names_its_limit(monkeypatch):
    monkeypatch.setenv(VARIABLE, "table_rows=5")
    assert refuse_above("table_rows", 5, "rows") is None
    assert "6 rows are more than the 5" in str(refuse_above("table_rows", 6, "rows"))
    assert refuse_above("table_rows", float("nan"), "rows") is not None
