"""Charts of an evaluation, of sweeps and of training, for pages and for PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tdumpra.evaluation.metrics_table import METRICS
from tdumpra.report.drawing import COLOURS, Chart, new_figure, set_title, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[Mapping[str, Any]]
WIDTH = 4.6  # inches: the text of a chart this wide can be read on a phone
_LINES = {
    "student": COLOURS["muted"], "temperature": COLOURS["c1"], "similarity": COLOURS["c2"], "gate": COLOURS["c0"],
    "logit_adjusted": COLOURS["c3"], "teacher": COLOURS["c5"], "oracle": COLOURS["ink"],
}  # fmt: skip
_SPLITS = {"validation": COLOURS["c1"], "test": COLOURS["c0"]}


@styled
def reliability(evaluation: Mapping[str, Any], shown: Sequence[str] = ("student", "temperature", "gate")) -> Chart:
    """Draw accuracy against confidence in fifteen bins, with the number of rows in each bin below."""
    present = [name for name in shown if name in evaluation["calibration"]]
    figure = new_figure(WIDTH if len(present) == 1 else 3.1 * len(present), 4.0)
    grid = figure.subplots(2, len(present), sharex=True, sharey="row", height_ratios=(3, 1), squeeze=False)
    data, errors = [], []
    for (upper, lower), name in zip(grid.T, present, strict=True):
        bins = evaluation["calibration"][name]["bins"]
        rows, centres = np.asarray(bins["rows"]), (np.arange(len(bins["rows"])) + 0.5) / len(bins["rows"])
        accuracy, confidence = (_numbers(bins[key]) for key in ("accuracy", "confidence"))
        width, colour = 0.9 / len(rows), _LINES.get(name, COLOURS["c0"])
        upper.plot([0, 1], [0, 1], color=COLOURS["muted"], linewidth=0.9, linestyle=":", label="perfect")
        upper.bar(centres, accuracy, width, color=colour, label="accuracy in the bin")
        # on the bar's abscissa: above the bar's end the classifier is overconfident, below it underconfident
        upper.plot(centres, confidence, "_", color=COLOURS["ink"], markersize=10, label="mean confidence")
        ece = evaluation["comparators"][name]["ece"]
        upper.set_title(f"{name}: ECE {ece:.3f}")
        upper.set(ylim=(0, 1), xlim=(0, 1))
        lower.bar(centres, rows, width, color=COLOURS["muted"])
        lower.set_xlabel("confidence")
        data += [
            {"comparator": name, "bin_centre": round(float(c), 4), "rows": int(n), "accuracy": a, "confidence": p}
            for c, n, a, p in zip(centres, rows, bins["accuracy"], bins["confidence"], strict=True)
        ]
        errors.append(f"{name} {ece:.3f}")
    grid[0, 0].set_ylabel("accuracy")
    grid[0, 0].legend(loc="upper left")
    grid[1, 0].set_ylabel("rows")
    alt = f"Reliability diagram: accuracy against confidence in {len(rows)} bins. Calibration error: "
    return Chart(figure, f"{alt}{', '.join(errors)}.", data)


@styled
def risk_coverage(
    evaluation: Mapping[str, Any], shown: Sequence[str] = ("student", "similarity", "gate", "oracle")
) -> Chart:
    """Draw error among answered cases against the share answered; the dot is where the rest go to a human."""
    present, selective = [name for name in shown if name in evaluation["selective"]], evaluation["selective"]
    figure, axes = _one_panel(3.6)
    for name in present:
        curve, colour = selective[name]["curve"], _LINES.get(name, COLOURS["ink"])
        label, line = f"{name} (AURC {selective[name]['aurc']:.3f})", ":" if name == "oracle" else "-"
        axes.plot(curve["coverage"], curve["risk"], color=colour, linestyle=line, label=label)
        refer = selective[name].get("refer")
        if refer and refer["risk"] is not None and name != "oracle":
            axes.plot(refer["coverage"], refer["risk"], "o", color=colour, markersize=6)
    target = next((each["refer"]["target_risk"] for each in selective.values() if "refer" in each), None)
    if target is not None:
        axes.axhline(target, color=COLOURS["muted"], linewidth=0.9, linestyle="--", label=f"tolerated risk, {target:g}")
    axes.set(xlabel="coverage: share of cases answered", ylabel="risk: errors among them", xlim=(0, 1), ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=2)
    areas = ", ".join(f"{name} {selective[name]['aurc']:.3f}" for name in present)
    data = [
        {"comparator": name, "coverage": coverage, "risk": risk}
        for name in present
        for coverage, risk in zip(*(selective[name]["curve"][key] for key in ("coverage", "risk")), strict=True)
    ]
    return Chart(figure, f"Risk against coverage, the surest cases answered first. Area under it: {areas}.", data)


@styled
def comparators(
    evaluation: Mapping[str, Any], shown: Sequence[str] = ("accuracy", "balanced_accuracy", "ece")
) -> Chart:
    """Draw each comparator's metrics with intervals, or deviations over seeds; a line marks the student's value."""
    scores = evaluation["comparators"]
    names = list(scores)
    figure = new_figure(WIDTH if len(shown) == 1 else 2.9 * len(shown) + 1.2, 0.23 * len(names) + 0.75)
    data: list[dict[str, Any]] = []
    for axes, metric in zip(figure.subplots(1, len(shown), sharey=True, squeeze=False)[0], shown, strict=True):
        axes.axvline(scores["student"][metric], color=COLOURS["muted"], linewidth=0.9, linestyle=":")
        for place, name in enumerate(names):
            value = scores[name][metric]
            low, high = _span(evaluation, name, metric)
            data.append({"comparator": name, "metric": metric, "value": value, "low": low, "high": high})
            if value is None or value != value:
                continue
            colour = _LINES["gate"] if name == "gate" else COLOURS["muted"]
            if low is not None:
                axes.plot([low, high], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
            filled = COLOURS["card"] if name == "oracle" else colour
            axes.plot(value, place, "o", color=colour, markersize=5, markerfacecolor=filled)
        axes.set_title(METRICS[metric].word)
        axes.set_yticks(range(len(names)), names)
        axes.grid(False, axis="y")
    figure.axes[0].invert_yaxis()
    what = " and ".join(METRICS[metric].word for metric in shown)
    first = ", ".join(
        f"{row['comparator']} {row['value']:.3f}" for row in data if row["metric"] == shown[0] and row["value"]
    )
    return Chart(figure, f"{what} of every comparator, with its spread: {first}.", data)


def _span(evaluation: Mapping[str, Any], name: str, metric: str) -> tuple[float | None, float | None]:
    """Return the bootstrap interval of one seed; of several, one standard deviation to each side."""
    if "intervals" in evaluation:
        low, high = evaluation["intervals"].get(name, {}).get(metric, (None, None))
        return low, high
    std = evaluation.get("comparators_std", {}).get(name, {}).get(metric)
    mean = evaluation["comparators"][name][metric]
    return (None, None) if std is None else (mean - std, mean + std)


@styled
def gating_curve(points: Points, symbol: str, chosen: float | None, title: str = "") -> Chart:
    """Draw the paper's gating figure: accuracy of all cases, accuracy where the gate is open, and openings."""
    figure = new_figure(WIDTH, 4.6)
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 1.3))
    for split, colour in _SPLITS.items():
        values, n = _columns(points, split, "value", "n")
        for axes, key in zip(panels, ("accuracy", "gate_accuracy", "opened"), strict=True):
            (ys,) = _columns(points, split, key)
            ys = 100 * ys / n if key == "opened" else ys
            axes.plot(values, ys, "o-", color=colour, markersize=3, linewidth=1.3, label=split)
    for axes, label in zip(panels, ("accuracy\nof all", "accuracy\nwhere open", "open (%)"), strict=True):
        axes.set_ylabel(label)
        if chosen is not None:
            axes.axvline(chosen, color=COLOURS["muted"], linewidth=0.9, linestyle="--")
    panels[2].set_ylim(bottom=0)
    panels[2].set_xlabel(symbol if chosen is None else f"{symbol} (dashed: the value in use)")
    panels[0].legend(loc="best", ncols=2)
    set_title(figure, title)
    on_test = [point["accuracy"] for point in points if point["split"] == "test"]
    alt = (
        f"Accuracy of all cases, accuracy where the gate is open, and share of open cases, as {symbol} moves. "
        f"Test accuracy lies between {min(on_test):.4f} and {max(on_test):.4f}."
    )
    return Chart(figure, alt, points)


