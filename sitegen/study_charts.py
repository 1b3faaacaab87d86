"""Figures of the study on HAM10000, drawn as the reports are: ``python -m sitegen.study_charts``.

Writes ``leads.png``, ``melanoma.png``, ``cost.png`` and ``sites.png`` to ``docs/results``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from benchmarks.cost import measured, times

from sitegen.study import BAR, RESULTS, SITE_ROWS, by_site, cost_over_seeds, document
from tdumpra.report.drawing import COLOURS, Chart, new_figure, styled

_WIDTH = 7.2
_METRICS = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "melanoma_at_90": "melanoma at 90 %"}
_RIVALS = {"ensemble": "the mean of both", "ensemble_adjusted": "that mean ÷ prior"}
_WITH_BANK = {
    "similarity": "bank alone", "average": "mean with bank", "average_adjusted": "that ÷ prior",
    "ungated": "dials, no gate", "gate": "gate",
}  # fmt: skip
_CURVES = {
    "temperature": ("classifier", "muted", "-"), "ensemble": ("mean of both networks", "c1", "-"),
    "average_adjusted": ("mean with bank ÷ prior", "c2", "--"), "gate": ("gate", "c0", "-"),
    "asked": ("asked below θ", "c3", ":"),
}  # fmt: skip


@styled
def sites(found: Mapping[str, Any]) -> Chart:
    """Draw accuracy and balanced accuracy at home and at each site, row by row, with their intervals."""
    places = [
        (site, name)
        for site, of_site in found.items()
        for name in ("calibrated", "networks", "retrieval", "gate")
        if name in of_site["rows"]
    ]
    figure = new_figure(_WIDTH, 0.26 * len(places) + 1.1)
    data: list[dict[str, Any]] = []
    panels = figure.subplots(1, 2, sharey=True)
    for axes, metric in zip(panels, ("accuracy", "balanced_accuracy"), strict=True):
        for number, (site, name) in enumerate(places):
            of_row = found[site]["rows"][name]
            (home, *at_home), (there, *at_site) = (of_row[place][metric] for place in ("home", "there"))
            axes.plot([home, there], [number, number], color=COLOURS["line"], linewidth=1.2, zorder=1)
            for place, value, ends, colour in (("home", home, at_home, "c0"), ("there", there, at_site, "c3")):
                axes.plot(ends, [number, number], color=COLOURS[colour], linewidth=1.8, solid_capstyle="butt")
                axes.plot(value, number, "o", color=COLOURS[colour], markersize=5, label="" if number else place)
                data.append({"site": site, "row": name, "metric": metric, "place": place, "value": value})
        axes.set_title(metric.replace("_", " "))
        axes.set(xlim=(0.3, 1.0))
        axes.set_yticks(
            range(len(places)),
            [f"{site}: {SITE_ROWS[name]}" for site, name in places],
        )
        axes.grid(False, axis="y")
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    told = ", ".join(
        f"{site} {of_site['rows']['classifier']['home']['accuracy'][0]:.3f} to "
        f"{of_site['rows']['classifier']['there']['accuracy'][0]:.3f}"
        for site, of_site in found.items()
    )
    return Chart(
        figure, f"Accuracy and balanced accuracy at home and at a site never seen; the classifier: {told}.", data
    )


@styled
def cost(found: Mapping[str, Any]) -> Chart:
    """Draw accuracy, macro-F1 and balanced accuracy over the time that asking takes; a dot marks the chosen theta."""
    test, chosen, last = found["curves"]["test"], found["chosen"], measured("h200")[-1][0]
    figure = new_figure(_WIDTH, 3.0)
    data = []
    for axes, metric in zip(figure.subplots(1, 3), ("accuracy", "macro_f1", "balanced_accuracy"), strict=True):
        inside = np.asarray(test["asked"]) <= last
        for machine, colour, words in (("h200", "c0", "GPU"), ("cpu", "c1", "CPU")):
            taken, values = np.array([times(machine, share) for share in test["asked"]]), np.asarray(test[metric])
            axes.plot(taken[inside], values[inside], "-", color=COLOURS[colour], label=words)
            beyond = np.flatnonzero(inside)[-1]
            axes.plot(taken[beyond:], values[beyond:], ":", color=COLOURS[colour])
            axes.plot(taken[chosen], values[chosen], "o", color=COLOURS[colour], markersize=6)
            data += [
                {"machine": machine, "metric": metric, "theta": theta, "time": time, "value": value}
                for theta, time, value in zip(found["theta"], taken.tolist(), values.tolist(), strict=True)
            ]
        axes.set_title(metric.replace("_", " ").replace("f1", "F1"))
        axes.set_xlabel("time, of the classifier alone")
    figure.axes[0].legend(loc="lower right")
    words = f"{test['accuracy'][0]:.3f} alone, {test['accuracy'][chosen]:.3f} at the chosen theta"
    alt = f"Accuracy, macro-F1 and balanced accuracy over the time that asking a second network takes: accuracy {words}"
    return Chart(figure, f"{alt}, {test['accuracy'][-1]:.3f} where every image is asked about.", data)


@styled
def leads(found: Mapping[str, Any]) -> Chart:
    """Draw how far each row with a bank is ahead of the best without one, with a dot for each fold of each seed."""
    rows = [name for name in found["leads"] if name in _WITH_BANK]
    figure, data = new_figure(_WIDTH, 2.9), []
    panels = figure.subplots(1, 3, sharey=True)
    for axes, metric in zip(panels, BAR, strict=True):
        rival = found["best_without_bank"][metric]
        axes.axvline(0, color=COLOURS["muted"], linewidth=0.9)
        for number, name in enumerate(rows):
            lead = found["leads"][name][rival]
            value, low, high = (100 * each for each in lead[metric])
            axes.plot([low, high], [number, number], color=COLOURS["c0"], linewidth=2, solid_capstyle="butt")
            axes.plot(value, number, "o", color=COLOURS["c0"], markersize=5)
            folds = [100 * each for of_seed in lead["by_fold"] for each in of_seed.get(metric, ())]
            axes.plot(folds, [number + 0.25] * len(folds), ".", color=COLOURS["muted"], markersize=4)
            data.append({"row": name, "rival": rival, "metric": metric, "lead": value, "low": low, "high": high})
        axes.set_title(_METRICS[metric])
        axes.set_xlabel(f"points over {_RIVALS[rival]}")
        axes.set_yticks(range(len(rows)), [_WITH_BANK[name] for name in rows])
        axes.grid(False, axis="y")
    panels[0].invert_yaxis()
    ahead = [row for row in data if row["low"] > 0]
    told = "; ".join(f"{_WITH_BANK[row['row']]} in {_METRICS[row['metric']]}" for row in ahead) or "none"
    return Chart(figure, f"Leads of rows with a bank over the best without; intervals above zero: {told}.", data)


@styled
def melanoma(found: Mapping[str, Any]) -> Chart:
    """Draw the sensitivity for melanoma over specificities from 80 to 95 %."""
    figure = new_figure(_WIDTH * 0.6, 3.0)
    axes, data = figure.subplots(), []
    at = [100 * each for each in found["specificities"]]
    for name, (words, colour, line) in _CURVES.items():
        axes.plot(at, found["roc"][name], line, color=COLOURS[colour], label=words)
        data += [{"row": name, "specificity": x, "sensitivity": y} for x, y in zip(at, found["roc"][name], strict=True)]
    axes.set_xlabel("specificity, %")
    axes.set_ylabel("sensitivity for melanoma")
    axes.legend(loc="lower left")
    at_90 = found["specificities"].index(0.9)
    told = ", ".join(f"{words} {found['roc'][name][at_90]:.3f}" for name, (words, _, _) in _CURVES.items())
    return Chart(figure, f"Sensitivity for melanoma between 80 and 95 % specificity; at 90 %: {told}.", data)


def main() -> None:
    """Write the figures."""
    folds = document("ham10000/folds/headline")
    drawn = {"sites": sites(by_site()), "cost": cost(cost_over_seeds()), "leads": leads(folds)}
    for name, chart in {**drawn, "melanoma": melanoma(folds)}.items():
        chart.write_png(RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()
