"""What the default preset's bounds cost: the presets ``free`` and ``default`` on the same saved outputs.

``python -m benchmarks.cost_of_floors OUTPUTS ... --out FILE.json`` takes files as ``tdumpra attach`` reads them, and
folders of finished runs. It writes the figures and prints them as a table. Everything is chosen on validation rows;
figures of test rows are for reading.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tdumpra.core.metrics import classification_metrics
from tdumpra.evaluation.evaluate import gate_report
from tdumpra.method.output_files import SplitOutputs, read_outputs
from tdumpra.runs.config import read_config
from tdumpra.runs.folder import RunFolder
from tdumpra.runs.outputs import all_outputs
from tdumpra.tuning.fit import fit
from tdumpra.tuning.settings import BankConfig, TuneConfig

PRESETS = ("free", "default")
_METRICS = ("accuracy", "balanced_accuracy", "macro_f1")
_COUNTS = ("opened", "flipped", "fixed", "broken")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", nargs="+", type=Path, help="saved outputs, or folders of finished runs")
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    arguments = parser.parse_args()
    rows = [row for path in arguments.outputs for row in compared(path)]
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows))


def compared(path: Path) -> list[dict[str, Any]]:
    """Return the figures of one file or run under each preset."""
    splits, bank = _read(path)
    return [{"outputs": path.stem, "preset": preset, **_figures(splits, bank, preset)} for preset in PRESETS]


def _read(path: Path) -> tuple[SplitOutputs, BankConfig]:
    if path.is_dir():
        outputs, *_ = all_outputs(read_config(RunFolder(path).config))
        return outputs.load(), outputs.config.bank
    return read_outputs(path), BankConfig()


def _figures(splits: SplitOutputs, bank: BankConfig, preset: Any) -> dict[str, Any]:
    fitted = fit(splits, bank, TuneConfig(preset=preset))
    tuning, estimate, test = fitted.tuning, fitted.estimate, splits.test
    decided = tuning.decision.decide(test.p, test.z)
    report = gate_report(decided.p_cls, decided.p_sim, decided.p, test.y, test.groups, opened=decided.opened)
    before, after = (classification_metrics(p.double().numpy(), test.y.numpy()) for p in (decided.p_cls, decided.p))
    return {
        "gate": tuning.best.gate,
        "thresholds": tuning.best.thresholds and tuning.decision.to_json()["thresholds"],
        "asked": tuning.best.asked,
        "out_of_fold": estimate and estimate.to_json(),
        "notes": [note.kind for note in tuning.notes],
        "test_rows": len(test),
        "before": {name: before[name] for name in _METRICS},
        "test": {name: after[name] for name in _METRICS} | {name: report[name] for name in _COUNTS},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures as Markdown: gains in points, openings as opened (fixed : broken)."""
    head = (
        "outputs", "preset", "θ", "β", "lead", "out of fold: acc.", "bal. acc.", "opened", "test: acc.", "bal. acc.",
        "macro-F1", "opened",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(head) - 2)]
    for row in rows:
        limits, fold, test, before = row["thresholds"], row["out_of_fold"], row["test"], row["before"]
        shown = ["shut", "", ""] if limits is None else [f"{limits[name]:.2g}" for name in ("theta", "beta", "margin")]
        gains = [test[name] - before[name] for name in _METRICS]
        cells = [
            f"`{row['outputs']}`", f"`{row['preset']}`", *shown, _points(fold["accuracy"] - fold["base_accuracy"]),
            _points(fold["objective"] - fold["base_objective"]), _moved(fold), *map(_points, gains), _moved(test),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _points(difference: float) -> str:
    return f"{100 * difference:+.2f}"


def _moved(counts: dict[str, Any]) -> str:
    return f"{counts['opened']} ({counts['fixed']} : {counts['broken']})"


if __name__ == "__main__":
    main()
