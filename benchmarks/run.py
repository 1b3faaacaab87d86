"""Run benchmarks by name, or all of them; print a table and write JSON.

python benchmarks/run.py [NAME ...] [--out DIR]
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from rich.console import Console
from rich.table import Table

NAMES = (
    "contrastive", "kmeans", "tuning", "predict", "evaluation", "sweep", "cache", "augment", "pipeline", "adapt",
    "bank_remove",
)  # fmt: skip
BY_NAME = (
    "training_step", "lazy_predict", "cpu_serving", "validate", "scoring", "predict_memory", "startup", "large_arrays",
    "serving", "clustering", "scaling",
)  # long, or need a quiet machine  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join((*NAMES, *BY_NAME))}")
    parser.add_argument("--out", type=Path, help="folder for benchmarks.json")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - {*NAMES, *BY_NAME}
    if unknown:
        parser.error(f"unknown benchmark {sorted(unknown)[0]!r}; there are {', '.join((*NAMES, *BY_NAME))}")
    console, rows = Console(), []
    for name in arguments.names or NAMES:
        with console.status(name):
            rows += importlib.import_module(f"benchmarks.{name}").run()
    table = Table("benchmark", "against", "ours", "theirs / limit", "ratio", "goal", "")
    for row in rows:
        figures = (f"{row['ours']:.4g} {row['unit']}", f"{row['peer']:.4g} {row['unit']}", f"{row['ratio']:.3g}")
        table.add_row(row["name"], row["against"], *figures, row["goal"], "met" if row["met"] else "missed")
    console.print(table)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        machine = {"processor": platform.processor(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        document = json.dumps({"machine": machine, "rows": rows}, indent=2, ensure_ascii=False)
        (arguments.out / "benchmarks.json").write_text(document + "\n")
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
