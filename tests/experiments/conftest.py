from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _commands_as_users_meet_them(plain_charts: None, without_shape_checks: None) -> None:
    """Charts are drawn by the tests of reports, and shapes are checked by those of the functions."""
