"""The small data sets of ``tests/data``, for the commands too."""

from __future__ import annotations

from tests.data.conftest import ham_folder, write_image, write_table

__all__ = ["ham_folder", "write_image", "write_table"]
