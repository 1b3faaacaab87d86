"""What the processes of a campaign are forked from: a process that has carried out a run."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from pathlib import Path

import torch
from plain_charts import drawn_plainly
from tests.campaigns.world import command, write_images_config

from tdumpra.report import drawing


def _warm_up() -> None:
    """Carry a whole run out, so that whatever commands import when they need it is there as well."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        setattr(drawing.Chart, "_saved", drawn_plainly)  # noqa: B010  # for this process and those that are forked from it
        config = write_images_config(Path(folder))
        command("run", config, "--out", Path(folder) / "out")


_warm_up()
