"""The page of an adaptation, from ``adaptation.json``: verdict, rivals, the cost at home, and the dose curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tdumpra.evaluation.metrics_table import METRICS
from tdumpra.report import kit
from tdumpra.report.charts import WIDTH
from tdumpra.report.drawing import COLOURS, Chart, csv_text, new_figure, styled

_COLOURS = {"bias": "c1", "head": "c0", "bank": "c2", "bias+bank": "c5", "head+bank": "c3"}
_HOME = ("accuracy", "balanced_accuracy", "macro_f1", "nll", "ece")


def adaptation_page(document: Mapping[str, Any]) -> str:
    """Return one HTML page, complete in itself."""
    rivals = rivals_chart(document)
    curve = dose_chart(document) if document["dose"] else None
    return kit.render(
        "adaptation.html",
        document=document,
        metrics=METRICS,
        objective=METRICS[document["objective"]],
        rivals={"svg": kit.raw(rivals.svg()), "csv": kit.download(csv_text(rivals.rows))},
        dose=curve and {"svg": kit.raw(curve.svg()), "csv": kit.download(csv_text(curve.rows))},
        at_home=_HOME,
        span=_span,
    )


def _span(interval: Mapping[str, float], *, signed: bool = False) -> str:
    """Return a figure with its interval."""
    value, low, high = ((kit.signed if signed else kit.number)(interval[key], 3) for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


@styled
def rivals_chart(document: Mapping[str, Any]) -> Chart:
    """Draw each way's objective and accuracy with intervals; a dotted line marks the model as it is."""
    shown = list(dict.fromkeys([document["objective"], "accuracy"]))
    rows = {each["name"]: each["figures"] for each in document["ways"].values()}
    rows["chosen anew in each fold"] = document["estimate"]
    figure = new_figure(WIDTH if len(shown) == 1 else 2.9 * len(shown) + 1.4, 0.26 * len(rows) + 0.75)
    data: list[dict[str, Any]] = []
    for axes, metric in zip(figure.subplots(1, len(shown), sharey=True, squeeze=False)[0], shown, strict=True):
        axes.axvline(document["ways"]["keep"]["figures"][metric]["value"], color=COLOURS["muted"], linestyle=":")
        for place, (name, figures) in enumerate(rows.items()):
            each = figures[metric]
            colour = COLOURS["c0"] if place == len(rows) - 1 else COLOURS["muted"]
            axes.plot([each["low"], each["high"]], [place, place], color=colour, solid_capstyle="butt")
            axes.plot(each["value"], place, "o", color=colour, markersize=5)
            data.append({"way": name, "metric": metric, **each})
        axes.set_title(METRICS[metric].word)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.grid(False, axis="y")
    figure.axes[0].invert_yaxis()
    told = ", ".join(f"{row['way']} {row['value']:.3f}" for row in data if row["metric"] == shown[0])
    return Chart(figure, f"{METRICS[shown[0]].word} of each way on lesions that had no say: {told}.", data)


@styled
def dose_chart(document: Mapping[str, Any]) -> Chart:
    """Draw what each way gains over the model as it is, against the number of local lesions."""
    metric, doses = document["objective"], document["dose"]
    figure = new_figure(WIDTH, 3.4)
    axes = figure.subplots()
    sizes = [dose["lesions"] for dose in doses]
    data: list[dict[str, Any]] = []
    for number, way in enumerate(doses[0]["gains"]):
        colour = COLOURS[_COLOURS[way]]
        gains = [dose["gains"][way][metric] for dose in doses]
        places = [
            size * 1.04 ** (number - 2) for size in sizes
        ]  # beside each other, so that intervals can be told apart
        for place, each in zip(places, gains, strict=True):
            axes.plot([place, place], [each["low"], each["high"]], color=colour, linewidth=1)
        axes.plot(places, [each["value"] for each in gains], "o-", color=colour, markersize=4, label=way)
        data += [
            {"way": way, "lesions": size, "metric": metric, **each} for size, each in zip(sizes, gains, strict=True)
        ]
    axes.axhline(0, color=COLOURS["muted"], linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="local lesions with labels", ylabel=f"{METRICS[metric].word}: lead over the model as it is")
    figure.legend(loc="outside lower center", ncols=3)
    last = ", ".join(f"{row['way']} {row['value']:+.3f}" for row in data if row["lesions"] == sizes[-1])
    return Chart(
        figure, f"Lead in {METRICS[metric].word} by the number of local lesions; at {sizes[-1]}: {last}.", data
    )
