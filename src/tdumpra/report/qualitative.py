"""The paper's qualitative figure: four cases drawn at random, both posteriors, the result, and matched prototypes."""

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
_SEED = 0  # of the draw


def qualitative(material: Material, out: Path) -> dict[str, str] | None:
    """Write ``qualitative.png`` and ``.pdf`` into ``out``; nothing for a run without images."""
    if material.pictures is None or material.decided is None:
        return None
    rows, from_open = draw_cases(material, material.pictures)
    if not rows:
        return None
    drawn = _draw(material, material.pictures, rows)
    drawn.write_png(out / "qualitative.png")
    drawn.write_pdf(out / "qualitative.pdf")
    among = "those on which the gate opened" if from_open else "all test cases (the gate opened on fewer than four)"
    rule = f"Drawn at random (seed {_SEED}), not by eye, from {among}."
    with Image.open(out / "qualitative.png") as picture:
        return {"image": kit.data_uri(picture, size=1400), "alt": drawn.alt, "rule": rule}


def draw_cases(material: Material, pictures: Pictures) -> tuple[list[int], bool]:
    """Draw the rows to show, as the paper does, at random; return them and whether the gate opened on all of them."""
    opened = np.flatnonzero(known(material)[2].opened.numpy())
    from_open = len(opened) >= _CASES
    pool = opened if from_open else np.arange(len(known(material)[0].test))
    drawn = np.random.default_rng(_SEED).permutation(pool).tolist()
    return [row for row in drawn if case_name(material, row) in pictures.records][:_CASES], from_open


@styled
def _draw(material: Material, pictures: Pictures, rows: list[int]) -> Chart:
    figure = new_figure(10.5, 2.5 * len(rows))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    grid = figure.subplots(len(rows), 2 + _MATCHES, squeeze=False, width_ratios=(1.1, 2.1, *(1,) * _MATCHES))
    told = []
    for axes, row in zip(grid, rows, strict=True):
        evidence, name = evidence_of(material, row), case_name(material, row)
        truth = material.class_names[int(known(material)[0].test.y[row])]
        _picture(axes[0], pictures.read(name), f"{name}\ntruth: {truth}")
        labels = (evidence.label_classifier, evidence.label_similarity, evidence.label)
        before, other, after = (evidence.class_names[label] for label in labels)
        _bars(axes[1], evidence, f"{before} before, {after} after")
        for place, match in zip(axes[2:], (*evidence.matches, *(None,) * _MATCHES), strict=False):
            if match is None:
                place.axis("off")
                continue
            exemplar = next((each for each in match.exemplars if each.id in material.thumbnails), None)
            pixels = None if exemplar is None else material.thumbnails[exemplar.id].numpy()
            _picture(place, pixels, f"{match.name}, prototype {match.prototype + 1}\ncosine {match.cosine:.3f}")
        told.append(f"{name} (truth {truth}): classifier {before}, retrieval {other}, final {after}")
    alt = f"{len(rows)} cases with both posteriors, the final one and the nearest prototypes. {'; '.join(told)}."
    return Chart(figure, alt, [])


def _picture(axes: Any, pixels: np.ndarray | None, words: str) -> None:
    axes.set_title(words, fontsize=7.5, fontweight="normal")
    axes.axis("off")
    if pixels is None:
        axes.text(0.5, 0.5, "no picture", ha="center", va="center", color=COLOURS["muted"], transform=axes.transAxes)
    else:
        axes.imshow(pixels)


def _bars(axes: Any, evidence: Evidence, title: str) -> None:
    """Draw the likeliest classes: the classifier's bar, retrieval's below it, then the final one."""
    final = ("final, gate open", COLOURS["c0"]) if evidence.opened else ("final, gate shut", COLOURS["c4"])
    opinions = {
        ("classifier", COLOURS["muted"]): evidence.p_classifier,
        ("retrieval", COLOURS["c1"]): evidence.p_similarity,
        final: evidence.p,
    }
    order = sorted(range(len(evidence.p)), key=lambda c: -max(p[c] for p in opinions.values()))[:_CLASSES]
    places = np.arange(len(order))
    for offset, ((label, colour), p) in zip((-0.27, 0.0, 0.27), opinions.items(), strict=True):
        axes.barh(places + offset, [p[c] for c in order], 0.25, color=colour, label=label)
    axes.set_yticks(places, [evidence.class_names[c] for c in order])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1))
    axes.set_title(title, fontsize=8.5)
    axes.grid(False, axis="y")
    axes.legend(loc="lower right", fontsize=7)
