"""Write the expected figures again: ``python -m tests.figures.make [CASE ...]``, from the root of a checkout.

Do so only where a figure is meant to change, and say why in the commit. Cases on real outputs need them beside the
clone, in ``../shared/outputs``; they are left as they are where those are not at hand.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from tests.figures.cases import CASES
from tests.figures.shared_outputs import CASES as REAL_CASES

FOLDER = Path(__file__).parent


def main(names: list[str]) -> None:
    """Compute the named cases, or all, and write one file for each."""
    sys.path.insert(0, str(FOLDER.parent / "helpers"))  # networks that configurations name
    torch.set_num_threads(1)
    cases = CASES | REAL_CASES
    for name in names or cases:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = cases[name](Path(folder))
        lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in found.items()]
        (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(f"{name}: {time.monotonic() - started:.1f} s, {(FOLDER / f'{name}.json').stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
