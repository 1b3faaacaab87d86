"""The paper's qualitative figure: four cases of low confidence, both paths' posteriors, and what retrieval matched."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tdumpra.artifacts import write_bytes
from tdumpra.method.evidence import Evidence, explain
from tdumpra.report import kit
from tdumpra.report.cases import case_name
from tdumpra.report.drawing import COLOURS, Chart, new_figure, styled
from tdumpra.report.material import Material

_CASES, _MATCHES, _CLASSES = 4, 3, 7


def qualitative(material: Material, out: Path) -> dict[str, str] | None:
    """Write ``qualitative.png`` and ``.pdf`` into ``out``; nothing for a run without images."""
    if material.pictures is None or material.decided is None:
        return None
    rows, rule = _choose(material)
    if not rows:
        return None
    drawn = _draw(material, rows)
    drawn.write_png(out / "qualitative.png")
    buffer = io.BytesIO()
    drawn.figure.savefig(buffer, format="pdf", facecolor=COLOURS["card"], metadata={"CreationDate": None})
    write_bytes(out / "qualitative.pdf", buffer.getvalue())
    with Image.open(out / "qualitative.png") as picture:
        return {"image": kit.data_uri(picture.convert("RGB"), size=1400), "alt": drawn.alt, "rule": rule}


def _choose(material: Material) -> tuple[list[int], str]:
    """The rule comes before the look: the least sure cases that the gate opened on, else the least sure of all."""
    decided = material.decided
    if decided is None or material.pictures is None:
        return [], ""
    confidence = decided.signals.gamma_cls.double().numpy()
    opened = np.flatnonzero(decided.opened.numpy())
    from_open = len(opened) >= _CASES
    pool = opened if from_open else np.arange(len(confidence))
    ordered = pool[np.argsort(confidence[pool], kind="stable")]
    rows = [int(row) for row in ordered if case_name(material, int(row)) in material.pictures.records][:_CASES]
    among = "on which the gate opened" if from_open else "of all test cases (the gate opened on fewer than four)"
    return rows, f"Chosen by rule, not by eye: the {_CASES} cases of lowest classifier confidence {among}."


@styled
def _draw(material: Material, rows: list[int]) -> Chart:
    figure = new_figure(10.5, 2.25 * len(rows))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    grid = figure.subplots(len(rows), 2 + _MATCHES, squeeze=False, width_ratios=(1.1, 2.1, *(1,) * _MATCHES))
    told = []
    for axes, row in zip(grid, rows, strict=True):
        evidence, truth = _evidence(material, row), material.class_names[int(material.splits.test.y[row])]  # type: ignore[union-attr]
        name = case_name(material, row)
        _picture(axes[0], material.pictures.read(name), f"{name}\ntruth: {truth}")  # type: ignore[union-attr]
        before, after = (evidence.class_names[label] for label in (evidence.label_classifier, evidence.label))
        _bars(axes[1], evidence, f"{before} before, {after} after")
        for place, match in zip(axes[2:], (*evidence.matches, *(None,) * _MATCHES), strict=False):
            if match is None:
                place.axis("off")
                continue
            exemplar = next((each for each in match.exemplars if each.id in material.thumbnails), None)
            pixels = None if exemplar is None else material.thumbnails[exemplar.id].numpy()
            _picture(place, pixels, f"{match.name}, prototype {match.prototype + 1}\ncosine {match.cosine:.3f}")
        told.append(f"{name} (truth {truth}): {before} before, {after} after")
    alt = f"Four cases of low confidence with both posteriors and the nearest prototypes. {'; '.join(told)}."
    return Chart(figure, alt, [])


def _evidence(material: Material, row: int) -> Evidence:
    if material.splits is None or material.decision is None:
        raise ValueError("a figure of cases needs their outputs")
    test = material.splits.test
    group = None if test.groups is None else str(test.groups[row])
    return explain(
        material.decision, test.p[row : row + 1], test.z[row : row + 1], class_names=material.class_names, group=group
    )


def _picture(axes: Any, pixels: np.ndarray | None, words: str) -> None:
    axes.set_title(words, fontsize=7.5, fontweight="normal")
    axes.axis("off")
    if pixels is None:
        axes.text(0.5, 0.5, "no picture", ha="center", va="center", color=COLOURS["muted"], transform=axes.transAxes)
    else:
        axes.imshow(pixels)


def _bars(axes: Any, evidence: Evidence, title: str) -> None:
    """The likeliest classes, the classifier's bar above the final one."""
    order = sorted(range(len(evidence.p)), key=lambda c: -max(evidence.p_classifier[c], evidence.p[c]))[:_CLASSES]
    places = np.arange(len(order))
    for p, shift, colour, label in (
        (evidence.p_classifier, -0.2, COLOURS["muted"], "classifier"),
        (
            evidence.p,
            0.2,
            COLOURS["c0"] if evidence.opened else COLOURS["c4"],
            "final, gate open" if evidence.opened else "final, gate shut",
        ),
    ):
        axes.barh(places + shift, [p[c] for c in order], 0.38, color=colour, label=label)
    axes.set_yticks(places, [evidence.class_names[c] for c in order])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1))
    axes.set_title(title, fontsize=8.5)
    axes.grid(False, axis="y")
    axes.legend(loc="lower right", fontsize=7)
