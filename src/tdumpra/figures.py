"""Figures of an evaluation and of sweeps, as PNG. Matplotlib is loaded when the first is drawn, and only then."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tdumpra.artifacts import write_bytes
from tdumpra.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that stay apart for colour-blind readers (Okabe and Ito), and in grey.
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"
_COLOURS = {"student": GREY, "temperature": BLUE, "similarity": GREEN, "gate": VERMILION, "logit_adjusted": ORANGE}
_DOTS_PER_INCH = 160


def reliability(
    evaluation: Mapping[str, Any], path: Path, shown: Sequence[str] = ("student", "temperature", "gate")
) -> None:
    """Accuracy against confidence in fifteen bins, the rows of each bin below."""
    present = [name for name in shown if name in evaluation["calibration"]]
    figure = _figure(3.1 * len(present), 4.0)
    grid = figure.subplots(2, len(present), sharex=True, sharey="row", height_ratios=(3, 1), squeeze=False)
    for (upper, lower), name in zip(grid.T, present, strict=True):
        bins = evaluation["calibration"][name]["bins"]
        rows = np.asarray(bins["rows"])
        centres = (np.arange(len(rows)) + 0.5) / len(rows)
        accuracy, confidence = (
            np.array([np.nan if v is None else v for v in bins[key]]) for key in ("accuracy", "confidence")
        )
        width = 0.9 / len(rows)
        upper.bar(centres, accuracy, width, color=_COLOURS.get(name, BLUE), alpha=0.75, label="accuracy")
        upper.plot(confidence, confidence, "k_", markersize=9, label="mean confidence")
        upper.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":")
        ece = evaluation["comparators"][name]["ece"]
        upper.set_title(f"{name}, ECE {ece:.3f}", fontsize=10)
        upper.set_ylim(0, 1)
        lower.bar(centres, rows, width, color=GREY)
        lower.set_xlabel("confidence")
    grid[0, 0].set_ylabel("accuracy")
    grid[0, 0].legend(fontsize=8, loc="upper left", frameon=False)
    grid[1, 0].set_ylabel("rows")
    _write(figure, path)


def risk_coverage(
    evaluation: Mapping[str, Any], path: Path, shown: Sequence[str] = ("student", "similarity", "gate", "oracle")
) -> None:
    """Error among the answered cases against the share that is answered; the dot is where the rest go to a human."""
    figure = _figure(5.2, 3.8)
    axes = figure.subplots()
    for name in (name for name in shown if name in evaluation["selective"]):
        of_name = evaluation["selective"][name]
        colour, line = _COLOURS.get(name, "black"), ":" if name == "oracle" else "-"
        label = f"{name} (AURC {of_name['aurc']:.3f})"
        axes.plot(of_name["curve"]["coverage"], of_name["curve"]["risk"], color=colour, linestyle=line, label=label)
        refer = of_name.get("refer")
        if refer and refer["risk"] is not None and name != "oracle":
            axes.plot(refer["coverage"], refer["risk"], "o", color=colour, markersize=6)
    target = next((s["refer"]["target_risk"] for s in evaluation["selective"].values() if "refer" in s), None)
    if target is not None:
        axes.axhline(target, color=GREY, linewidth=0.8, linestyle="--")
        axes.annotate(
            "tolerated risk, met on validation", (0.02, target), xytext=(0, 3), textcoords="offset points", fontsize=8
        )
    axes.set(xlabel="coverage: share of cases answered", ylabel="risk: errors among them", xlim=(0, 1), ylim=(0, None))
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, 0.88))
    _write(figure, path)


def comparators(
    evaluation: Mapping[str, Any], path: Path, shown: Sequence[str] = ("accuracy", "balanced_accuracy", "ece")
) -> None:
    """Each comparator's metrics with their intervals; a line stands at the student's value."""
    names = list(evaluation["comparators"])
    intervals = evaluation.get("intervals", {})
    figure = _figure(2.9 * len(shown) + 1.2, 0.28 * len(names) + 1.0)
    for axes, metric in zip(figure.subplots(1, len(shown), sharey=True, squeeze=False)[0], shown, strict=True):
        for place, name in enumerate(names):
            value = evaluation["comparators"][name][metric]
            if value is None:
                continue
            colour = _COLOURS.get(name, "black") if name in {"gate", "student"} else "black"
            low, high = intervals.get(name, {}).get(metric, (value, value))
            axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
            axes.plot(
                value, place, "o", color=colour, markersize=4.5, markerfacecolor="white" if name == "oracle" else colour
            )
        axes.axvline(evaluation["comparators"]["student"][metric], color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xlabel(metric.replace("_", " ").replace("ece", "ECE"))
        axes.set_yticks(range(len(names)), names)
        axes.grid(axis="x", linewidth=0.3)
    figure.axes[0].invert_yaxis()
    _write(figure, path)


def gating_curve(points: Sequence[Mapping[str, Any]], symbol: str, chosen: float, title: str, path: Path) -> None:
    """The paper's gating figure: overall accuracy, accuracy where the gate is open, and openings, along one value."""
    figure = _figure(5.0, 5.6)
    upper, middle, lower = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 1.3))
    for split, colour in (("validation", BLUE), ("test", VERMILION)):
        of_split = [point for point in points if point["split"] == split]
        values = [point["value"] for point in of_split]
        for axes, key in ((upper, "accuracy"), (middle, "gate_accuracy"), (lower, "opened")):
            ys = [np.nan if point[key] is None else point[key] for point in of_split]
            ys = [100 * y / point["n"] for y, point in zip(ys, of_split, strict=True)] if key == "opened" else ys
            axes.plot(values, ys, "o-", color=colour, markersize=3, linewidth=1.3, label=split)
    for axes, label in ((upper, "overall accuracy"), (middle, "accuracy\nwhere open"), (lower, "open (%)")):
        axes.set_ylabel(label)
        axes.grid(linewidth=0.3)
        axes.axvline(chosen, color=GREY, linewidth=0.9, linestyle="--")
    lower.set_ylim(bottom=0)
    lower.set_xlabel(f"{symbol} (dashed: the value in use)")
    upper.legend(fontsize=8, frameon=False)
    upper.set_title(title, fontsize=10)
    _write(figure, path)


