"""The example that draws the contact sheet runs as it is written."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from PIL import Image

EXAMPLE = Path(__file__).parents[3] / "examples" / "synthetic_sheet.py"


def test_the_sheet_shows_nine_lesions_of_each_class(tmp_path, monkeypatch, capsys):
    out = tmp_path / "sheet.png"
    monkeypatch.setattr(sys, "argv", ["synthetic_sheet.py", str(out), "--size", "32"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    with Image.open(out) as sheet:
        assert sheet.size == (46 + 9 * 32, 7 * (32 + 28))
    assert "the best possible classifier" in capsys.readouterr().out
