from __future__ import annotations

import csv
import io
import re

import matplotlib as mpl
import pytest

from tdumpra.report.drawing import COLOURS, Chart, csv_text, new_figure, set_title, styled
from tdumpra.report.kit import TEMPLATES


@styled
def line(values: list[float], title: str = "a title") -> Chart:
    figure = new_figure(3, 2)
    axes = figure.subplots()
    axes.plot(range(len(values)), values, "o-", color=COLOURS["c3"], label="series")
    axes.set_title(title)
    axes.legend()
    return Chart(figure, 'up & "down" <b>', [{"x": i, "y": value} for i, value in enumerate(values)])


def test_colours_come_from_the_page():
    svg = line([1.0, 2.0]).svg()
    assert "var(--c3)" in svg
    assert "var(--ink)" in svg
    assert not re.findall(r"#[0-9a-f]{6}\b", svg)  # none that a dark page could not change


def test_the_colours_are_those_of_the_pages_style():
    style = (TEMPLATES / "style.css").read_text()
    light = style[: style.index("@media")]
    assert {name: re.search(rf"--{name}: (#[0-9a-f]+)", light)[1] for name in COLOURS} == COLOURS  # type: ignore[index]


def test_the_alternative_text_is_escaped():
    svg = line([1.0]).svg()
    assert 'role="img" aria-label="up &amp; &quot;down&quot; &lt;b&gt;"' in svg
    assert "<b>" not in svg


def test_a_title_is_escaped_and_stays_text():
    assert ">&lt;script&gt; of a class</text>" in line([1.0], "<script> of a class").svg()


@pytest.mark.parametrize("width", [2.8, 4.6, 8.4])
def test_a_long_title_is_not_cut(width):
    figure = new_figure(width, 3)
    axes = figure.subplots()
    set_title(figure, "site_rosendahl_two-networks_joint_seed0: a reference gate, as the five-clause gate stays shut")
    figure.draw_without_rendering()
    box = figure.texts[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert box.y1 <= figure.bbox.height
    assert axes.get_window_extent().y1 <= box.y0  # the panels make room for it


def test_two_charts_share_a_page():
    """An id that stands twice must stand for the same thing: only what is named by its content keeps one."""
    both = line([1.0, 2.0]).svg() + line([2.0, 1.0, 3.0]).svg()
    found = re.findall(r'<(\w+) id="([^"]+)"', both)
    assert all(re.fullmatch(r"[a-z][0-9a-f]{9,}", name) for _, name in found), found
    assert set(re.findall(r'(?:#|url\(#)([^")]+)[")]', both)) <= {name for _, name in found}


def test_the_same_figure_is_the_same_text():
    assert line([1.0, 2.0]).svg() == line([1.0, 2.0]).svg()


def test_matplotlib_is_left_as_it_was():
    before = dict(mpl.rcParams)
    line([1.0]).svg()
    assert dict(mpl.rcParams) == before


def test_numbers_as_csv():
    text = csv_text([{"a": 1, "b": None}, {"a": float("nan"), "c": "x,y"}])
    assert list(csv.DictReader(io.StringIO(text))) == [{"a": "1", "b": "", "c": ""}, {"a": "", "b": "", "c": "x,y"}]


def test_a_png_is_on_white(tmp_path):
    from PIL import Image

    line([1.0, 2.0]).write_png(tmp_path / "line.png")
    with Image.open(tmp_path / "line.png") as picture:
        assert picture.convert("RGB").getpixel((1, 1)) == (255, 255, 255)


def test_without_matplotlib(monkeypatch):
    import sys

    from tdumpra.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"tdumpra\[report\]"):
        line([1.0])
