from __future__ import annotations

import pytest
from toy_audit import toy_audit

from tdumpra.data.duplicates import DuplicatePair
from tdumpra.report.duplicates_page import SHOWN_PAIRS, duplicates_page


def test_the_page_escapes_names_and_needs_nothing_from_outside():
    evil = '<img src=x onerror="alert(1)">&'
    page = duplicates_page(toy_audit(["i0", "i1", evil, "i3"], [DuplicatePair(2, 3, 4, 0.9)]))
    assert evil not in page
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;&amp;" in page
    assert page.count("data:image/jpeg;base64,") == 2
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page
    assert "prefers-color-scheme: dark" in page
    assert "1 pair of" in page


def test_the_page_shows_crossing_pairs_first_and_not_all():
    pairs = [DuplicatePair(0, 2, 1, 0.99)] + [DuplicatePair(2, 3, 4, 0.6)] * (SHOWN_PAIRS + 5)
    page = duplicates_page(toy_audit(["i0", "i1", "i2", "i3"], pairs))
    assert page.count("<article>") == SHOWN_PAIRS
    assert f"the first {SHOWN_PAIRS} pairs are shown" in page
    assert "labels differ" not in page  # that pair is not among the first: it does not cross


def test_the_page_survives_an_image_that_went_away():
    page = duplicates_page(toy_audit(["i0", "i1", "gone", "i3"], [DuplicatePair(2, 3, 4, 0.9)]))
    assert "no &lt;such&gt; file" in page


def test_no_pairs_and_no_search():
    assert "No two images of different groups look alike" in duplicates_page(toy_audit(["a", "b", "c", "d"], []))
    with pytest.raises(ValueError, match="did not search"):
        duplicates_page(toy_audit(["a", "b", "c", "d"]))
