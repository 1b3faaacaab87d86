"""Figures of the study on HAM10000, drawn as the reports are: ``python -m sitegen.study_charts``.

Writes ``sites.png`` and ``cost.png`` to ``docs/results``, and ``classes.png`` once the outer folds are
there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from sitegen.study import FOLDS, RESULTS, SITE_ROWS, document
from tdumpra.report.drawing import COLOURS, Chart, new_figure, styled

_WIDTH = 7.2
_GAINS = {"ensemble": ("mean of both networks", "c1"), "similarity": ("retrieval", "c2"), "gate": ("gate", "c0")}


@styled
def sites(found: Mapping[str, Any]) -> Chart:
    """Draw accuracy and balanced accuracy at home and at each site, row by row, with their intervals."""
    places = [(site, name) for site, of_site in found["sites"].items() for name in of_site["rows"]]
    figure = new_figure(_WIDTH, 0.32 * len(places) + 1.1)
    data: list[dict[str, Any]] = []
    panels = figure.subplots(1, 2, sharey=True)
    for axes, metric in zip(panels, ("accuracy", "balanced_accuracy"), strict=True):
        for number, (site, name) in enumerate(places):
            of_row = found["sites"][site]["rows"][name]
            (home, *at_home), (there, *at_site) = (of_row[place][metric] for place in ("home", "there"))
            axes.plot([home, there], [number, number], color=COLOURS["line"], linewidth=1.2, zorder=1)
            for place, value, ends, colour in (("home", home, at_home, "c0"), ("there", there, at_site, "c3")):
                axes.plot(ends, [number, number], color=COLOURS[colour], linewidth=1.8, solid_capstyle="butt")
                axes.plot(value, number, "o", color=COLOURS[colour], markersize=5, label="" if number else place)
                data.append({"site": site, "row": name, "metric": metric, "place": place, "value": value})
        axes.set_title(metric.replace("_", " "))
        axes.set(xlim=(0.3, 1.0))
        axes.set_yticks(range(len(places)), [f"{site}: {SITE_ROWS[name]}" for site, name in places])
        axes.grid(False, axis="y")
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    told = ", ".join(
        f"{site} {of_site['rows']['classifier']['home']['accuracy'][0]:.3f} to "
        f"{of_site['rows']['classifier']['there']['accuracy'][0]:.3f}"
        for site, of_site in found["sites"].items()
    )
    return Chart(
        figure, f"Accuracy and balanced accuracy at home and at a site never seen; the classifier: {told}.", data
    )


@styled
def cost(found: Mapping[str, Any]) -> Chart:
    """Draw accuracy, macro-F1 and balanced accuracy over the time that asking takes; a dot marks the chosen theta."""
    test, chosen, last = found["curves"]["test"], found["chosen"], found["measured"]["h200"][-1][0]
    figure = new_figure(_WIDTH, 3.0)
    data = []
    for axes, metric in zip(figure.subplots(1, 3), ("accuracy", "macro_f1", "balanced_accuracy"), strict=True):
        measured = np.asarray(test["asked"]) <= last
        for machine, colour, words in (("h200", "c0", "GPU"), ("cpu", "c1", "CPU")):
            times, values = np.asarray(test[machine]), np.asarray(test[metric])
            axes.plot(times[measured], values[measured], "-", color=COLOURS[colour], label=words)
            beyond = np.flatnonzero(measured)[-1]
            axes.plot(times[beyond:], values[beyond:], ":", color=COLOURS[colour])
            axes.plot(times[chosen], values[chosen], "o", color=COLOURS[colour], markersize=6)
            data += [
                {"machine": machine, "metric": metric, "theta": theta, "time": time, "value": value}
                for theta, time, value in zip(found["theta"], times.tolist(), values.tolist(), strict=True)
            ]
        axes.set_title(metric.replace("_", " ").replace("f1", "F1"))
        axes.set_xlabel("time, of the classifier alone")
    figure.axes[0].legend(loc="lower right")
    words = f"{test['accuracy'][0]:.3f} alone, {test['accuracy'][chosen]:.3f} at the chosen theta"
    alt = f"Accuracy, macro-F1 and balanced accuracy over the time that asking a second network takes: accuracy {words}"
    return Chart(figure, f"{alt}, {test['accuracy'][-1]:.3f} where every image is asked about.", data)


@styled
def classes(found: Mapping[str, Any]) -> Chart:
    """Draw what each class gains in recall over the classifier alone, a dot for each seed."""
    seeds = [seed["recall"] for seed in found["by_seed"].values()]
    names = list(seeds[0]["student"])
    figure = new_figure(_WIDTH, 3.0)
    axes = figure.subplots()
    axes.axhline(0, color=COLOURS["muted"], linewidth=0.9)
    data = []
    for place, (who, (words, colour)) in enumerate(_GAINS.items()):
        gains = np.array([[100 * (seed[who][name] - seed["student"][name]) for name in names] for seed in seeds])
        at = np.arange(len(names)) + 0.25 * (place - 1)
        axes.bar(at, gains.mean(0), 0.22, color=COLOURS[colour], label=words)
        for of_seed in gains:
            axes.plot(at, of_seed, ".", color=COLOURS["ink"], markersize=3)
        data += [{"row": who, "class": name, "gain": gain} for name, gain in zip(names, gains.mean(0), strict=True)]
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("recall over the classifier, points")
    axes.grid(False, axis="x")
    axes.legend(loc="upper right")
    best = max(data, key=lambda row: row["gain"])
    return Chart(
        figure, f"Recall gained by class over the classifier; most, {best['gain']:.1f}, by {best['class']}.", data
    )


def main() -> None:
    """Write the figures."""
    sites(document("sites")).write_png(RESULTS / "sites.png")
    cost(document("cost")).write_png(RESULTS / "cost.png")
    if FOLDS.exists():
        classes(json.loads(FOLDS.read_text(encoding="utf-8"))).write_png(RESULTS / "classes.png")


if __name__ == "__main__":
    main()
