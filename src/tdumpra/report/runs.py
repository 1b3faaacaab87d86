"""Which kind of run a folder holds, and its report: one seed, several seeds, several models, or attached outputs."""

from __future__ import annotations

from pathlib import Path

from tdumpra.artifacts import read_json
from tdumpra.errors import ArtifactError
from tdumpra.report.cases import SHOWN
from tdumpra.report.material import of_attached
from tdumpra.report.report import FOLDER, write_page
from tdumpra.runs.attach import EVALUATION


def write_report(run: str | Path, out: str | Path | None = None, *, limit: int = SHOWN) -> Path:
    """Write the report of a run into ``RUN/report``, or into ``out``; gives the path of its first page.

    Args:
        run: the folder of a run, of one of its seeds, or of ``tdumpra attach``.
        out: another folder for the report.
        limit: how many cases get a page of their own.
    """
    root = Path(run)
    if not root.is_dir():
        raise ArtifactError(f"{root} is not a folder: name the folder of a run, for instance runs/NAME")
    place = Path(out) if out is not None else root / FOLDER
    seeds = [path.parent for path in root.glob("seed-*/config.toml") if path.parent.name[5:].isdigit()]
    if seeds or (root / "config.toml").exists():
        return _of_configuration(root, seeds, place, limit)
    if not (root / EVALUATION).exists():
        raise ArtifactError(
            f"{root} holds no run: make one with  tdumpra run CONFIG  or  tdumpra attach OUTPUTS --out {root}"
        )
    if "settings" not in read_json(root / EVALUATION, kind="evaluation", schema=1):
        raise ArtifactError(
            f"{root} does not say what it was made with (config.toml): run  tdumpra evaluate CONFIG  again"
        )
    return write_page(of_attached(root), place, limit=limit)


def _of_configuration(root: Path, seeds: list[Path], out: Path, limit: int) -> Path:
    from tdumpra.report.image_material import of_folder
    from tdumpra.report.seeds import write_saved, write_seeds
    from tdumpra.runs.config import read_config  # brings networks and pictures with it, which arrays can do without

    if seeds:
        return write_seeds(root, seeds, out, limit)
    config = read_config(root / "config.toml")
    if not config.outputs:
        return write_page(of_folder(root), out, limit=limit)
    if not (root / EVALUATION).exists():
        raise ArtifactError(f"{root} has no evaluation.json yet: run  tdumpra evaluate {root / 'config.toml'}  first")
    return write_saved(root, config, out, limit)