@styled
def cost_curve(curve: Mapping[str, Any], theta: float | None) -> Chart:
    """Draw accuracy and balanced accuracy over the share of cases asked about, of the gate and of plain averaging."""
    asked = 100 * _numbers(curve["asked"])
    figure = new_figure(WIDTH, 4.4)
    panels = figure.subplots(2, 1, sharex=True)
    lines = (("gate", COLOURS["c0"], "o-", "gate"), ("average", COLOURS["c1"], "s:", "plain averaging"))
    for axes, metric in zip(panels, ("accuracy", "balanced_accuracy"), strict=True):
        for name, colour, style, label in lines:
            axes.plot(asked, _numbers(curve[name][metric]), style, color=colour, markersize=3, label=label)
        axes.set_ylabel(METRICS[metric].word)
        if theta is not None and theta in curve["theta"]:
            in_use = asked[curve["theta"].index(theta)]
            axes.axvline(in_use, color=COLOURS["muted"], linewidth=0.9, linestyle="--")
    panels[1].set_xlabel("cases asked about (%)")
    panels[0].legend(loc="best", ncols=2)
    data = [
        {"theta": t, "asked": share, "path": name} | {metric: values[i] for metric, values in curve[name].items()}
        for i, (t, share) in enumerate(zip(curve["theta"], curve["asked"], strict=True))
        for name in ("gate", "average")
    ]
    best = max(curve["gate"]["accuracy"])
    alt = f"Accuracy and balanced accuracy over the share of cases asked about. The gate’s best accuracy: {best:.4f}."
    return Chart(figure, alt, data)


