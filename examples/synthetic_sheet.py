"""A contact sheet of the synthetic lesions: one row per class, typical lesions first, then ambiguous ones.

python examples/synthetic_sheet.py synthetic.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tdumpra.data.manifest import Manifest, Record
from tdumpra.data.synthetic import bayes_posterior, synthetic_manifest

MARGIN = 46  # pixels left of each row, for the class name
CAPTION = 28  # pixels below each picture, for the two likeliest classes


def choose(manifest: Manifest, label: int, typical: int, ambiguous: int) -> list[Record]:
    """Typical lesions from every mode in turn, then ambiguous ones; one photograph of each."""
    first = {r.group: r for r in reversed(manifest.records) if r.label == label}
    by_mode: dict[str, list[Record]] = {}
    for record in sorted(first.values(), key=lambda r: r.id):
        by_mode.setdefault(record.meta["mode"], []).append(record)
    depth = max(map(len, by_mode.values()))
    in_turn = [records[k] for k in range(depth) for records in by_mode.values() if k < len(records)]
    sure = [r for r in in_turn if r.meta["ambiguous"] == "no"]
    unsure = [r for r in in_turn if r.meta["ambiguous"] == "yes"]
    return sure[:typical] + unsure[:ambiguous]


def contact_sheet(manifest: Manifest, *, typical: int = 7, ambiguous: int = 2) -> Image.Image:
    """The sheet, with each picture's posterior below it where it is not certain."""
    posterior = dict(zip((r.id for r in manifest.records), bayes_posterior(manifest), strict=True))
    side = manifest.reader(manifest.records[0]).shape[0]
    columns = typical + ambiguous
    size = (MARGIN + columns * side, len(manifest.class_names) * (side + CAPTION))
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for row, name in enumerate(manifest.class_names):
        top = row * (side + CAPTION)
        draw.text((4, top + side // 2), name, fill="black")
        for column, record in enumerate(choose(manifest, row, typical, ambiguous)):
            left = MARGIN + column * side
            sheet.paste(Image.fromarray(manifest.reader(record)), (left, top))
            p = posterior[record.id]
            likely = [c for c in np.argsort(-p)[:2] if p[c] > 0.005]
            caption = "\n".join(f"{manifest.class_names[c]} {p[c]:.2f}" for c in likely)
            draw.text((left + 3, top + side + 1), caption, fill="black", spacing=1)
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where to write the sheet (PNG)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=96, help="side of each picture in pixels")
    arguments = parser.parse_args()
    manifest = synthetic_manifest(seed=arguments.seed, size=arguments.size)
    palette = contact_sheet(manifest).quantize(256, kmeans=2)  # a third of the bytes, and hardly a visible difference
    palette.save(arguments.out, optimize=True)
    print(f"{arguments.out}: {manifest.name}; {manifest.notes[0]}")


if __name__ == "__main__":
    main()
