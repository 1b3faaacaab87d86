"""The paper's qualitative figure: four cases of low confidence, both posteriors, and the prototypes they matched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tdumpra.method.evidence import Evidence
from tdumpra.report import kit
from tdumpra.report.cases import case_name, evidence_of, known
from tdumpra.report.drawing import COLOURS, Chart, new_figure, styled
from tdumpra.report.material import Material, Pictures

_CASES, _MATCHES, _CLASSES = 4, 3, 7


def qualitative(material: Material, out: Path) -> dict[str, str] | None:
    """Write ``qualitative.png`` and ``.pdf`` into ``out``; nothing for a run without images."""
    if material.pictures is None or material.decided is None:
        return None
    confidence = material.decided.signals.gamma_cls.double().numpy()
    opened = np.flatnonzero(material.decided.opened.numpy())
    from_open = len(opened) >= _CASES  # a rule, fixed before anyone looks at the pictures
    pool = opened if from_open else np.arange(len(confidence))
    ordered = pool[np.argsort(confidence[pool], kind="stable")].tolist()
    rows = [row for row in ordered if case_name(material, row) in material.pictures.records][:_CASES]
    if not rows:
        return None
    drawn = _draw(material, material.pictures, rows)
    drawn.write_png(out / "qualitative.png")
    drawn.write_pdf(out / "qualitative.pdf")
    among = "on which the gate opened" if from_open else "of all test cases (the gate opened on fewer than four)"
    rule = f"Chosen by rule, not by eye: the {_CASES} cases of lowest classifier confidence {among}."
    with Image.open(out / "qualitative.png") as picture:
        return {"image": kit.data_uri(picture, size=1400), "alt": drawn.alt, "rule": rule}


@styled
def _draw(material: Material, pictures: Pictures, rows: list[int]) -> Chart:
    figure = new_figure(10.5, 2.25 * len(rows))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    grid = figure.subplots(len(rows), 2 + _MATCHES, squeeze=False, width_ratios=(1.1, 2.1, *(1,) * _MATCHES))
    told = []
    for axes, row in zip(grid, rows, strict=True):
        evidence, name = evidence_of(material, row), case_name(material, row)
        truth = material.class_names[int(known(material)[0].test.y[row])]
        _picture(axes[0], pictures.read(name), f"{name}\ntruth: {truth}")
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


def _picture(axes: Any, pixels: np.ndarray | None, words: str) -> None:
    axes.set_title(words, fontsize=7.5, fontweight="normal")
    axes.axis("off")
    if pixels is None:
        axes.text(0.5, 0.5, "no picture", ha="center", va="center", color=COLOURS["muted"], transform=axes.transAxes)
    else:
        axes.imshow(pixels)


def _bars(axes: Any, evidence: Evidence, title: str) -> None:
    """Draw the likeliest classes, the classifier's bar above the final one."""
    order = sorted(range(len(evidence.p)), key=lambda c: -max(evidence.p_classifier[c], evidence.p[c]))[:_CLASSES]
    places = np.arange(len(order))
    colour, label = (COLOURS["c0"], "final, gate open") if evidence.opened else (COLOURS["c4"], "final, gate shut")
    axes.barh(places - 0.2, [evidence.p_classifier[c] for c in order], 0.38, color=COLOURS["muted"], label="classifier")
    axes.barh(places + 0.2, [evidence.p[c] for c in order], 0.38, color=colour, label=label)
    axes.set_yticks(places, [evidence.class_names[c] for c in order])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1))
    axes.set_title(title, fontsize=8.5)
    axes.grid(False, axis="y")
    axes.legend(loc="lower right", fontsize=7)