@styled
def small_multiples(curves: Mapping[str, tuple[str, Points, float]], title: str) -> Chart:
    """Draw the gate's accuracy and retrieval's for each setting in ``curves``: symbol, points and the value in use."""
    columns = min(3, len(curves))  # so that they can be read on a page
    rows = -(-len(curves) // columns)
    figure = new_figure(2.8 * columns, 2.5 * rows + 0.6)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels[len(curves) :]:
        axes.remove()
    for axes, (symbol, points, chosen) in zip(panels, curves.values(), strict=False):
        for key, style in (("accuracy", "o-"), ("similarity_accuracy", "s:")):
            for split, colour in _SPLITS.items():
                label = f"{'gate' if key == 'accuracy' else 'retrieval alone'}, {split}"
                xs, ys = _columns(points, split, "value", key)
                axes.plot(xs, ys, style, color=colour, markersize=3, linewidth=1.2, label=label)
        axes.axvline(chosen, color=COLOURS["muted"], linewidth=0.9, linestyle="--")
        if symbol in {"K", "κ", "τ", "D"}:
            axes.set_xscale("log", base=2)
            axes.set_xticks(sorted({point["value"] for point in points}), minor=False)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}" if value < 100 else f"{value:.0f}")
            axes.tick_params(axis="x", labelsize=7)
        axes.set_xlabel(symbol)
    for axes in panels[::columns]:
        axes.set_ylabel("accuracy")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    set_title(figure, title)
    data = [{"setting": symbol, **point} for symbol, points, _ in curves.values() for point in points]
    alt = f"Accuracy of the gate and of retrieval alone as one setting moves: {', '.join(curves)}."
    return Chart(figure, alt, data)


@styled
def surface(points: Points, base: float, title: str) -> Chart:
    """Draw the validation accuracy gained over θ and β, at the best margin and α of each point."""
    thetas, betas = (sorted({point[name] for point in points}) for name in ("theta", "beta"))
    gain = np.full((len(betas), len(thetas)), -np.inf)
    for point in points:
        i, j = betas.index(point["beta"]), thetas.index(point["theta"])
        gain[i, j] = max(gain[i, j], point["accuracy"] - base)
    largest = max(float(np.abs(gain).max()), 1e-4)
    figure = new_figure(5.2, 4.0)
    axes: Axes = figure.subplots()
    image = axes.pcolormesh(thetas, betas, gain, cmap="RdBu", vmin=-largest, vmax=largest, shading="nearest")
    axes.set(xlabel="θ", ylabel="β")
    set_title(figure, title)
    figure.colorbar(image, ax=axes, label="accuracy gained on validation\n(best margin and α)")
    return Chart(figure, f"Validation accuracy gained over θ and β, at most {gain.max():+.4f}.", points)


