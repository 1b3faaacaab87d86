from __future__ import annotations

import pytest

from tdumpra import errors


@pytest.mark.parametrize(("word", "hint"), [("epoch", "; did you mean 'epochs'?"), ("EPOCHS", "'epochs'"), ("zzz", "")])
def test_the_nearest_word(word, hint):
    found = errors.nearest(word, ["epochs", "batch_size"])
    assert hint in found
    assert bool(found) == bool(hint)
