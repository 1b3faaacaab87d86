from __future__ import annotations

import base64
import hashlib
import io
import re
import subprocess
import sys
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from parsed_page import parse
from PIL import Image

from tdumpra.report import kit

STYLE = (kit.TEMPLATES / "style.css").read_text(encoding="utf-8")
THEMES = [
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", b)) for b in re.findall(r"color-scheme: \w+;(.*?)}", STYLE, re.S)
]


# --- colours


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_worked_out_right():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # WCAG's well-known near miss


def test_the_theme_of_the_reader_and_of_the_button_are_one():
    light, dark, chosen = THEMES
    assert dark == chosen
    assert light.keys() == dark.keys()
    assert set(light) >= {
        "paper",
        "card",
        "ink",
        "muted",
        "line",
        "accent",
        "good",
        "bad",
        *(f"c{i}" for i in range(8)),
    }


@pytest.mark.parametrize("theme", THEMES[:2], ids=["light", "dark"])
def test_text_can_be_read_and_series_can_be_seen(theme):
    for ground in ("paper", "card", "tint"):
        for ink in ("ink", "muted", "accent", "good", "bad"):
            assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
    assert contrast(theme["good"], theme["good-tint"]) >= 4.5
    assert contrast(theme["bad"], theme["bad-tint"]) >= 4.5
    for i in range(8):
        assert contrast(theme[f"c{i}"], theme["card"]) >= 3, i


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
COLOUR_VISION = {
    "usual": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def as_lab(colour: str, vision: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = (np.array(COLOUR_VISION[vision]) @ linear).clip(0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ seen
    f = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 0.008856))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", COLOUR_VISION)
@pytest.mark.parametrize("theme", THEMES[:2], ids=["light", "dark"])
def test_series_stay_apart_for_every_kind_of_colour_vision(theme, vision):
    for a, b in combinations(range(8), 2):
        difference = np.linalg.norm(as_lab(theme[f"c{a}"], vision) - as_lab(theme[f"c{b}"], vision))
        assert difference > 12, (a, b)  # plain CIE76; about 2 is just noticeable side by side


# --- pictures


def decoded(uri: str) -> Image.Image:
    head, _, data = uri.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data, validate=True)))


@pytest.mark.parametrize("kind", ["array", "tensor", "pillow"])
def test_a_picture_travels_in_the_page(kind):
    pixels = np.full((30, 40, 3), (200, 90, 40), np.uint8)
    given: Any = {"array": pixels, "tensor": torch.from_numpy(pixels), "pillow": Image.fromarray(pixels)}[kind]
    assert np.abs(np.asarray(decoded(kit.data_uri(given))).astype(int) - pixels).max() <= 4  # as near as a JPEG comes
    assert decoded(kit.data_uri(given)).size == (40, 30)
    assert decoded(kit.data_uri(given, size=20)).size == (20, 15)
    assert decoded(kit.data_uri(given, size=400)).size == (40, 30)  # never enlarged


@pytest.mark.parametrize("shape", [(9, 9), (9, 9, 4)])
def test_transparency_and_grey(shape):
    assert decoded(kit.data_uri(np.zeros(shape, np.uint8))).mode == "RGB"


# --- figures and words


def test_undefined_is_a_word():
    assert [kit.number(None), kit.number(float("nan")), kit.number(0.5, 2)] == ["undefined", "undefined", "0.50"]
    assert [kit.signed(None), kit.signed(-0.5, 1), kit.signed(3, 0)] == ["undefined", "−0.5", "+3"]


def test_a_sentence_has_a_capital_and_one_full_stop():
    assert [kit.sentence(text) for text in ("a b", "A b.", " stop! ")] == ["A b.", "A b.", "Stop!"]


# --- names


def test_plain_ids_keep_their_names():
    assert kit.page_name("ISIC_0024306") == "ISIC_0024306.html"


@pytest.mark.parametrize(
    "case_id",
    ["", "..", "../../etc/passwd", "a/b", "a\\b", "<script>", "x" * 300, "nævus ☃", " ", ".hidden", "a\x00b", "con."],
)
def test_odd_ids_get_safe_names(case_id):
    name = kit.page_name(case_id)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*~[0-9a-f]{10}\.html", name)
    assert len(name) < 80


def test_different_ids_get_different_names():
    ids = ["a/b", "a-b", "a b", "a\\b", "a//b", "a-b~" + hashlib.sha256(b"a/b").hexdigest()[:10]]
    assert len({kit.page_name(each) for each in ids}) == len(ids)


# --- pages


def test_the_policy_names_the_scripts_that_are_there():
    page = parse(kit.render("base.html"))
    policy = page.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    assert "default-src 'none'" in policy
    scripts = page.all("script")
    assert scripts
    for script in scripts:
        (source,) = script.children
        assert isinstance(source, str)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert "not a medical device" in page.one("footer").text


def test_a_name_that_the_template_lacks_is_an_error():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        kit.render("evidence.html")


def test_without_jinja2_the_extra_is_named():
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from tdumpra.report import kit\n"
        "from tdumpra.errors import MissingExtraError\n"
        "try: kit.render('base.html')\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "writing pages needs jinja2: install it with  pip install 'tdumpra[report]'"