@styled
def training_loss(metrics: Points) -> Chart:
    """Draw the loss and its two parts, step by step."""
    steps = [row for row in metrics if "loss" in row]
    figure, axes = _one_panel(3.0)
    parts = {"loss": COLOURS["c0"], "cross_entropy": COLOURS["c1"], "contrastive": COLOURS["c2"]}
    for name, colour in parts.items():
        values = [row[name] for row in steps]
        if any(values):  # without the contrastive loss there is nothing to draw
            axes.plot([row["step"] for row in steps], values, color=colour, label=name.replace("_", "-"), linewidth=1.3)
    axes.set(xlabel="step", ylabel="loss", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=3)
    alt = f"Training loss over {steps[-1]['step']:,} steps, from {steps[0]['loss']:.3f} to {steps[-1]['loss']:.3f}."
    return Chart(figure, alt, steps)


@styled
def training_validation(metrics: Points) -> Chart:
    """Draw validation accuracy and balanced accuracy of student and teacher, epoch by epoch."""
    epochs = [row for row in metrics if "validation" in row]
    figure, axes = _one_panel(3.0)
    data = [
        {"epoch": row["epoch"], "network": who, **scores} for row in epochs for who, scores in row["validation"].items()
    ]
    for who, colour in (("student", COLOURS["c0"]), ("teacher", COLOURS["c1"])):
        of_who = [row for row in data if row["network"] == who]
        for metric, line in (("accuracy", "o-"), ("balanced_accuracy", "s:")):
            xs, ys = [row["epoch"] for row in of_who], _numbers([row[metric] for row in of_who])
            axes.plot(xs, ys, line, color=colour, markersize=3.5, label=f"{who}, {METRICS[metric].word}", linewidth=1.3)
    axes.set(xlabel="epoch", ylabel="on validation")
    axes.locator_params(axis="x", integer=True)
    figure.legend(loc="outside lower center", ncols=2)
    last = epochs[-1]["validation"]["student"]
    alt = (
        f"Validation accuracy of student and teacher over {len(epochs)} epochs; the student ends at accuracy "
        f"{last['accuracy']:.4f}, balanced {last['balanced_accuracy']:.4f}."
    )
    return Chart(figure, alt, data)


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _columns(points: Points, split: str, *names: str) -> list[np.ndarray]:
    """Return columns of the points of one split."""
    return [_numbers([point[name] for point in points if point["split"] == split]) for name in names]


def _one_panel(height: float) -> tuple[Figure, Axes]:
    figure = new_figure(WIDTH, height)
    return figure, figure.subplots()


@styled
def search_history(rows: Points, objective: str) -> Chart:
    """Draw what each trial of a search was worth, and the best so far; trials that were ended early as ticks."""
    figure = new_figure(WIDTH, 2.8)
    axes = figure.subplots()
    worth = [(row["trial"], row["value"]) for row in rows if row.get("value") is not None]
    ended = [row["trial"] for row in rows if row["state"] == "pruned"]
    best = [(row["trial"], row["best"]) for row in rows if row.get("best") is not None]
    if worth:
        axes.plot(*zip(*worth, strict=True), "o", color=COLOURS["c4"], markersize=4, label="a trial")
        axes.step(*zip(*best, strict=True), where="post", color=COLOURS["c0"], label="best so far")
    for trial in ended:
        axes.axvline(trial, ymax=0.04, color=COLOURS["muted"])
    axes.set(xlabel="trial", ylabel=f"{objective}, validation")
    if worth:
        axes.legend(loc="lower right")
    last = f"; the best is {best[-1][1]:.4f}" if best else ""
    alt = f"History of the search: {len(worth)} trials to the end, {len(ended)} ended early{last}."
    return Chart(figure, alt, rows)