def small_multiples(
    curves: Mapping[str, tuple[str, Sequence[Mapping[str, Any]], float]], title: str, path: Path
) -> None:
    """Overall accuracy and retrieval's own, for each further setting; ``curves`` hold symbol, points, value in use."""
    figure = _figure(3.0 * len(curves), 3.2)
    for axes, (symbol, points, chosen) in zip(
        figure.subplots(1, len(curves), squeeze=False)[0], curves.values(), strict=True
    ):
        for key, style in (("accuracy", "o-"), ("similarity_accuracy", "s:")):
            for split, colour in (("validation", BLUE), ("test", VERMILION)):
                of_split = [point for point in points if point["split"] == split]
                label = f"{'gate' if key == 'accuracy' else 'retrieval alone'}, {split}"
                xs, ys = ([point[name] for point in of_split] for name in ("value", key))
                axes.plot(xs, ys, style, color=colour, markersize=3, linewidth=1.2, label=label)
        axes.axvline(chosen, color=GREY, linewidth=0.9, linestyle="--")
        if symbol in {"K", "κ", "τ", "D"}:
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted({point["value"] for point in points}), minor=False)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
            axes.tick_params(axis="x", labelsize=7)
        axes.set_xlabel(symbol)
        axes.grid(linewidth=0.3)
    figure.axes[0].set_ylabel("accuracy")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    _write(figure, path)


def surface(points: Sequence[Mapping[str, Any]], base: float, title: str, path: Path) -> None:
    """Validation accuracy gained over θ × β, at the best margin and α of each point."""
    thetas, betas = (sorted({point[name] for point in points}) for name in ("theta", "beta"))
    gain = np.full((len(betas), len(thetas)), -np.inf)
    for point in points:
        i, j = betas.index(point["beta"]), thetas.index(point["theta"])
        gain[i, j] = max(gain[i, j], point["accuracy"] - base)
    largest = max(float(np.abs(gain).max()), 1e-4)
    figure = _figure(5.2, 4.0)
    axes: Axes = figure.subplots()
    image = axes.pcolormesh(thetas, betas, gain, cmap="RdBu", vmin=-largest, vmax=largest, shading="nearest")
    axes.set(xlabel="θ", ylabel="β", title=title)
    axes.title.set_fontsize(10)
    figure.colorbar(image, ax=axes, label="accuracy gained on validation\n(best margin and α)")
    _write(figure, path)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report", "drawing figures") from error
    return Figure(figsize=(width, height), layout="constrained")  # no pyplot: nothing global, no display


def _write(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    write_bytes(path, buffer.getvalue())
