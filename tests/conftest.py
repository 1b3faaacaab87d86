"""Before anything of tdumpra is imported: the shapes in the core's signatures are checked while tests run."""

from __future__ import annotations

import gc
import os

# For libraries that are loaded later, here and in the processes that tests start: threads of BLAS that wait for a core
# make products of small matrices fifty times as slow as one thread does.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import random
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import hypothesis
import jaxtyping
import numpy as np
import pytest
import threadpoolctl
import tiny_networks
import torch
from PIL import Image

_HOOKED = "tdumpra.core"

if too_early := [name for name in sys.modules if name == _HOOKED or name.startswith(f"{_HOOKED}.")]:
    raise RuntimeError(f"{too_early[0]} was imported before the tests could have its shapes checked")

# Beartype draws which items of a list it looks at, and a training must leave Python's generator as it is.
with mock.patch.object(random, "getrandbits", random.Random(0).getrandbits):
    import beartype  # noqa: F401

# An int is accepted where a float is annotated, as type checkers do.
jaxtyping.install_import_hook(_HOOKED, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

# The same examples in every run: a failure that comes and goes teaches nobody.
hypothesis.settings.register_profile("tests", deadline=None, max_examples=60, derandomize=True, database=None)
hypothesis.settings.load_profile("tests")

gc.set_threshold(20_000, 20, 20)  # a full round looks at the million objects of the libraries, a tenth of all time

torch.set_num_threads(1)  # the tensors are small, and threads that wait for each other cost more than they bring
threadpoolctl.threadpool_limits(1, "blas")  # of libraries that are loaded already


@pytest.fixture(autouse=True)
def trust_the_tests_own_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models name the small networks of the tests; any other code in a model file is refused."""
    from tdumpra.networks import model_file  # after the hook above

    own = {name for name in vars(tiny_networks) if not name.startswith("_")}
    trusted = model_file.OWN_FACTORIES | {f"tiny_networks:{name}" for name in own}
    monkeypatch.setattr(model_file, "OWN_FACTORIES", trusted)


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """The core as users meet it, to see the sentences that it has for bad input."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def plain_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the drawing: for tests of commands, to which charts are files like any other."""
    from plain_charts import drawn_plainly  # after the hook above

    monkeypatch.setattr("tdumpra.report.drawing.Chart._saved", drawn_plainly)


class Done(NamedTuple):
    """What a command left on the screen."""

    code: int
    out: str
    err: str


@pytest.fixture
def tdumpra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs a command as a shell would, in this process."""
    from tdumpra.cli import main as cli  # after the hook above

    def run(*arguments: Any, columns: int = 200) -> Done:
        monkeypatch.setattr(sys, "argv", ["tdumpra", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(columns))
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            torch.use_deterministic_algorithms(False)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


Finished = Callable[..., tuple[Path, Path]]
_finished: dict[str, Path] = {}


@pytest.fixture
def finished(
    tdumpra: Callable[..., Done], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, plain_charts: None
) -> Finished:
    """Gives the file and the folder of a finished run, which is carried out once in a process and then copied.

    Options are those of ``tiny_config.write_config``.
    """
    from tiny_config import write_config

    def copy(**options: Any) -> tuple[Path, Path]:
        place, options = tmp_path_factory.getbasetemp(), {"seeds": "[0]", **options}
        if repr(options) not in _finished:
            kept = place / f"finished-{len(_finished)}"
            config = write_config(place / f"{kept.name}.toml", place / "finished-cache", **options)
            done = tdumpra("run", config, "--out", kept)
            assert done.code == 0, done.err
            _finished[repr(options)] = kept
        out = tmp_path / "run"
        shutil.copytree(_finished[repr(options)], out)
        return write_config(tmp_path / "run.toml", place / "finished-cache", **options, folder=out), out

    return copy


WriteImage = Callable[..., Path]
WriteTable = Callable[[Path, Iterable[str]], Path]


@pytest.fixture(scope="session")
def write_image() -> WriteImage:
    """Writes a small picture that its seed determines."""

    def write(path: Path, seed: int = 0, size: tuple[int, int] = (32, 24)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, quality=95)
        return path

    return write


@pytest.fixture(scope="session")
def write_table() -> WriteTable:
    """Writes lines to a file."""

    def write(path: Path, lines: Iterable[str]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.fixture
def ham_folder(tmp_path: Path, write_image: WriteImage, write_table: WriteTable) -> Path:
    """HAM10000 in small: eight images of six lesions, in two parts, with masks and one duplicate pair."""
    root = tmp_path / "ham"
    rows = [
        ("HAM_1", "ISIC_1", "nv"),
        ("HAM_1", "ISIC_2", "nv"),
        ("HAM_2", "ISIC_3", "mel"),
        ("HAM_3", "ISIC_4", "mel"),
        ("HAM_4", "ISIC_5", "bcc"),
        ("HAM_5", "ISIC_6", "akiec"),
        ("HAM_5", "ISIC_7", "akiec"),
        ("HAM_6", "ISIC_8", "vasc"),
    ]
    header = "lesion_id,image_id,dx,dx_type,age,sex,localization"
    write_table(
        root / "HAM10000_metadata.csv",
        [header, *(f"{lesion},{image},{dx},histo,50.0,female,back" for lesion, image, dx in reversed(rows))],
    )
    write_table(root / "newly_discovered_duplicates.csv", ["similarity,from_img,to_img", "0.98,ISIC_4.jpg,ISIC_3.jpg"])
    for number, (_, image, _) in enumerate(rows):
        write_image(root / f"HAM10000_images_part_{1 + number % 2}" / f"{image}.jpg", seed=number)
    write_image(root / "HAM10000_segmentations_lesion" / "ISIC_1_segmentation.png")
    return root


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder beside the repository where real data may lie."""
    return Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def ham10000_metadata(shared: Path) -> Path:
    """The folder of the real HAM10000 tables: ``TDUMPRA_HAM10000``, or ``../shared/ham10000`` beside the repository."""
    folder = Path(os.environ.get("TDUMPRA_HAM10000", shared / "ham10000"))
    if not (folder / "HAM10000_metadata.csv").is_file():
        pytest.skip("HAM10000 is not here: set TDUMPRA_HAM10000 to its folder")
    return folder


@pytest.fixture(scope="session")
def isic2019_tables(shared: Path) -> Path:
    """The folder of the real ISIC 2019 tables: ``TDUMPRA_ISIC2019``, or ``../shared/isic2019``."""
    folder = Path(os.environ.get("TDUMPRA_ISIC2019", shared / "isic2019"))
    if not (folder / "ISIC_2019_Training_GroundTruth.csv").is_file():
        pytest.skip("the ISIC 2019 tables are not here: set TDUMPRA_ISIC2019 to their folder")
    return folder
